"""Runs `keras-par doctor`'s self-test as a job like any other, ends it if it hangs, and judges what ranks noted."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_par.doctor.installed import Installed, describe_end, job_environment

PROGRAM = ("-m", "keras_par.job.selftest")
RANK_SECONDS = 30  # for each rank: 5 s of work where it has a core, more where ranks share cores or a slow disk
ENDING_SECONDS = 60  # for the launcher to end all ranks
COMPILE_SECONDS = 120  # which takes some seconds
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
    why_not = compile_library()
    begin = time.monotonic()
    options = ["-np", str(ranks), "--engine", engine, "--log-dir", str(folder / "log")]
    command = [sys.executable, "-P", "-m", "keras_par.launch", *options, *PROGRAM, str(folder)]
    variables = {"HOROVOD_CYCLE_TIME": str(cycle_time), "CUDA_VISIBLE_DEVICES": ""}
    variables = job_environment(installed.commands["mpirun"]) | variables
    status, output = watch(command, variables, folder, ranks * RANK_SECONDS)
    records = [read_record(folder / f"rank.{rank}.json") for rank in range(ranks)]
    problem = judge(records, status, output)
    if problem:
        problem = f"{problem}; all output is in {folder}"
    else:
        shutil.rmtree(folder, ignore_errors=True)
    facts: dict[str, Any] = {"process_sets_right": all(each.get("process_sets", False) for each in records)}
    for kind in ("", "shared_"):
        facts[f"{kind}sums_right"] = all(each.get(f"{kind}sums", False) for each in records)
        facts[f"{kind}messages"] = [speed(message) for message in records[0].get(f"{kind}messages", [])]
    why = records[0].get("no_shared_memory")
    facts |= {"problem": problem, "no_shared_memory": why and (why_not or why)}
    return Outcome(engine, ranks, cycle_time, round(time.monotonic() - begin, 1), **facts)


def compile_library() -> str | None:
    """Compiles the library of shared memory where it is not there yet; what is said if that cannot be done."""
    try:
        command = [sys.executable, "-P", "-m", "keras_par.comm.native"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the compiler had not ended after {COMPILE_SECONDS} s"
    said = done.stderr.strip().splitlines()
    return said[-1].removeprefix("keras-par: ").rstrip(".") if done.returncode and said else None


def watch(command: list[str], variables: dict[str, str], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Runs a job, which is ended after some seconds, with all output in `folder`.

    Returns its status, None if it had to be ended, and what its ranks had printed by then, and its launcher in the end.
    """
    log = folder / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            files = [*sorted(folder.glob("log/rank.*/std*")), *([] if process.returncode is None else [log])]
            return process.returncode, "\n".join(path.read_text(errors="replace") for path in files)
        finally:
            process.terminate()  # upon which the launcher ends all ranks with what they have started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS)
            process.kill()
            process.wait()


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
    lines = [line.strip() for line in output.splitlines() if not NOISE.match(line.strip())]
    for pattern in (r"^[\w.]*(Error|Exception)\b", r"(?i)\berror\b|not (found|enough)|fail|signal", r"\w"):
        for line in reversed(lines) if pattern == r"\w" else lines:
            if re.search(pattern, line):
                return line
    return ""
