"""Hosts that one machine plays: network namespaces with names and addresses of their own, joined by a cable."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NAMES = ("kp-host-0", "kp-host-1")
CABLE = "kp-cable"  # what each host calls its end
HOSTS_FILES = Path("/etc/netns")


def address(host: int) -> str:
    """Of a host's end of the cable."""
    return f"10.77.0.{host + 1}"


@contextlib.contextmanager
def two_hosts(megabits: int | None = None) -> Iterator[None]:
    """Within it there are two hosts.

    Args:
        megabits: that the cable carries in a second each way, None for what the machine does.

    Raises:
        RuntimeError: this process is not root's.
    """
    if os.geteuid():
        raise RuntimeError("Hosts are network namespaces, which only root may make: start this as root.")
    remove()
    try:
        for name in NAMES:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            hosts = "\n".join(f"{address(host)} {each}" for host, each in enumerate(NAMES))
            (HOSTS_FILES / name).mkdir(parents=True)
            (HOSTS_FILES / name / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}\n")
        first, second = NAMES
        ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE, "netns", second)
        for host, name in enumerate(NAMES):
            ip("-n", name, "address", "add", f"{address(host)}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
            if megabits is not None:
                limit = ["rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms"]
                run(["tc", "-n", name, "qdisc", "add", "dev", CABLE, "root", "tbf", *limit])
        yield
    finally:
        remove()


def remove() -> None:
    """Takes the hosts away, if they are there."""
    for name in NAMES:
        subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
        (HOSTS_FILES / name / "hosts").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (HOSTS_FILES / name).rmdir()


def start(host: int, command: Sequence[str], environment: Mapping[str, str], **options) -> subprocess.Popen:
    """Starts a command on a host, which is called by its name there; `options` are of Popen."""
    named = ["unshare", "--uts", "sh", "-c", f'hostname {NAMES[host]} && exec "$@"', "sh"]
    return subprocess.Popen(["ip", "netns", "exec", NAMES[host], *named, *command], env=dict(environment), **options)


def sent_bytes() -> int:
    """That the host of this process has sent over the cable."""
    line = next(each for each in Path("/proc/self/net/dev").read_text().splitlines() if CABLE in each)
    return int(line.split(":")[1].split()[8])


def ip(*arguments: str) -> None:
    run(["ip", *arguments])


def run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
