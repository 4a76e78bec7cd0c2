"""OpenSSH servers on hosts that one machine plays, and the key by which their user goes from one to the other."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.hosts.namespaces import FILES, Hosts, run
from tests.patience import comes_to_be

SERVER = "/usr/sbin/sshd"
NOT_INSTALLED = "there is no OpenSSH server: apt-get install openssh-server"
# Of sessions. Bash, which this tells to be within another shell, does not read the user's ~/.bashrc: what it starts may
# take long, or leave a lock where a test kills it.
PLAIN_SHELL = "SHLVL=1"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # what a host has of its own


@contextlib.contextmanager
def servers(hosts: Hosts) -> Iterator[Path]:
    """Within it each host has a server, and `ssh NAME` works on each host without a password.

    The user's own settings and keys stay as they are.

    Returns:
        The folder with the keys.

    Raises:
        RuntimeError: there is no OpenSSH server.
    """
    if not Path(SERVER).exists():
        raise RuntimeError(NOT_INSTALLED)
    Path("/run/sshd").mkdir(exist_ok=True)  # which the server wants to be there
    with tempfile.TemporaryDirectory(prefix="kp-ssh-") as folder, contextlib.ExitStack() as stack:
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{key}")
        for name in hosts.names:
            (FILES / name / "ssh").mkdir()
            stack.callback(shutil.rmtree, FILES / name / "ssh")
            (FILES / name / "ssh" / "ssh_config").write_text(client_settings(Path(folder)))
            stack.enter_context(server(hosts, name, Path(folder), port()))
        yield Path(folder)


@contextlib.contextmanager
def server(
    hosts: Hosts,
    host: str,
    keys: Path,
    port: int,
    lines: Sequence[str] = (),
    covers: Mapping[Path, Path] | None = None,
) -> Iterator[None]:
    """Within it a host has a server on a port.

    Args:
        hosts: of which it is one.
        host: its name.
        keys: the folder with the files `host` and `user.pub`.
        port: of the server.
        lines: more settings of it; those named first count, so that a SetEnv must have PLAIN_SHELL, too.
        covers: what its sessions see in place of a file or a folder, which other sessions see as it is.
    """
    settings = keys / f"sshd_config.{host}.{port}"
    common = [f"HostKey {keys / 'host'}", f"AuthorizedKeysFile {keys / 'user.pub'}", "PasswordAuthentication no"]
    common += ["KbdInteractiveAuthentication no"]  # which PAM would ask for
    common += [
        f"SetEnv {PLAIN_SHELL}",
        f"Port {port}",
        "PermitRootLogin yes",
        "StrictModes no",
        "PidFile none",
        "LogLevel QUIET",
    ]
    settings.write_text("".join(f"{line}\n" for line in (*lines, *common)))
    mounts = [f"mount --bind {other} {path}" for path, other in (covers or {}).items()]
    start = " && ".join([*mounts, f"exec {SERVER} -D -f {settings}"])
    process = hosts.start(host, ["sh", "-c", start], ENVIRONMENT)
    try:
        wait_for(hosts, host, port)
        yield
    finally:
        process.kill()
        process.wait()


def client_settings(folder: Path) -> str:
    """What a host's `ssh` knows."""
    lines = [f"IdentityFile {folder / 'user'}", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    return "\n".join(["Host *", *lines, "LogLevel ERROR"]) + "\n"


def port() -> int:
    """That of ssh."""
    return socket.getservbyname("ssh")


def wait_for(hosts: Hosts, host: str, port: int) -> None:
    """Returns once a server answers."""
    greet = f"exec 3<>/dev/tcp/{hosts.address(host)}/{port} && head -c 4 <&3"
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if not comes_to_be(lambda: hosts.start(host, ["bash", "-c", greet], ENVIRONMENT, **options).wait() == 0):
        raise RuntimeError(f"the OpenSSH server of {host} did not answer")
