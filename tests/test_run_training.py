"""Trainings that fail, are ended by their user, or start again: nothing that a checkpoint has is lost."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests import worlds
from tests.launcher import Ended, Job, of_kind, program, run

NUM_EPOCHS = 3


def weights(ended: Ended) -> set[str]:
    """The hashes of the ranks' last weights."""
    assert ended.status == 0, ended.stderr
    found = re.findall(r"\[\d\] weights (\w+)", ended.stdout)
    assert len(found) == 2
    return set(found)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The weights of a training that nothing happens to."""
    return weights(run("-np", 2, program("train"), tmp_path_factory.mktemp("checkpoints"), NUM_EPOCHS))


@pytest.mark.long
@pytest.mark.parametrize(
    ("trouble", "size", "status", "words"),
    [
        ("error", 2, 1, "Error: ValueError: this is the trouble"),
        ("kill", 2, 137, "Somebody sent SIGKILL, a scheduler maybe; memory did not run out"),
        pytest.param(
            "kill", 4, 137, "Somebody sent SIGKILL, a scheduler maybe; memory did not run out", marks=pytest.mark.slow
        ),
        pytest.param("fault", 2, 139, "was ended by signal 11 (SIGSEGV)", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_in_a_step_is_named_with_its_place(trouble, size, status, words):
    job = run("-np", size, program("train"), "none", 1, f"{trouble}@9")
    assert job.status == status
    assert f"rank {size - 1} failed first" in job.last_panel and words in job.last_panel
    assert "at step 9 of epoch 1" in job.last_panel
    [began] = re.findall(rf"trouble {trouble} at ([\d.]+)", job.stdout)
    assert job.end - float(began) < 10
    if trouble == "error":
        assert re.search(r"Last line of your code: .*train\.py:\d+ in error: raise ValueError", job.last_panel)
    if trouble == "fault":
        assert re.search(r"train\.py:\d+ in fault", job.last_panel)


@pytest.mark.slow
def test_a_job_that_its_user_ended_goes_on_from_the_step_where_all_ranks_stopped(uninterrupted, tmp_path):
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
    assert weights(resumed) == uninterrupted


@pytest.mark.long
def test_a_job_starts_again_from_its_newest_checkpoint(uninterrupted, tmp_path):
    folder = tmp_path / "out"
    options = ["--max-restarts", 2, "--log-dir", folder, "--tee"]
    job = run("-np", 2, *options, program("train"), tmp_path / "checkpoints", NUM_EPOCHS, "kill@16")
    assert weights(job) == uninterrupted
    kinds = [
        event["event"] for event in of_kind(folder, "crash") + of_kind(folder, "restart") + of_kind(folder, "resume")
    ]
    assert kinds == ["crash", "restart", "resume"]
    assert "CKP-1_14" in of_kind(folder, "resume")[0]["text"]
    assert "restart 1 of 2, after status 137" in job.stderr


def test_the_launcher_lets_kp_init_choose_the_gpu(tmp_path):
    """TensorFlow takes no more orders about devices once it has made its context, as for a variable."""
    script = tmp_path / "devices.py"
    script.write_text(
        "import keras_par as kp\nfrom keras_par.job import gpu\n"
        "from tensorflow.python.eager import context\ntake = gpu.take\n"
        "def looked_at(communicator):\n"
        "    print('devices are taken:', context.context()._initialized)\n"
        "    take(communicator)\n"
        "gpu.take = looked_at\nkp.init()\nassert context.context()._initialized == (kp.size() > 1)\n"
    )
    for size in (1, 2):
        assert run("-np", size, script).stdout.count("devices are taken: False") == size


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


def test_what_ranks_tell_each_other_of_an_error_is_no_callbacks_time(tmp_path):
    script = tmp_path / "error.py"
    script.write_text(
        "import keras, tensorflow as tf, keras_par as kp\nkp.init()\n"
        "keras.distribution.set_distribution(kp.DataParallel())\n"
        "fails = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch < 9 or 1 / kp.rank())\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\nx = tf.zeros((8, 4))\n"
        "model.fit(tf.data.Dataset.from_tensors((x, x[:, :1])).repeat(10), epochs=1, verbose=0, callbacks=[fails])\n"
    )
    assert run("-np", 2, "--log-dir", tmp_path / "out", script).status == 1
    first, second = (
        json.loads((tmp_path / f"out/rank.{rank}/progress.jsonl").read_text().splitlines()[-1])["seconds"]
        for rank in range(2)
    )
    assert first["callback"] < 2 < first["script"], first  # it waits ALIKE_SECONDS for the other's error
    assert second["callback"] < 2, second  # it is in the sum of gradients meanwhile


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


@pytest.mark.long
def test_a_rank_that_saves_after_an_interrupt_is_left_alone(tmp_path):
    job = Job("-np", 2, program("plain"), "save", 0, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    job.signal(signal.SIGINT)
    assert job.wait(20).status == 130
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_come_until_the_launcher_is_gone_leave_its_status(number, tmp_path):
    job = Job("-np", 2, program("plain"), "sleep", 0, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    while job.process.poll() is None:
        job.signal(number)
        time.sleep(0.002)
    ended = job.wait()
    assert ended.status == 128 + number and ended.stderr.splitlines()[-1].startswith("keras-par: ")


def test_a_job_outside_of_fit_ends_by_one_interrupt(tmp_path):
    job = Job("-np", 2, program("plain"), "sleep", 0, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    job.signal(signal.SIGTERM)
    ended = job.wait(20)
    assert ended.status == 143
    assert ended.stderr.count("KeyboardInterrupt") == 2


def test_ranks_that_get_the_launchers_signal_themselves_have_not_failed(tmp_path):
    """As SLURM's `scancel` sends it, to all processes of a job."""
    job = Job("-np", 2, program("plain"), "sleep", 0, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    ranks = worlds.ranks(job)
    assert len(ranks) == 2
    job.signal(signal.SIGTERM)
    for rank in ranks:
        rank.terminate()
    ended = job.wait(20)
    assert ended.status == 143 and not ended.panels
    assert ended.stderr.splitlines()[-1] == (
        "keras-par: stopped where each rank was, as the ranks got SIGTERM themselves; no checkpoint was written"
    )
