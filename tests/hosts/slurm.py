"""SLURM on hosts that one machine plays: a controller on the first, where its user is, and a node on each other."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hosts.namespaces import FILES, Hosts, address
from tests.patience import comes_to_be

CONTROLLER, NODE, KEEPER = PROGRAMS = ("/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged")
NOT_INSTALLED = "there is no SLURM: apt-get install slurm-wlm munge"
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
CPUS = 2  # of each node, whatever the machine has
REQUEUE_SECONDS = 10  # that a job waits before it starts again
LOOK_SECONDS = 5  # from one look at waiting jobs to the next, which is a minute elsewhere
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # what a host has of its own


@contextlib.contextmanager
def cluster(hosts: Hosts) -> Iterator[None]:
    """Within it `sbatch`, `srun` and `salloc` work on all hosts, of which the first has no node.

    The machine's own settings, keys and sockets stay as they are.

    Raises:
        RuntimeError: SLURM or munge is missing, or a node does not come up.
    """
    if not all(map(os.path.exists, PROGRAMS)):
        raise RuntimeError(NOT_INSTALLED)
    login, *nodes = hosts.names
    daemons: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory(prefix="kp-slurm-") as name:
        folder = Path(name)
        try:
            for host in hosts.names:
                (FILES / host / "slurm").mkdir(exist_ok=True)  # a run that was killed leaves it
                (FILES / host / "slurm" / "slurm.conf").write_text(settings(folder, hosts.names))
                (FILES / host / "slurm" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
            daemons.append(start(hosts, login, keeper(folder), folder))
            wait_for((folder / "munge").exists, "munged", folder)
            daemons.append(start(hosts, login, [CONTROLLER, "-D"], folder))
            daemons.extend(start(hosts, node, [NODE, "-D"], folder) for node in nodes)
            wait_for(lambda: states(hosts) == ["idle"] * len(nodes), "SLURM", folder)
            yield
        finally:
            for daemon in reversed(daemons):
                end(daemon)
            for host in hosts.names:
                shutil.rmtree(FILES / host / "slurm", ignore_errors=True)


def keeper(folder: Path) -> list[str]:
    """The command of munged, which hosts reach by a socket in the folder; makes its key."""
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    files = {"socket": "munge", "log-file": "munged.log", "pid-file": "munged.pid", "seed-file": "munged.seed"}
    named = [f"--{option}={folder / file}" for option, file in files.items()]
    return [KEEPER, "--foreground", "--force", f"--key-file={key}", *named]


def settings(folder: Path, names: Sequence[str]) -> str:
    """The text of slurm.conf."""
    login, *nodes = names
    lines = [
        "ClusterName=kp",
        f"SlurmctldHost={login}({address(0)})",
        "SlurmUser=root",
        f"AuthInfo=socket={folder / 'munge'},cred_expire={REQUEUE_SECONDS}",
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={folder}/spool.%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd.%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/affinity",
        f"SchedulerParameters=sched_interval={LOOK_SECONDS},bf_interval={LOOK_SECONDS}",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "MpiDefault=none",
        "KillWait=5",
        "ReturnToService=2",
        *(f"NodeName={name} NodeAddr={address(number)} CPUs={CPUS}" for number, name in enumerate(names) if number),
        f"PartitionName=all Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join(lines) + "\n"


def start(hosts: Hosts, host: str, command: list[str], folder: Path) -> subprocess.Popen:
    """Starts a daemon, which logs into the folder, and dies with this process."""
    with (folder / f"{Path(command[0]).name}.{host}.log").open("w") as log:
        return hosts.start(
            host, [*DIES_WITH_PARENT, *command], ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def states(hosts: Hosts) -> list[str]:
    """Of the nodes, by sinfo's words; none while there is no controller."""
    done = subprocess.run(
        [*hosts.within(hosts.names[0]), "sinfo", "--noheader", "--Node", "--format=%T"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def wait_for(condition, name: str, folder: Path) -> None:
    """Returns once the condition holds.

    Raises:
        RuntimeError: it did not in time; with what the daemons have logged.
    """
    if not comes_to_be(condition):
        logs = "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("*.log")))
        raise RuntimeError(f"{name} did not come up\n{logs}")


def end(daemon: subprocess.Popen) -> None:
    """Ends a daemon, by force if it does not leave."""
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
