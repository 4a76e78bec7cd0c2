"""OpenSSH servers on hosts that one machine plays, and the key by which their user goes from one to the other."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hosts.namespaces import FILES, Hosts, run

SERVER = "/usr/sbin/sshd"
NOT_INSTALLED = "there is no OpenSSH server: apt-get install openssh-server"
START_SECONDS = 10
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # what a host has of its own


@contextlib.contextmanager
def servers(hosts: Hosts) -> Iterator[None]:
    """Within it each host has a server, and `ssh NAME` works on each host without a password.

    The user's own settings and keys stay as they are.

    Raises:
        RuntimeError: there is no OpenSSH server.
    """
    if not Path(SERVER).exists():
        raise RuntimeError(NOT_INSTALLED)
    Path("/run/sshd").mkdir(exist_ok=True)  # which the server wants to be there
    with tempfile.TemporaryDirectory(prefix="kp-ssh-") as folder:
        settings, running = settings_in(Path(folder)), []
        try:
            for name in hosts.names:
                (FILES / name / "ssh").mkdir()
                (FILES / name / "ssh" / "ssh_config").write_text(client_settings(Path(folder)))
                running.append(hosts.start(name, [SERVER, "-D", "-f", str(settings)], ENVIRONMENT))
            for name in hosts.names:
                wait_for(hosts, name)
            yield
        finally:
            for server in running:
                server.kill()
                server.wait()
            for name in hosts.names:
                shutil.rmtree(FILES / name / "ssh", ignore_errors=True)


def settings_in(folder: Path) -> Path:
    """Makes the keys of the hosts and of the user; the server's settings."""
    for key in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    path = folder / "sshd_config"
    lines = [
        f"HostKey {folder / 'host'}",
        f"AuthorizedKeysFile {folder / 'user.pub'}",
        f"Port {port()}",
        "PermitRootLogin yes",
        "PasswordAuthentication no",
        "StrictModes no",
        "PidFile none",
        "LogLevel QUIET",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def client_settings(folder: Path) -> str:
    """What a host's `ssh` knows."""
    lines = [f"IdentityFile {folder / 'user'}", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    return "\n".join(["Host *", *lines, "LogLevel ERROR"]) + "\n"


def port() -> int:
    """That of ssh."""
    return socket.getservbyname("ssh")


def wait_for(hosts: Hosts, name: str) -> None:
    """Returns once `ssh` reaches a host."""
    deadline = time.monotonic() + START_SECONDS
    while hosts.start(hosts.names[0], ["ssh", name, "true"], ENVIRONMENT, stderr=subprocess.DEVNULL).wait():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the OpenSSH server of {name} did not answer")
        time.sleep(0.05)
