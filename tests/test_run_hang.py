"""Ranks that make no progress are found, named, and shown with their stacks; nothing here waits for a collective."""

import re
import signal
import time

import pytest

from keras_par.launch.supervisor import GRACE_SECONDS
from tests.launcher import Ended, Job, of_kind, program, run_all

HANG_AFTER = 3.0
NOTICED_AFTER = HANG_AFTER + 6.0  # beats come each second, and a stopped rank is waited for when it gives no stack
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]

# What passes by itself: where it is, what is said, and a line of the culprit's stack.
PASSING = {
    "input": (6, "is in its input pipeline (phase data)", r"train\.py:\d+ in rows"),
    "loop": (12, "is in a callback (phase callback) at step 12 of epoch 1", r"train\.py:\d+ in loop"),
    "stop": (
        18,
        "is stopped by a signal (SIGSTOP or SIGTSTP) in phase callback at step 18 of epoch 1",
        "it gives none",
    ),
}


def began(ended: Ended, trouble: str) -> float:
    """When a trouble began, in seconds since 1970."""
    [when] = re.findall(rf"trouble {trouble} at ([\d.]+)", ended.stdout)
    return float(when)


@pytest.mark.parametrize("size", SIZES)
def test_the_rank_that_holds_up_the_others_is_named(size, tmp_path):
    """Three hangs that pass, and a fourth that does not: a collective that one rank skips. Ctrl-C ends the job."""
    culprit, folder = size - 1, tmp_path / "out"
    troubles = [*(f"{name}@{step}" for name, (step, _, _) in PASSING.items()), "skip@24"]
    job = Job(
        "-np", size, "--hang-after", HANG_AFTER, "--log-dir", folder, "--tee", program("train"), "none", 1, *troubles
    )
    job.wait_for(folder / "events.jsonl")
    job.wait_until(lambda: any("different code" in event["text"] for event in of_kind(folder, "hang")))
    noticed = time.time()
    job.signal(signal.SIGINT)
    ended = job.wait()
    assert ended.status == 130 and ended.end - noticed < NOTICED_AFTER  # though ranks come to no step to stop after
    assert "run different code from step 24 of epoch 1 on" in ended.panels[-1]

    hangs = [event for event in of_kind(folder, "hang") if event["rank"] == culprit]
    for name, (_, words, frame) in PASSING.items():
        [hang] = [event for event in hangs if words in event["text"]]
        assert f"rank {culprit} {words}" in hang["text"]
        assert HANG_AFTER - 1 < hang["time"] - began(ended, name) < NOTICED_AFTER
        assert re.search(frame, hang["stacks"][str(culprit)]), hang["stacks"]
        healthy = {rank: stack for rank, stack in hang["stacks"].items() if rank != str(culprit)}
        assert len(healthy) == 1 and "train.py" in next(iter(healthy.values()))
        assert any(f"hang: rank {culprit}" in panel and words in panel for panel in ended.panels)
    assert len(of_kind(folder, "recovered")) >= 3

    skipped = next(event for event in of_kind(folder, "hang") if "different code" in event["text"])
    assert noticed - began(ended, "skip") < NOTICED_AFTER
    assert f"rank {culprit} waits in 'kp.gradients.0.0' at step 25 of epoch 1" in skipped["text"]
    waiting = "rank 0 waits" if size == 2 else "ranks 0, 1 and 2 wait"
    assert f"{waiting} in 'kp.barrier' at step 24 of epoch 1" in skipped["text"]
    if size > 2:
        assert skipped["rank"] == culprit
    healthy = [stack for rank, stack in skipped["stacks"].items() if rank != str(culprit)]
    assert len(healthy) == 1 and re.search(r"train\.py:\d+ in skip", healthy[0])


@pytest.mark.parametrize("size", SIZES)
def test_a_hang_ends_the_job_if_that_is_wished(size, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import time\nfrom tests.launcher import rank_of_this_process as rank\n"
        "time.sleep(1000 * (rank() == 1))\nimport keras_par as kp\nkp.init()\n"
    )
    options = ("--hang-after", HANG_AFTER + 2, "--on-hang", "abort")  # a first step takes its time
    parts = ("-np", size, *options, program("train"), "none", 1, "part@5")
    part, late = run_all({"part": parts, "late": ("-np", 2, *options, script)}).values()
    assert part.status == late.status == 124
    assert "run different code from step 5 of epoch 1 on" in part.last_panel
    assert "'kp.barrier'" in part.last_panel and "'kp.broadcast.0'" in part.last_panel
    assert re.search(r"train\.py:\d+ in part", part.last_panel)
    assert part.end - began(part, "part") < NOTICED_AFTER + 8
    assert "Rank 1 has not come to kp.init(); rank 0 waits in 'kp.init'." in late.last_panel


@pytest.mark.long
def test_ranks_that_save_after_an_interrupt_are_left_to_it(tmp_path):
    """Longer than failing ranks would be, outside of fit and in it, where one waits for another, which is a hang."""
    folder, script = tmp_path / "out", tmp_path / "script"
    script.mkdir()
    options = ["--hang-after", GRACE_SECONDS + 2, "--on-hang", "abort", "--log-dir", folder, "--tee"]
    job = Job("-np", 2, *options, program("train"), tmp_path, 9, "save@1")
    job.wait_for(tmp_path / "CKP-1_14.json")
    other = Job("-np", 2, program("plain"), "save", 0, script)
    other.wait_until_ready(script)
    for each in (job, other):
        each.signal(signal.SIGINT)
    job.wait_until(lambda: of_kind(folder, "hang"))
    for each in (tmp_path, script):
        (each / "saved").touch()
    ended = job.wait()
    assert ended.status == 130 and ended.stdout.count("trouble saved") == 2
    assert "The job goes on" in ended.panels[-1]
    assert not of_kind(folder, "crash")
    found = re.fullmatch(
        r"keras-par: stopped after step (\d+) of epoch (\d+) on all ranks, by SIGINT; "
        rf"the newest checkpoint is CKP-(\d+)_(\d+) in {tmp_path}.*",
        ended.stderr.splitlines()[-1],
    )
    assert found and found.group(1, 2) == found.group(4, 3), ended.stderr
    assert other.wait(20).status == 130 and (script / "has saved").exists()
