"""Loses random hosts and ranks at random moments of jobs, each of which must end with the weights of one left alone.

The hosts are network namespaces with OpenSSH servers, which only root may make. The first, on which the launcher is, is
never lost. A host that is lost comes back after some seconds.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import worlds
from tests.hosts import jobs
from tests.hosts.namespaces import Hosts, hosts
from tests.hosts.openssh import servers
from tests.launcher import Job, events, of_kind

NAMES = ("kp-loss-0", "kp-loss-1", "kp-loss-2")
EARLIEST, LATEST = 2.0, 22.0  # seconds from a job's start to the loss
SHORTEST, LONGEST = 1.0, 30.0  # that a host is away
MOST_SECONDS = 300


@dataclass
class Loss:
    """One job, and what it lost.

    Args:
        num_hosts: of the job.
        ranks_of_host: on each.
        what: "rank" or "host".
        after: seconds from the job's start.
        away: seconds that a host is away.
        worlds: ranks of each world.
        steps_lost: that were done again.
        ettr: share of the time in which steps were done that counted.
        seconds: that the job took.
        ended: "same bits", "equal" up to rounding in another world, or what went wrong.
        orphans: processes that were left on any host.
    """

    num_hosts: int
    ranks_of_host: int
    what: str
    after: float
    away: float
    worlds: str = ""
    steps_lost: int = 0
    ettr: float = 0.0
    seconds: float = 0.0
    ended: str = ""
    orphans: int = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="losses (%(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="of each job, of 40 steps each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the losses (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each job")
    args = parser.parse_args()
    chance, found = random.Random(args.seed), []
    with hosts(*NAMES) as all_three, servers(all_three):
        expected = {}
        for number in range(args.count):
            loss = drawn(chance)
            key = loss.num_hosts, loss.ranks_of_host
            if key not in expected:
                expected[key] = undisturbed(all_three, loss, args.epochs)
            suffer(all_three, loss, expected[key], args.epochs, chance)
            found.append(loss)
            print(f"{number + 1} of {args.count}: {asdict(loss)}", flush=True)
            if args.json:
                args.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    show(found)


def drawn(chance: random.Random) -> Loss:
    """A job, and what happens to it when."""
    what = chance.choice(("rank", "host"))
    away = round(chance.uniform(SHORTEST, LONGEST), 1) if what == "host" else 0.0
    return Loss(chance.choice((2, 3)), chance.choice((1, 2)), what, round(chance.uniform(EARLIEST, LATEST), 1), away)


def options(loss: Loss) -> list:
    """Those of `keras-par run`."""
    return ["-H", ",".join(f"{name}:{loss.ranks_of_host}" for name in NAMES[: loss.num_hosts])]


def undisturbed(all_three: Hosts, loss: Loss, num_epochs: int):
    """The last weights of the same job without a loss."""
    with tempfile.TemporaryDirectory(prefix="kp-loss-") as folder:
        job = jobs.start(all_three, *options(loss), *worlds.arguments(Path(folder), num_epochs, checkpoints=False))
        ended = job.wait(MOST_SECONDS)
        if ended.status:
            raise RuntimeError(f"the job without a loss failed: {ended.stderr}")
        return worlds.weights(Path(folder))


def suffer(all_three: Hosts, loss: Loss, expected, num_epochs: int, chance: random.Random) -> None:
    """Runs a job that loses something, and notes how it ended."""
    residents = jobs.Residents(all_three)
    with tempfile.TemporaryDirectory(prefix="kp-loss-") as name:
        folder = Path(name)
        elastic = ["--min-np", loss.ranks_of_host, "--max-restarts", 3, "--log-dir", folder / "out", "--tee"]
        began = time.monotonic()
        job = jobs.start(all_three, *options(loss), *elastic, *worlds.arguments(folder, num_epochs))
        thread = threading.Thread(target=strike, args=[all_three, loss, job, residents, chance])
        thread.start()
        try:
            ended = job.wait(MOST_SECONDS, leaves_nothing=False)
            loss.seconds = round(time.monotonic() - began, 1)
            loss.ended = f"status {ended.status}" if ended.status else judged(worlds.weights(folder), expected)
            note(loss, folder / "out", loss.seconds)
        except AssertionError as error:
            loss.ended = str(error).splitlines()[0]
        thread.join()
        left = residents.left(60)
        loss.orphans = len(left)
        for host in NAMES:
            all_three.end(host, residents.of(host))


def strike(all_three: Hosts, loss: Loss, job: Job, residents: jobs.Residents, chance: random.Random) -> None:
    """Lets a loss happen, if the job still runs then."""
    time.sleep(loss.after)
    if job.process.poll() is not None:
        loss.what += ", too late"
    elif loss.what == "rank":
        victims = worlds.ranks(job)
        if victims:
            chance.choice(victims).kill()
        else:
            loss.what += ", before any"
    else:
        host = chance.choice(NAMES[1 : loss.num_hosts])
        all_three.lose(host, kept=residents.of(host))
        time.sleep(loss.away)
        all_three.plug(host)


def judged(ours, theirs) -> str:
    """How the last weights compare with those of the job without a loss."""
    if worlds.are_equal(ours, theirs):
        return "same bits"
    distance = worlds.distance(ours, theirs)
    return "equal" if distance < worlds.TOLERANCE else f"weights differ by {distance:.1e}"


def note(loss: Loss, folder: Path, seconds: float) -> None:
    """Takes the figures from the run's folder."""
    [end] = of_kind(folder, "end")
    loss.worlds = ", ".join(str(event["num_ranks"]) for event in events(folder) if event["event"] == "world")
    loss.steps_lost = end["steps_lost"]
    loss.ettr = round(sum(end["counted"].values()) / seconds, 3)


def show(found: list[Loss]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("hosts x ranks", "lost", "after s", "away s", "worlds", "steps lost", "ETTR", "s", "ended", "orphans")
    table = Table(*columns)
    for loss in found:
        table.add_row(
            f"{loss.num_hosts} x {loss.ranks_of_host}",
            loss.what,
            f"{loss.after}",
            f"{loss.away}" if loss.away else "",
            loss.worlds,
            f"{loss.steps_lost}",
            f"{100 * loss.ettr:.0f} %",
            f"{loss.seconds:.0f}",
            loss.ended,
            f"{loss.orphans}",
        )
    Console(width=120).print(table)
    well = sum(loss.ended in ("same bits", "equal") for loss in found)
    print(f"{well} of {len(found)} ended as without a loss; {sum(loss.orphans for loss in found)} processes were left")


if __name__ == "__main__":
    main()
