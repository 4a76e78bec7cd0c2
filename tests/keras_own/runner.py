"""Starts pytest on Keras's own test files, in one process or on each rank of a job, as often as needed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.ranks.pool import REPOSITORY, environment, mpirun

PATIENCE = 120  # seconds without a test's end after which the one under way is called a hang


def run(files: list[str], kind: str, folder: Path) -> list[dict[str, dict]]:
    """For each rank, each test's outcome and what it said, by its name.

    Args:
        files: below `keras/src`.
        kind: "plain", "solo" or "ranks" (2 of them).
        folder: for what the ranks note.
    """
    num_ranks = 2 if kind == "ranks" else 1
    results: list[dict[str, dict]] = [{} for _ in range(num_ranks)]
    while True:
        folder.mkdir(parents=True)
        done = set.intersection(*(set(result) for result in results))
        (folder / "done").write_text("\n".join(done))
        stacks = run_once(files, kind, folder)
        notes = [read(folder / f"{rank}.jsonl") for rank in range(num_ranks)]
        log = (folder / "log").read_text(errors="replace")[-3000:]
        shutil.rmtree(folder)
        for result, lines in zip(results, notes, strict=True):
            result |= {line["name"]: line for line in lines if "name" in line}
        if not all(results):
            raise RuntimeError(f"no test was run of {files} ({kind}):\n{log}")
        if all(any("finished" in line for line in lines) for lines in notes):
            return results
        begun = {line["begun"] for lines in notes for line in lines if "begun" in line}
        for name in begun:  # of those that did not end on all ranks
            for result in results:
                result.setdefault(name, {"outcome": "hang" if stacks else "ended", "said": stacks or log})
        if not begun - done:
            raise RuntimeError(f"no further test was begun of {files} ({kind}):\n{log}")


def run_once(files: list[str], kind: str, folder: Path) -> str:
    """One job. If no test begins or ends for PATIENCE seconds it is killed, and each rank's stack returned."""
    import keras

    source = Path(keras.__file__).parent / "src"
    launcher = mpirun(2) if kind == "ranks" else []
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            [*launcher, sys.executable, "-m", "pytest", "-q", "-p", "tests.keras_own.plugin", "-p", "no:cacheprovider"]
            + ["-c", str(REPOSITORY / "tests" / "keras_own" / "pytest.ini"), "--rootdir", str(source)]
            + [str(source / file) for file in files],
            env=environment(KERAS_OWN_KIND=kind, KERAS_OWN_FOLDER=str(folder)),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while job.poll() is None:
            time.sleep(0.5)
            newest = max((path.stat().st_mtime for path in folder.glob("*.jsonl")), default=None)
            newest = newest or (folder / "done").stat().st_mtime
            if time.time() - newest > PATIENCE:
                stacks = stacks_of(folder)
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
                return stacks
    return ""


def stacks_of(folder: Path) -> str:
    """Where each rank is, after which its process is killed."""
    pids = [line["pid"] for path in folder.glob("*.jsonl") for line in read(path) if "pid" in line]
    for number in (signal.SIGUSR1, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(1)
    # The main thread, in which tests run, is the last that is shown, its newest call first.
    texts = {path.stem: path.read_text().rpartition("hread 0x")[2][:2000] for path in sorted(folder.glob("*.stacks"))}
    return "\n".join(f"rank {rank}: {text}" for rank, text in texts.items()) or "no rank has come as far as pytest"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
