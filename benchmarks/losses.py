"""Loses random hosts and ranks at random moments of jobs, each of which must end with the weights of one left alone.

The hosts are network namespaces with OpenSSH servers, which only root may make. The first, on which the launcher is, is
never lost. A host that is lost comes back after some seconds, with nothing in its memory. A job suffers several losses,
one after another, also while it is about to go on after the one before. Some jobs write often to the disk, others
seldom there and often to the memory of their hosts.
"""

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from keras_par.base import host_memory
from tests import worlds
from tests.hosts import jobs
from tests.hosts.namespaces import Hosts, hosts
from tests.hosts.openssh import ENVIRONMENT, servers
from tests.launcher import Job, events, of_kind

NAMES = ("kp-loss-0", "kp-loss-1", "kp-loss-2")
EARLIEST, LATEST = 2.0, 22.0  # seconds from a job's start, or from the loss before, to a loss
SHORTEST, LONGEST = 1.0, 30.0  # that a host is away
MOST_SECONDS = 600
REACHED_SECONDS = 20  # for ssh to get to a host that is there, and back
SAME, EQUAL = "same bits", "equal"
EVERY = {"disk": (10,), "memory": (100, 10)}  # steps from one checkpoint on the disk, and in memory, to the next


@dataclass
class Loss:
    """Of a rank or a host.

    Args:
        what: "rank" or "host".
        after: seconds from the job's start, or from the end of the loss before.
        away: seconds that a host is away.
        has_happened: False if the job had ended, or nothing of it was there.
    """

    what: str
    after: float
    away: float
    has_happened: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.after:.0f}" + (f"+{self.away:.0f}" if self.away else "")


@dataclass
class Trial:
    """One job, and what it lost.

    Args:
        num_hosts: of the job.
        ranks_of_host: on each.
        kept: where the job writes often, in EVERY.
        losses: in their order.
        worlds: ranks of each world.
        steps_lost: that were done again.
        ettr: share of the time in which steps were done that counted.
        seconds: that the job took.
        ended: "same bits", "equal" up to rounding in another world, or what went wrong.
        orphans: processes that were left on any host, and folders in its memory.
    """

    num_hosts: int
    ranks_of_host: int
    kept: str
    losses: list[Loss]
    worlds: str = ""
    steps_lost: int = 0
    ettr: float = 0.0
    seconds: float = 0.0
    ended: str = ""
    orphans: int = 0

    @property
    def happened(self) -> list[Loss]:
        """The losses that there were."""
        return [loss for loss in self.losses if loss.has_happened]

    @property
    def is_well(self) -> bool:
        """True if it ended as a job without a loss, and left nothing."""
        return self.ended in (SAME, EQUAL) and not self.orphans


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="losses of all jobs (%(default)s)")
    parser.add_argument("--losses", type=int, default=4, help="of a job, at most (%(default)s)")
    parser.add_argument("--epochs", type=int, default=30, help="of each job, of 40 steps each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the losses (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each job")
    args = parser.parse_args()
    chance, trials = random.Random(args.seed), []
    with hosts(*NAMES) as all_three, servers(all_three):
        expected = {}
        while (count := sum(len(trial.happened) for trial in trials)) < args.count:
            trial = drawn(chance, [*EVERY][len(trials) % len(EVERY)], args.losses)
            key = trial.num_hosts, trial.ranks_of_host
            if key not in expected:
                expected[key] = undisturbed(all_three, trial, args.epochs)
            suffer(all_three, trial, expected[key], args.epochs, chance)
            trials.append(trial)
            print(f"after {count} losses: {asdict(trial)}", flush=True)
            if args.json:
                args.json.write_text(json.dumps([asdict(each) for each in trials], indent=1))
    show(trials)
    if not all(trial.is_well for trial in trials):
        raise SystemExit(1)


def drawn(chance: random.Random, kept: str, num_losses: int) -> Trial:
    """A job, and what happens to it when."""
    losses = []
    for _ in range(num_losses):
        what = chance.choice(("rank", "host"))
        away = round(chance.uniform(SHORTEST, LONGEST), 1) if what == "host" else 0.0
        losses.append(Loss(what, round(chance.uniform(EARLIEST, LATEST), 1), away))
    return Trial(chance.choice((2, 3)), chance.choice((1, 2)), kept, losses)


def options(trial: Trial) -> list:
    """Those of `keras-par run`."""
    return ["-H", ",".join(f"{name}:{trial.ranks_of_host}" for name in NAMES[: trial.num_hosts])]


def undisturbed(all_three: Hosts, trial: Trial, num_epochs: int):
    """The last weights of the same job without a loss."""
    with tempfile.TemporaryDirectory(prefix="kp-loss-") as folder:
        job = jobs.start(all_three, *options(trial), *worlds.arguments(Path(folder), num_epochs, checkpoints=False))
        ended = job.wait(MOST_SECONDS)
        if ended.status:
            raise RuntimeError(f"the job without a loss failed: {ended.stderr}")
        return worlds.weights(Path(folder))


def suffer(all_three: Hosts, trial: Trial, expected, num_epochs: int, chance: random.Random) -> None:
    """Runs a job that loses something, and notes how it ended; first makes sure that all hosts are there."""
    for host in NAMES:
        if all_three.start(NAMES[0], ["ssh", host, "true"], ENVIRONMENT).wait(REACHED_SECONDS):
            raise RuntimeError(f"{host} cannot be reached by ssh, though it is not lost")
    residents, before = jobs.Residents(all_three), in_memory()
    with tempfile.TemporaryDirectory(prefix="kp-loss-") as name:
        folder = Path(name)
        elastic = ["--min-np", trial.ranks_of_host, "--max-restarts", 3 * len(trial.losses)]
        logs = ["--log-dir", folder / "out", "--tee"]
        began = time.monotonic()
        program = worlds.arguments(folder, num_epochs, every=EVERY[trial.kept])
        job = jobs.start(all_three, *options(trial), *elastic, *logs, *program)
        thread = threading.Thread(target=strike, args=[all_three, trial, job, residents, chance])
        thread.start()
        try:
            ended = job.wait(MOST_SECONDS, leaves_nothing=False)
            trial.seconds = round(time.monotonic() - began, 1)
            trial.ended = f"status {ended.status}" if ended.status else judged(worlds.weights(folder), expected)
            note(trial, folder / "out")
        except AssertionError as error:
            trial.ended = str(error).splitlines()[0]
        thread.join()
        trial.orphans = len(residents.left(60)) + len(in_memory() - before)
        for host in NAMES:
            all_three.end(host, residents.of(host))


def in_memory() -> set[Path]:
    """What jobs have left in the memory of the hosts."""
    return {path for name in NAMES for path in host_memory.SHARED.glob(f"keras-par-*-{name}")}


def strike(all_three: Hosts, trial: Trial, job: Job, residents: jobs.Residents, chance: random.Random) -> None:
    """Lets the losses happen, as long as the job runs."""
    for loss in trial.losses:
        time.sleep(loss.after)
        if job.process.poll() is not None:
            return
        if loss.what == "host":
            host = chance.choice(NAMES[1 : trial.num_hosts])
            loss.has_happened = bool(set(all_three.pids(host)) - set(residents.of(host)))
            all_three.lose(host, kept=residents.of(host))
            time.sleep(loss.away)
            all_three.plug(host)
        elif victims := worlds.ranks(job):
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(victims).kill()
                loss.has_happened = True


def judged(ours, theirs) -> str:
    """How the last weights compare with those of the job without a loss."""
    if worlds.are_equal(ours, theirs):
        return SAME
    distance = worlds.distance(ours, theirs)
    return EQUAL if distance < worlds.TOLERANCE else f"weights differ by {distance:.1e}"


def note(trial: Trial, folder: Path) -> None:
    """Takes the figures from the run's folder."""
    [end] = of_kind(folder, "end")
    trial.worlds = ", ".join(str(event["num_ranks"]) for event in events(folder) if event["event"] == "world")
    trial.steps_lost = sum(event["steps_lost"] for event in of_kind(folder, "resume"))
    trial.ettr = end["trained_share"]


def show(trials: list[Trial]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("hosts x ranks", "often", "lost after s + away s", "worlds", "steps lost", "ETTR", "s", "ended", "left")
    table = Table(*columns)
    for trial in trials:
        table.add_row(
            f"{trial.num_hosts} x {trial.ranks_of_host}",
            trial.kept,
            ", ".join(map(str, trial.happened)),
            trial.worlds,
            f"{trial.steps_lost}",
            f"{100 * trial.ettr:.0f} %",
            f"{trial.seconds:.0f}",
            trial.ended,
            f"{trial.orphans}",
        )
    Console(width=150).print(table)
    for kept in EVERY:
        own = [trial for trial in trials if trial.kept == kept]
        losses = sum(len(trial.happened) for trial in own)
        well, steps = sum(trial.is_well for trial in own), sum(trial.steps_lost for trial in own)
        share = sum(trial.ettr * trial.seconds for trial in own) / max(sum(trial.seconds for trial in own), 1e-9)
        print(
            f"often to {kept}: {losses} losses; {well} of {len(own)} jobs ended as without a loss; "
            f"{steps / max(losses, 1):.1f} steps lost each; ETTR {100 * share:.0f} %; "
            f"{sum(trial.orphans for trial in own)} processes or folders were left"
        )


if __name__ == "__main__":
    main()
