"""Hosts that one machine plays: network namespaces with names and addresses of their own, joined by a switch."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from keras_par.base import host_memory

SWITCH = "kp-switch"  # a bridge, in a namespace of its own
CABLE = "kp-cable"  # what each host calls its end
FILES = Path("/etc/netns")  # `ip netns exec` shows what is below the host's name there as /etc


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

    def limit(self, host: str, megabits: int, burst: str = "256kb", milliseconds: int = 50) -> None:
        """Has a host's cable carry no more in a second each way, and lose what would wait longer than so long.

        Args:
            host: whose cable it is.
            megabits: in a second.
            burst: that may be faster; what comes at once and is longer loses packets where little may wait.
            milliseconds: that a packet may wait.
        """
        limit = ["rate", f"{megabits}mbit", "burst", burst, "latency", f"{milliseconds}ms"]
        number = self.names.index(host)
        run("tc", "-n", host, "qdisc", "replace", "dev", CABLE, "root", "tbf", *limit)
        run("tc", "-n", self.switch, "qdisc", "replace", "dev", f"kp-{number}", "root", "tbf", *limit)

    def free(self, host: str) -> int:
        """Takes the limit away; returns the number of packets that were lost by it."""
        ends = (host, CABLE), (self.switch, f"kp-{self.names.index(host)}")
        lost = sum(num_lost(*end) for end in ends)
        for space, end in ends:
            run("tc", "-n", space, "qdisc", "delete", "dev", end, "root")
        return lost

    def part(self, *hosts: str) -> None:
        """Keeps hosts from reaching each other, while all others reach them."""
        self._isolate(hosts, "on")

    def join(self, *hosts: str) -> None:
        """Lets them reach each other again."""
        self._isolate(hosts, "off")

    def _isolate(self, hosts: Sequence[str], how: str) -> None:
        for host in hosts:
            port = f"kp-{self.names.index(host)}"
            run("ip", "-n", self.switch, "link", "set", "dev", port, "type", "bridge_slave", "isolated", how)

    def address(self, host: str) -> str:
        """Of a host on the switch."""
        return address(self.names.index(host))

    def name_itself(self, host: str, own_address: str) -> None:
        """Has a host find this address for its own name, as its /etc/hosts may say."""
        write_names(host, {**dict(zip(self.names, map(self.address, self.names), strict=True)), host: own_address})

    def unplug(self, host: str) -> None:
        """Pulls a host's cable."""
        run("ip", "-n", self.switch, "link", "set", f"kp-{self.names.index(host)}", "down")

    def plug(self, host: str) -> None:
        """Puts the cable back."""
        run("ip", "-n", self.switch, "link", "set", f"kp-{self.names.index(host)}", "up")

    def lose(self, host: str, kept: Collection[int] = ()) -> None:
        """Cuts a host's power: nothing of it is sent any more, not even that its connections end; memory is empty.

        Args:
            host: that is lost.
            kept: processes that are there when it is back.
        """
        self.unplug(host)
        self.end(host, kept)
        for folder in host_memory.SHARED.glob(f"keras-par-*-{host}"):
            shutil.rmtree(folder)

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
        raise RuntimeError("Hosts are network namespaces, which only root may make: start this as root.")
    made = Hosts(names)
    remove(made)
    try:
        run("ip", "netns", "add", made.switch)
        run("ip", "-n", made.switch, "link", "add", SWITCH, "type", "bridge")
        run("ip", "-n", made.switch, "link", "set", SWITCH, "up")
        for name in names:
            add(made, name)
        yield made
    finally:
        remove(made)


def add(made: Hosts, name: str) -> None:
    """Makes one host and plugs its cable into the switch."""
    (FILES / name).mkdir(parents=True, exist_ok=True)
    made.name_itself(name, made.address(name))
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    port = f"kp-{made.names.index(name)}"
    run("ip", "link", "add", CABLE, "netns", name, "type", "veth", "peer", "name", port, "netns", made.switch)
    run("ip", "-n", name, "address", "add", f"{made.address(name)}/24", "dev", CABLE)
    run("ip", "-n", name, "link", "set", CABLE, "up")
    run("ip", "-n", made.switch, "link", "set", port, "master", SWITCH, "up")


def write_names(host: str, addresses: Mapping[str, str]) -> None:
    """Writes a host's /etc/hosts, also where it is mounted already."""
    known = "".join(f"{each} {name}\n" for name, each in addresses.items())
    (FILES / host / "hosts").write_text(f"127.0.0.1 localhost\n{known}")


def remove(made: Hosts) -> None:
    """Takes the hosts away with all that runs on them and their files, also those that a killed run has left."""
    for name in (*made.names, made.switch):
        made.end(name)
        subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
    for name in made.names:
        shutil.rmtree(FILES / name, ignore_errors=True)


def sent_bytes() -> int:
    """That the host of this process has sent over its cable."""
    line = next(each for each in Path("/proc/self/net/dev").read_text().splitlines() if CABLE in each)
    return int(line.split(":")[1].split()[8])


def num_lost(space: str, cable: str) -> int:
    """The packets that a limit has not let pass."""
    shown = subprocess.run(["tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", cable], stdout=subprocess.PIPE)
    return json.loads(shown.stdout)[0]["drops"]


def run(*command: str) -> None:
    """Runs a command that must succeed."""
    subprocess.run(command, check=True)
