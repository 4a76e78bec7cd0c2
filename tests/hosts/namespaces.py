"""Hosts that one machine plays: network namespaces with names and addresses of their own, joined by a switch."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

SWITCH = "kp-switch"  # a bridge, in a namespace of its own
CABLE = "kp-cable"  # what each host calls its end
FILES = Path("/etc/netns")  # `ip netns exec` shows what is below the host's name there as /etc
ONLY_ROOT = "Hosts are network namespaces, which only root may make: start this as root."


class Hosts:
    """Hosts that are up.

    Args:
        names: what they are called, the first is the user's.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self.switch = f"{names[0]}-switch"  # several sets of hosts may be up at once

    def start(self, host: str, command: Sequence[str], environment: Mapping[str, str], **options) -> subprocess.Popen:
        """Starts a command on a host; `options` are of Popen."""
        return subprocess.Popen([*self.within(host), *command], env=dict(environment), **options)

    def within(self, host: str) -> list[str]:
        """The command that becomes, on a host, the command that follows it."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", host, *named]

    def pids(self, host: str) -> list[int]:
        """All processes of a host."""
        done = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def limit(self, host: str, megabits: int) -> None:
        """Has a host's cable carry no more in a second each way."""
        limit = ["rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms"]
        run("tc", "-n", host, "qdisc", "replace", "dev", CABLE, "root", "tbf", *limit)

    def disturb(self, host: str, milliseconds: float, lost_percent: float) -> None:
        """Has what a host sends come later, and some packets not at all."""
        how = ["delay", f"{milliseconds}ms", "loss", f"{lost_percent}%"]
        run("tc", "-n", host, "qdisc", "replace", "dev", CABLE, "root", "netem", *how)

    def unplug(self, host: str) -> None:
        """Pulls a host's cable."""
        run("ip", "-n", self.switch, "link", "set", f"kp-{self.names.index(host)}", "down")

    def plug(self, host: str) -> None:
        """Puts the cable back."""
        run("ip", "-n", self.switch, "link", "set", f"kp-{self.names.index(host)}", "up")

    def lose(self, host: str, kept: Collection[int] = ()) -> None:
        """Cuts a host's power: nothing of it is sent any more, not even that its connections end.

        Args:
            host: that is lost.
            kept: processes that are there when it is back.
        """
        self.unplug(host)
        self.end(host, kept)

    def end(self, host: str, kept: Collection[int] = ()) -> None:
        """Kills the processes of a host but those."""
        for pid in set(self.pids(host)) - set(kept):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def address(number: int) -> str:
    """Of the end of the cable of the host with that number."""
    return f"10.77.0.{number + 1}"


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Within it there are hosts of these names, which know each other by them.

    Raises:
        RuntimeError: this process is not root's.
    """
    if os.geteuid():
        raise RuntimeError(ONLY_ROOT)
    made = Hosts(names)
    remove(made)
    try:
        run("ip", "netns", "add", made.switch)
        run("ip", "-n", made.switch, "link", "add", SWITCH, "type", "bridge")
        run("ip", "-n", made.switch, "link", "set", SWITCH, "up")
        for number in range(len(names)):
            add(number, made)
        yield made
    finally:
        remove(made)


def add(number: int, made: Hosts) -> None:
    """Makes one host and plugs its cable into the switch."""
    name = made.names[number]
    known = "\n".join(f"{address(each)} {other}" for each, other in enumerate(made.names))
    (FILES / name).mkdir(parents=True)
    (FILES / name / "hosts").write_text(f"127.0.0.1 localhost\n{known}\n")
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    port = f"kp-{number}"
    run("ip", "link", "add", CABLE, "netns", name, "type", "veth", "peer", "name", port, "netns", made.switch)
    run("ip", "-n", name, "address", "add", f"{address(number)}/24", "dev", CABLE)
    run("ip", "-n", name, "link", "set", CABLE, "up")
    run("ip", "-n", made.switch, "link", "set", port, "master", SWITCH, "up")


def remove(made: Hosts) -> None:
    """Takes the hosts away with all that runs on them, if they are there."""
    for name in (*made.names, made.switch):
        made.end(name)
        subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
    for name in made.names:
        (FILES / name / "hosts").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (FILES / name).rmdir()


def sent_bytes() -> int:
    """That the host of this process has sent over its cable."""
    line = next(each for each in Path("/proc/self/net/dev").read_text().splitlines() if CABLE in each)
    return int(line.split(":")[1].split()[8])


def run(*command: str) -> None:
    """Runs a command that must succeed."""
    subprocess.run(command, check=True)
