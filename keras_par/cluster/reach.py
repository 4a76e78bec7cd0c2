"""Says which hosts are this machine, and which others can have ranks, before a launcher waits for them in vain."""

import contextlib
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from keras_par.cluster.hosts import ClusterError

QUICK = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SSH_SECONDS = 20
NOT_THERE = 1  # the status of `test`; ssh's own is 255
NO_PYTHON = f"there is no {sys.executable}"


@dataclass(frozen=True)
class Ssh:
    """How ssh gets to other hosts, where that is not as its own settings say.

    Args:
        port: on which the hosts' servers listen.
        identity: the file of the key.
    """

    port: int | None = None
    identity: Path | None = None

    @property
    def arguments(self) -> list[str]:
        """Those of ssh, and of horovodrun."""
        port = [] if self.port is None else ["-p", str(self.port)]
        return [*port, *([] if self.identity is None else ["-i", str(self.identity)])]

    @property
    def command(self) -> list[str]:
        """What begins a command that goes to a host, and asks nobody for a password."""
        return ["ssh", *QUICK, *self.arguments]


AS_SET = Ssh()


def is_local(host: str) -> bool:
    """True if `host` is this machine, by its name or by an address of one of its network interfaces."""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(is_own(family, address) for family, _, _, _, address in found)


def is_own(family: int, address: tuple) -> bool:
    """True if an interface of this machine has the address: only then can a socket be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def require_reachable(hosts: list[str], ssh: Ssh = AS_SET) -> None:
    """Looks for this Python on every host that is not this machine, on all at the same time.

    Raises:
        ClusterError: ssh does not get there, or finds no such Python; names the first such host in the list.
    """
    for host, reason in obstacles(hosts, ssh).items():
        if reason == NO_PYTHON:
            raise ClusterError(
                f"keras-par: host {host} has no {sys.executable}: install the same environment there at the same path, "
                "or let the hosts share its folder."
            )
        by_hand = shlex.join(["ssh", *ssh.arguments, host, "true"])
        raise ClusterError(
            f"keras-par: host {host} cannot be reached ({reason}): check its name, and that '{by_hand}' works "
            "without a password."
        )


def obstacles(hosts: list[str], ssh: Ssh) -> dict[str, str]:
    """Why hosts cannot have ranks, for those that cannot; all are tried at the same time."""
    others = list(dict.fromkeys(hosts))
    with ThreadPoolExecutor(min(len(others), 64) or 1) as threads:
        found = zip(others, threads.map(lambda each: obstacle(each, ssh), others), strict=True)
        return {host: reason for host, reason in found if reason is not None}


def obstacle(host: str, ssh: Ssh) -> str | None:
    """Why `host` cannot have ranks, in ssh's words; None if it can or is this machine."""
    if is_local(host):
        return None
    try:
        result = run([*ssh.command, host, shlex.join(["test", "-x", sys.executable])])
    except FileNotFoundError:
        return "ssh is not installed here"
    except subprocess.TimeoutExpired:
        return f"ssh got no answer within {SSH_SECONDS} s"
    if result.returncode == 0:
        return None
    if result.returncode == NOT_THERE:
        return NO_PYTHON
    return (result.stderr.strip().splitlines() or [f"ssh ended with status {result.returncode}"])[-1].strip()


def execute(commands: Mapping[str, str], ssh: Ssh) -> None:
    """Has the shells of all hosts that can be reached execute commands at the same time, and waits for their ends.

    Args:
        commands: of hosts. What they print is lost, and who fails says nothing.
        ssh: how to get there.
    """
    with ThreadPoolExecutor(min(len(commands), 64) or 1) as threads:
        list(threads.map(lambda host: _execute(host, commands[host], ssh), commands))


def _execute(host: str, command: str, ssh: Ssh) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run([*(["sh", "-c"] if is_local(host) else [*ssh.command, host]), command])


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs what prints to nobody, for SSH_SECONDS at most; what it complains of is kept."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=SSH_SECONDS,
    )
