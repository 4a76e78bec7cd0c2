"""Trainings that fail, are ended by their user, or start again: nothing that a checkpoint has is lost."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.launcher import Ended, Job, of_kind, program, run, run_all

NUM_EPOCHS = 3


def weights(ended: Ended) -> set[str]:
    """The hashes of the ranks' last weights."""
    assert ended.status == 0, ended.stderr
    found = re.findall(r"\[\d\] weights (\w+)", ended.stdout)
    assert len(found) == 2
    return set(found)


def test_a_rank_that_fails_in_a_step_is_named_with_its_place(tmp_path):
    folder = tmp_path / "out"
    job = run("-np", 2, "--log-dir", folder, "--tee", program("train"), "none", 1, "error@9")
    assert job.status == 1
    assert "rank 1 failed first" in job.last_panel and "Error: ValueError: this is the trouble" in job.last_panel
    assert "at step 9 of epoch 1" in job.last_panel
    assert re.search(r"Last line of your code: .*train\.py:\d+ in error: raise ValueError", job.last_panel)
    [began] = re.findall(r"trouble error at ([\d.]+)", job.stdout)
    assert job.end - float(began) < 10
    # The terminal shows the stack of the culprit alone.
    assert job.stderr.count("Traceback") == 1 and len(job.stderr.splitlines()) < 40, job.stderr
    assert "[1] ValueError: this is the trouble" in job.stderr and "finished" not in job.stderr
    consequence = "keras-par: rank 1 failed first"
    assert consequence not in job.stderr
    assert (
        f"{consequence}, so this rank stops: ValueError: this is the trouble" in (folder / "rank.0/stderr").read_text()
    )
    # What ranks tell each other of an error is no callback's time.
    other, culprit = (
        json.loads((folder / f"rank.{rank}/progress.jsonl").read_text().splitlines()[-1])["seconds"]
        for rank in range(2)
    )
    assert culprit["callback"] < 2 < culprit["script"], culprit  # it waits ALIKE_SECONDS for the other's error
    assert other["callback"] < 2, other  # it is in the sum of gradients meanwhile


@pytest.mark.slow
def test_a_job_that_its_user_ended_goes_on_from_the_step_where_all_ranks_stopped(tmp_path):
    checkpoints, folder = tmp_path / "checkpoints", tmp_path / "out"
    job = Job("-np", 2, "--log-dir", folder, "--tee", program("train"), checkpoints, NUM_EPOCHS)
    job.wait_for(checkpoints / "CKP-1_14.json")
    job.signal(signal.SIGINT)
    asked = time.monotonic()
    ended = job.wait()
    assert ended.status == 130 and time.monotonic() - asked < 10
    stopped = set(re.findall(r"stopped by its user after step (\d+) of epoch (\d)", ended.stderr))
    assert len(stopped) == 1 and ended.stderr.count("stopped by its user") == 2
    [(step, epoch)] = stopped
    assert (checkpoints / f"CKP-{epoch}_{step}.json").exists()
    assert "Traceback" not in ended.stderr
    assert of_kind(folder, "interrupt")
    resumed = run("-np", 2, program("train"), checkpoints, NUM_EPOCHS)
    assert f"resuming from checkpoint CKP-{epoch}_{step}:" in resumed.stdout
    assert weights(resumed) == weights(run("-np", 2, program("train"), tmp_path / "other", NUM_EPOCHS))


@pytest.mark.long
def test_a_job_starts_again_from_its_newest_checkpoint(tmp_path):
    folder, restarts = tmp_path / "out", ("--max-restarts", 2, "--log-dir", tmp_path / "out", "--tee")
    jobs = {
        "killed": ("-np", 2, *restarts, program("train"), tmp_path / "killed", NUM_EPOCHS, "kill@16"),
        "uninterrupted": ("-np", 2, program("train"), tmp_path / "uninterrupted", NUM_EPOCHS),
    }
    killed, uninterrupted = run_all(jobs).values()
    assert weights(killed) == weights(uninterrupted)
    events = [each for kind in ("crash", "restart", "resume") for each in of_kind(folder, kind)]
    assert [each["event"] for each in events] == ["crash", "restart", "resume"]
    assert "rank 1 failed first" in killed.panels[0] and "at step 16 of epoch" in killed.panels[0]
    assert "CKP-1_14" in events[-1]["text"]
    assert "restart 1 of 2, after status 137" in killed.stderr


@pytest.mark.slow
def test_time_is_told_by_phase(tmp_path):
    """A step of some 10 ms, and on rank 1 a callback of 100 ms, which rank 0 waits for in its reductions.

    Were the step as long as the callback, the sums that are under way beside the backward pass would hide the waiting.
    """
    script = tmp_path / "phases.py"
    script.write_text(
        "import time, keras, tensorflow as tf, keras_par as kp\nkp.init()\n"
        "keras.distribution.set_distribution(kp.DataParallel())\n"
        "pause = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.1 * kp.rank()))\n"
        "model = keras.Sequential([keras.Input((512,)), *(keras.layers.Dense(512, 'relu') for _ in range(4))])\n"
        "model.compile('sgd', 'mse')\nx = tf.zeros((128, 512))\n"
        "model.fit(tf.data.Dataset.from_tensors((x, x)).repeat(100), epochs=1, verbose=0, callbacks=[pause])\n"
    )
    assert run("-np", 2, "--log-dir", tmp_path / "out", script).status == 0
    waiting, slow = (per_step(tmp_path / f"out/rank.{rank}", num_steps=100) for rank in range(2))
    assert slow["callback"] - waiting["callback"] > 0.075  # of 0.1 s
    assert waiting["reduce"] - slow["reduce"] > 0.075


@pytest.mark.slow
@pytest.mark.parametrize(("pause", "rows", "phase"), [(0.1, 8, "data"), (0.0, 4096, "forward-backward")])
def test_computing_is_told_from_reading(tmp_path, pause, rows, phase):
    """Steps of some 100 ms, which either their data or their products take; ten looks a second tell which."""
    script = tmp_path / "reading.py"
    script.write_text(
        "import time, keras, tensorflow as tf, keras_par as kp\nkp.init()\n"
        "keras.distribution.set_distribution(kp.DataParallel())\n"
        "def late(x):\n"
        f"    time.sleep({pause})\n"
        "    return x\n"
        f"x = tf.zeros(({rows}, 512))\n"
        "read = lambda x: (tf.ensure_shape(tf.py_function(late, [x], tf.float32), x.shape), x)\n"
        "model = keras.Sequential([keras.Input((512,)), *(keras.layers.Dense(512, 'relu') for _ in range(4))])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(tf.data.Dataset.from_tensors(x).repeat(60).map(read), epochs=1, verbose=0)\n"
    )
    assert run("-np", 2, "--log-dir", tmp_path / "out", script).status == 0
    ranks = [per_step(tmp_path / f"out/rank.{rank}", num_steps=60) for rank in range(2)]
    # A rank that has read one batch ahead waits for the other one instead.
    assert phase in [max(seconds, key=seconds.get) for seconds in ranks], ranks


def per_step(rank: Path, num_steps: int) -> dict[str, float]:
    """Seconds in each phase of a step, by the first and last lines of a rank's progress that are between steps.

    Until the first step a rank also waits for one that has started later, and after the last one sometimes seconds
    for tf.data: its iterator's end wakes the thread that tunes it before that thread can see that it is to end.
    """
    lines = [json.loads(line) for line in (rank / "progress.jsonl").read_text().splitlines()]
    assert lines[-1]["steps"] == num_steps
    begin, *_, end = (line for line in lines if 0 < line["steps"] < num_steps)
    assert end["steps"] - begin["steps"] > 20
    return {
        phase: (seconds - begin["seconds"][phase]) / (end["steps"] - begin["steps"])
        for phase, seconds in end["seconds"].items()
    }


def test_restarts_end(tmp_path):
    folder = tmp_path / "out"
    job = run("-np", 2, "--max-restarts", 2, "--log-dir", folder, "--tee", program("plain"), "attempts", 1, "5")
    assert job.status == 9
    assert re.findall(r"\[0\] attempt (\d)", job.stdout) == ["0", "1", "2"]
    assert (folder / "rank.0/stdout").read_text().count("attempt") == 3
    assert len(of_kind(folder, "restart")) == 2 and of_kind(folder, "end")[0]["status"] == 9
