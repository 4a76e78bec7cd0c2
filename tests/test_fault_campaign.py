"""Jobs with faults drawn at random: each ends, names its fault within the limits of docs/run.md, and leaves nothing."""

import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.launcher import Job, program

HANG_AFTER = 2.0
LIMIT_SECONDS = 60  # of which a fault takes some 25 at most; the rest is a busy machine's
FAULTS = ("error", "unheard", "exit", "gone", "atexit", "exec", "closed", "fault", "kill", "hang")
PASSES_NOT = ("gone", "atexit", "exec")  # after which a rank cannot return, whatever is to happen at a hang
SEEDS = [3, 12, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(200) if seed not in (3, 12))]
SHARED = Path("/dev/shm")


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_is_named_and_leaves_nothing(seed, tmp_path):
    draw = random.Random(seed)
    fault, engine, culprit = draw.choice(FAULTS), draw.choice(("mpi", "gloo")), draw.randrange(2)
    threads, size = draw.choice(("threads", "none")), draw.choice((0, 10, 5000, 200_000))
    asks = draw.choice((None, None, None, signal.SIGTERM))
    on_hang = draw.choice(("report", "abort")) if fault in PASSES_NOT or asks else "abort"
    meetings, temporary = tmp_path / "meetings", tmp_path / "temporary"
    meetings.mkdir()
    temporary.mkdir()
    before = set(SHARED.iterdir())
    what = [meetings, culprit, draw.randrange(3), fault, threads, size]
    job = Job(
        *("-np", 2, "--engine", engine, "--hang-after", HANG_AFTER, "--on-hang", on_hang, program("faulty"), *what),
        TMPDIR=str(temporary),
    )
    if asks:
        job.wait_for(meetings / f"{1 - culprit}.0")
        time.sleep(draw.random() * 2)
        job.signal(asks)
    ended = job.wait(LIMIT_SECONDS)
    assert ended.status != 0, ended.stderr
    if not asks:
        assert re.search(rf"[Rr]ank {culprit}\b", ended.last_panel), ended.stderr
        assert "vanished" not in ended.stderr
    assert len(ended.stderr) < 3_000_000
    left = [each for each in set(SHARED.iterdir()) - before if "vader" not in each.name]
    assert not [each for each in temporary.rglob("*") if each.is_file() or each.is_socket()], left
