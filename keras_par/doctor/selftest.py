"""Starts the ranks of `keras-par doctor`'s self-test, ends them if they hang, and judges what they noted."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from keras_par.doctor.installed import Installed, describe_end, job_environment

PROGRAM = (sys.executable, "-m", "keras_par.job.selftest")
# Each rank writes to a file of its own: launchers mix what ranks write at the same time within lines.
WITH_OWN_OUTPUT = ("sh", "-c", 'exec "$@" > "$0/output.$$" 2>&1')
MARK = "KERAS_PAR_SELF_TEST"  # a variable that all processes of one self-test inherit, to find and end them by
GRACE_SECONDS = 8  # for what starts ranks to end their ranks and remove files in /tmp and /dev/shm
RANK_SECONDS = 30  # for each rank: 5 s of work where it has a core, more where ranks share cores or a slow disk
NOISE = re.compile(r"[IW]\d{4} |WARNING: All log messages")  # TensorFlow's


@dataclass(frozen=True)
class Message:
    """How long an all-reduce of `bytes` takes, and how many megabytes (1e6 bytes) of it that is in a second."""

    bytes: int
    microseconds: float
    megabytes_per_second: float


@dataclass(frozen=True)
class Outcome:
    """What a self-test found; `problem` says in a few words what went wrong, and where all output is."""

    engine: str
    ranks: int
    cycle_time: float  # HOROVOD_CYCLE_TIME, milliseconds
    seconds: float
    sums_right: bool
    process_sets_right: bool
    messages: list[Message]
    problem: str | None
    shared_sums_right: bool = False  # those through the host's shared memory
    shared_messages: list[Message] = field(default_factory=list)
    no_shared_memory: str | None = None  # why there are none


def run(engine: str, installed: Installed, ranks: int, cycle_time: float) -> Outcome:
    """Runs the self-test with `ranks` ranks on this host and `cycle_time` milliseconds for HOROVOD_CYCLE_TIME."""
    folder = Path(tempfile.mkdtemp(prefix="keras-par-doctor-"))
    begin = time.monotonic()
    command = [*launch_command(engine, installed, ranks), *WITH_OWN_OUTPUT, str(folder), *PROGRAM, str(folder)]
    log = folder / "output"
    status, launcher_output = watch(command, environment(installed, cycle_time), log, ranks * RANK_SECONDS)
    outputs = [path.read_text(errors="replace") for path in sorted(folder.glob("output.*"))]
    records = [read_record(folder / f"rank.{rank}.json") for rank in range(ranks)]
    problem = judge(records, status, "\n".join([*outputs, launcher_output]))
    if problem:
        problem = f"{problem}; all output is in {folder}"
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        engine=engine,
        ranks=ranks,
        cycle_time=cycle_time,
        seconds=round(time.monotonic() - begin, 1),
        sums_right=all(each.get("sums", False) for each in records),
        process_sets_right=all(each.get("process_sets", False) for each in records),
        messages=[speed(message) for message in records[0].get("messages", [])],
        problem=problem,
        shared_sums_right=all(each.get("shared_sums", False) for each in records),
        shared_messages=[speed(message) for message in records[0].get("shared_messages", [])],
        no_shared_memory=records[0].get("no_shared_memory"),
    )


def launch_command(engine: str, installed: Installed, ranks: int) -> list[str]:
    """The command that starts `ranks` ranks on this host, however few cores it has."""
    if engine == "gloo":
        return [sys.executable, "-P", "-m", "keras_par.launch.gloo", "-H", ",".join(["localhost"] * ranks), "--"]
    command = [str(installed.commands["mpirun"]), "-np", str(ranks)]
    if not installed.has_open_mpi:
        return command
    command += ["--host", f"localhost:{ranks}", "--oversubscribe", "--bind-to", "none"]
    return [*command, "--mca", "mpi_yield_when_idle", "1", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def environment(installed: Installed, cycle_time: float) -> dict[str, str]:
    """The variables of the self-test's processes."""
    variables = job_environment(installed.commands["mpirun"])
    return variables | {"HOROVOD_CYCLE_TIME": str(cycle_time), "CUDA_VISIBLE_DEVICES": "", MARK: uuid.uuid4().hex}


def watch(command: list[str], variables: dict[str, str], log: Path, seconds: float) -> tuple[int | None, str]:
    """Runs `command` with its output in `log`; returns its status, None if it did not end, and that output.

    No process that it started is left: what still runs after the end, or after `seconds`, is ended.
    """
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:  # such as a script whose first line names a Python that has moved
        return 127, f"{type(error).__name__}: {error.strerror}: {command[0]}"
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode, log.read_text(errors="replace")
    finally:
        end(process, variables[MARK])


def end(process: subprocess.Popen, mark: str) -> None:
    """Ends `process`, which first may tidy up, and kills all that carry `mark`, wherever they went."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    while found := [each for each in psutil.process_iter() if carries(each, mark)]:
        for each in found:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(found, timeout=1)
    process.wait()


def carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except psutil.Error:
        return False


def read_record(path: Path) -> dict[str, Any]:
    """What a rank noted; a rank that left nothing was still loading TensorFlow."""
    return json.loads(path.read_text()) if path.exists() else {"stage": "loading TensorFlow"}


def speed(message: dict[str, Any]) -> Message:
    return Message(message["bytes"], message["microseconds"], round(message["bytes"] / message["microseconds"], 3))


def judge(records: list[dict[str, Any]], status: int | None, output: str) -> str | None:
    """What went wrong on some rank, None if nothing did."""
    if status != 0:
        ending = f"it hung for {RANK_SECONDS * len(records)} s" if status is None else describe_end(status)
        stages = ", ".join(f"rank {rank} was {record['stage']}" for rank, record in enumerate(records))
        said = telling_line(output)
        return f"{ending} while {stages}" + (f" ({said})" if said else "")
    for rank, record in enumerate(records):
        if not record.get("process_sets"):
            return f"the sum over a process set is wrong on rank {rank}"
        if not record.get("sums"):
            return f"the sum of an all-reduce is wrong on rank {rank}"
        if record.get("shared_sums") is False:
            return f"the sum through shared memory is wrong on rank {rank}"
    return None


def telling_line(output: str) -> str:
    """The line of a failed job's output that says most: an exception, else what is called an error, else the last."""
    lines = [re.sub(r"^\[\d+(,\d+)?\]<std(out|err)>:", "", line).strip() for line in output.splitlines()]
    lines = [line for line in lines if not NOISE.match(line)]
    for pattern in (r"^[\w.]*(Error|Exception)\b", r"(?i)\berror\b|not (found|enough)|fail|signal", r"\w"):
        for line in reversed(lines) if pattern == r"\w" else lines:
            if re.search(pattern, line):
                return line
    return ""
