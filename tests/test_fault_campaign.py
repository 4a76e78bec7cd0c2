"""Jobs with faults drawn at random: each ends, names its fault within the limits of docs/run.md, and leaves nothing."""

import random
import re
import signal
import time

import pytest

from tests import leftovers
from tests.launcher import Job, command_of, program
from tests.patience import here

LIMIT_SECONDS = 60  # of which a fault takes some 25 at most; the rest is a busy machine's
HANG_AFTER = 2.0  # of a quiet machine: so long a rank that only starts slowly is waited for
FAULTS = ("error", "unheard", "exit", "gone", "atexit", "exec", "closed", "fault", "kill", "hang")
PASSES_NOT = ("gone", "atexit", "exec")  # after which a rank cannot return, whatever is to happen at a hang
MOMENTS = (
    *("import", "begin", "input1", "input5", "layer1", "layer4", "step1", "step3", "epoch1", "epoch3", "end"),
    *("evaluate", "predict", "script", "late"),
)
IN_TRAININGS = (
    *("error", "output", "memory", "interrupt", "exit", "gone", "atexit", "exec", "closed", "segmentation", "abort"),
    *("SIGKILL", "SIGSTOP", "SIGTERM", "hang"),
)
STAYS = ("SIGSTOP", "hang")  # for ever, where no other rank waits for this one
FROM_OUTSIDE = {"SIGTERM": 143, "SIGINT": 130, "SIGINT twice": 130, "SIGKILL": -9, "agent": None}


BY_HOROVOD, TRAININGS_BY_HOROVOD = 60, 140  # seeds of jobs that Horovod connects; TensorFlow connects those behind them


def engine_of(draw: random.Random, seed: int, by_horovod: int) -> str:
    """What connects the ranks of a seed."""
    return draw.choice(("mpi", "gloo")) if seed < by_horovod else "tensorflow"


def seeds(count: int, quick: tuple[int, ...]) -> list:
    return [*quick, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(count) if seed not in quick)]


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(BY_HOROVOD + 30, quick=(3, 12, 71)))
def test_a_fault_is_named_and_leaves_nothing(seed, tmp_path):
    draw = random.Random(seed)
    fault, engine, culprit = draw.choice(FAULTS), engine_of(draw, seed, BY_HOROVOD), draw.randrange(2)
    threads, size = draw.choice(("threads", "none")), draw.choice((0, 10, 5000, 200_000))
    asks = draw.choice((None, None, None, signal.SIGTERM))
    on_hang = draw.choice(("report", "abort")) if fault in PASSES_NOT or asks else "abort"
    meetings, temporary = tmp_path / "meetings", tmp_path / "temporary"
    meetings.mkdir()
    temporary.mkdir()
    before = leftovers.in_memory()
    what = [meetings, culprit, draw.randrange(3), fault, threads, size]
    options = ("-np", 2, "--engine", engine, "--hang-after", here(HANG_AFTER), "--on-hang", on_hang)
    job = Job(*options, program("faulty"), *what, TMPDIR=str(temporary))
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
    assert not leftovers.orphans(before, temporary)


def agents(job: Job) -> list:
    """The processes that watch a rank each, and not what started them."""
    found = [process for process in job.processes() if "keras_par.agent" in command_of(process)]
    return [agent for agent in found if "mpirun" not in command_of(agent)[0]]


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(TRAININGS_BY_HOROVOD + 70, quick=(1, 70, 197)))
def test_a_training_with_a_fault_ends_names_it_and_leaves_nothing(seed, tmp_path):
    draw = random.Random(seed)
    ranks, engine = draw.choice((2, 2, 2, 3)), engine_of(draw, seed, TRAININGS_BY_HOROVOD)
    culprit, moment = draw.randrange(ranks), draw.choice(MOMENTS)
    outside = draw.choice((None, None, None, *FROM_OUTSIDE)) if moment not in ("import", "late") else None
    stays = {"script": STAYS, "late": (*STAYS, "exec")}.get(moment, ())
    kinds = [kind for kind in IN_TRAININGS if kind not in stays]
    fault = "outside" if outside else draw.choice(kinds)
    threads, size = draw.choice(("threads", "none")), draw.choice((0, 10, 5000, 200_000, 3_000_000))
    restarts = draw.choice((0, 0, 0, 1)) if not outside else 0
    logs = draw.choice(((), ("--log-dir", tmp_path / "logs"), ("-v",)))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = leftovers.in_memory()
    options = ("-np", ranks, "--engine", engine, "--hang-after", here(HANG_AFTER * 2), "--on-hang", "abort", *logs)
    what = (tmp_path, culprit, moment, fault, size, threads)
    print(*options, "--max-restarts", restarts, *what, outside)
    job = Job(*options, "--max-restarts", restarts, program("faulty_training"), *what, TMPDIR=str(temporary))
    try:
        job.wait_for(tmp_path / "fault")
        if outside == "agent":
            draw.choice(agents(job)).kill()
        elif outside:
            name, _, twice = outside.partition(" ")
            job.signal(getattr(signal, name))
            if twice:
                time.sleep(draw.random())
                job.signal(getattr(signal, name))
    finally:
        ended = job.wait(LIMIT_SECONDS)
    took = ended.end - (tmp_path / "fault").stat().st_mtime
    print(f"took {took:.1f} s", ended.stderr[-3000:])
    if restarts:
        assert ended.status == 0
    elif outside == "agent":
        assert 0 < ended.status < 256
    elif outside:
        assert ended.status == FROM_OUTSIDE[outside]
    else:
        assert ended.status not in (0, 2)
        named = ended.panels[-1]  # behind which a rank that hung may print while it is ended
        assert re.search(rf"[Rr]ank {culprit}\b", named)
        assert "vanished" not in ended.stderr
        if fault in ("error", "atexit", "closed", "output") and moment != "layer1":
            assert "trouble" in named or size > 4000
    assert not leftovers.orphans(before, temporary)
