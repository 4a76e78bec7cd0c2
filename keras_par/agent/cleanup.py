"""Removes what outlives processes that were killed: mpirun that waits for them, its files, segments and semaphores."""

import contextlib
import os
import re
import shlex
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil

from keras_par.base.rank_variables import OPEN_MPI

SHARED = Path("/dev/shm")
SESSION = "OMPI_MCA_orte_jobfam_session_dir"  # Open MPI's folder of a job on this host
ENGINES = ("mpirun", "orterun", "orted")  # what starts agents and, once ranks are killed, sleeps before it ends
SESSIONS = re.compile(r"pid\.\d+|jf\.(?P<daemons>\d+)")  # what mpirun calls that folder, and what its daemons do
AROUND = re.compile(r"ompi\..+")  # the folder of a user's jobs on a host, which holds these
TRACKER = "resource_tracker import main"  # joblib has one of its own
COMPILATION = "keras_par.comm.native"  # in a session of its own, which ends by itself in some seconds


def is_tracker(process: psutil.Process) -> bool:
    """True for Python's process that unlinks the semaphores and shared memory of others once these are gone."""
    return is_called(process, TRACKER)


def is_called(process: psutil.Process, name: str) -> bool:
    """True if a name is part of a process's command line."""
    with contextlib.suppress(psutil.Error):
        return any(name in word for word in process.cmdline())
    return False


def started() -> list[psutil.Process]:
    """All that this process and its children have started, but for what compiles a library for later jobs."""
    children = psutil.Process().children(recursive=True)
    compiling = {session_of(child) for child in children if is_called(child, COMPILATION)}
    compiling -= {os.getsid(0), *(child.pid for child in psutil.Process().children())}  # where ranks compile at once
    return [child for child in children if session_of(child) not in compiling]


def session_of(process: psutil.Process) -> int:
    """The session of a process, 0 if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return 0


def remove_segment(environ: Mapping[str, str]) -> None:
    """Unlinks the shared memory by which Open MPI carried a rank's messages, which the rank did not unlink itself."""
    job, rank = environ.get("PMIX_NAMESPACE", ""), environ.get(OPEN_MPI.local_rank)
    if job.isdecimal() and rank is not None:
        for segment in SHARED.glob(f"vader_segment.*.{os.geteuid()}.{int(job):x}.{rank}"):
            segment.unlink(missing_ok=True)


def remove_session(folder: str | None) -> None:
    """Removes the folder in which an mpirun that was killed, or its daemon on this host, kept its job's files.

    As mpirun does itself, it also removes the folder around it, unless other jobs have theirs there.
    """
    if folder is not None and SESSIONS.fullmatch(Path(folder).name):
        shutil.rmtree(folder, ignore_errors=True)
        if AROUND.fullmatch(Path(folder).parent.name):
            with contextlib.suppress(OSError):
                Path(folder).parent.rmdir()


def end_of_daemon(folder: str | None) -> str | None:
    """The shell's command that kills mpirun's daemon on another host, where no agent is left, and removes its folder.

    It would go on for a minute: Open MPI's daemons sleep before they kill, even where nobody is left.

    Args:
        folder: of its job's files, which has the number of the job in its name.
    """
    found = SESSIONS.fullmatch(Path(folder or "").name)
    if folder is None or found is None or found["daemons"] is None:
        return None
    job = int(found["daemons"]) << 16
    around = f"; rmdir {shlex.quote(str(Path(folder).parent))}" if AROUND.fullmatch(Path(folder).parent.name) else ""
    return f"pkill -KILL -u $(id -u) -f 'orte[d] .*ess_base_jobid {job} '; rm -rf {shlex.quote(folder)}{around}"


def end_engine(environ: Mapping[str, str]) -> None:
    """Kills the mpirun that started this agent, or its daemon: nobody else does once the launcher is gone.

    Its ssh ends too, which else waits for as long as TCP does where the other host has been lost.
    """
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process().parent()
        if parent is not None and Path(parent.cmdline()[0]).name in ENGINES:
            connections = [child for child in parent.children() if child.name() == "ssh"]
            parent.send_signal(signal.SIGKILL)
            remove_session(environ.get(SESSION))
            for connection in connections:
                with contextlib.suppress(psutil.NoSuchProcess):
                    connection.kill()
