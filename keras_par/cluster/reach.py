"""Says which hosts are this machine, and which others ssh reaches, before a launcher waits for them in vain."""

import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from keras_par.cluster.hosts import ClusterError

QUICK = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SSH_SECONDS = 20


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
    """Tries to run a command on every host that is not this machine, all at the same time.

    Raises:
        ClusterError: ssh does not get there; names the first such host in the list and what ssh says.
    """
    for host, reason in obstacles(hosts, ssh).items():
        by_hand = shlex.join(["ssh", *ssh.arguments, host, "true"])
        raise ClusterError(
            f"keras-par: host {host} cannot be reached ({reason}): check its name, and that '{by_hand}' works "
            "without a password."
        )


def obstacles(hosts: list[str], ssh: Ssh) -> dict[str, str]:
    """Why ssh does not reach hosts, for those that it does not reach; all are tried at the same time."""
    others = list(dict.fromkeys(hosts))
    with ThreadPoolExecutor(min(len(others), 64) or 1) as threads:
        found = zip(others, threads.map(lambda each: obstacle(each, ssh), others), strict=True)
        return {host: reason for host, reason in found if reason is not None}


def obstacle(host: str, ssh: Ssh) -> str | None:
    """Why ssh does not reach `host`, in ssh's words; None if it does or the host is this machine."""
    if is_local(host):
        return None
    try:
        result = subprocess.run(
            ["ssh", *QUICK, *ssh.arguments, host, "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=SSH_SECONDS,
        )
    except FileNotFoundError:
        return "ssh is not installed here"
    except subprocess.TimeoutExpired:
        return f"ssh got no answer within {SSH_SECONDS} s"
    if result.returncode == 0:
        return None
    return (result.stderr.strip().splitlines() or [f"ssh ended with status {result.returncode}"])[-1].strip()
