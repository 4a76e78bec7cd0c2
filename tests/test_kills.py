"""SIGKILL at random moments: what was completed is never lost, and what is damaged is never taken."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_par.checkpoint import folder as folders
from tests.jobs import LAUNCHERS, write_script
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment

SCRIPT = """
    import os, sys, time
    import keras, numpy as np
    import keras_par as kp

    folder, pause, result, epochs = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    kp.init()
    keras.utils.set_random_seed(5)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(350, 64)).astype("float32"), generator.integers(0, 10, 350)

    class Pause(keras.callbacks.Callback):
        told = False
        def on_train_batch_end(self, batch, logs=None):
            if not self.told and kp.rank() == 0:
                print("training", flush=True)
            self.told = True
            time.sleep(pause)

    print(f"pid {os.getpid()}", flush=True)
    with kp.DataParallel().scope():
        layers = [keras.layers.Dense(400, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
        model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(400, "relu"), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=[
        kp.callbacks.Resume(folder), kp.callbacks.RankCheckpoint(folder, every=2, keep=2), Pause(),
    ])
    if kp.rank() == 0:
        model.save_weights(result)
        print("done", flush=True)
"""


def start(script: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*LAUNCHERS["mpirun"](2), sys.executable, script, *arguments],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_somewhere(
    job: subprocess.Popen, moments: random.Random, folder: Path, is_aimed: bool
) -> tuple[str, str | None, bool]:
    """Kills a random rank of a job a random time after its first step, and if it `is_aimed` in the next write.

    Returns:
        What the job printed, the newest checkpoint right after the kill, and whether one was being written.
    """
    printed = ""
    assert job.stdout is not None
    while "training" not in printed:
        line = job.stdout.readline()
        assert line, printed
        printed += line
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", printed)]
    assert len(pids) == 2, printed
    time.sleep(moments.uniform(0.0, 0.5))
    while is_aimed and job.poll() is None and not unfinished(folder):
        time.sleep(0.0005)
    os.kill(moments.choice(pids), signal.SIGKILL)
    printed += job.communicate(timeout=PATIENCE)[0]
    assert job.returncode != 0
    found = folders.newest_whole(folder, "CKP")
    return printed, found and found.manifest.name, unfinished(folder)


def unfinished(folder: Path) -> bool:
    """True if a checkpoint is being written, or was when the job died."""
    with contextlib.suppress(FileNotFoundError):  # a folder that goes while it is searched
        files = {path.stem for path in folder.rglob("*.safetensors")} - {path.stem for path in folder.glob("*.json")}
        return bool(files) or any(folder.rglob("*.writing"))
    return False


def chain_of_kills(folder: Path, num_kills: int, seed: int) -> None:
    """Kills a run again and again, lets it end, and compares it with one that was left alone."""
    script = write_script(folder, SCRIPT)
    checkpoints = folder / "ckpt"
    moments = random.Random(seed)
    expected, in_the_middle = None, 0
    num_epochs = str(10 + num_kills)  # longer than all kills let it live
    for number in range(num_kills):
        job = start(script, str(checkpoints), "0.02", str(folder / "unused.weights.h5"), num_epochs)
        printed, newest, writing = kill_somewhere(job, moments, checkpoints, is_aimed=number % 2 == 0)
        resumed = re.findall(r"resuming from checkpoint (\S+):", printed)
        assert resumed == ([expected] if expected else []), printed
        expected, in_the_middle = newest, in_the_middle + writing
    assert in_the_middle >= max(1, num_kills // 10), "hardly any kill hit a write"
    ends = []
    for name in ("ckpt", "whole"):
        job = start(script, str(folder / name), "0", str(folder / f"{name}.weights.h5"), num_epochs)
        printed, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0 and "done" in printed, printed
        ends.append(weights(folder / f"{name}.weights.h5"))
    assert ends[0].keys() == ends[1].keys() and len(ends[0]) > 6
    for name, value in ends[0].items():
        assert (value == ends[1][name]).all(), name


def weights(path: Path) -> dict:
    """Every array in a file of weights, by its place."""
    import h5py

    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.long
def test_writing_survives_kills_at_any_moment(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "tests.kill_writer", str(tmp_path), "50", "1"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stderr
    match = re.fullmatch(r"kills: (\d+), in the middle of a write: (\d+), checkpoints: (\d+)\n", result.stdout)
    assert match and min(map(int, match.groups())) >= 50, result.stdout


@pytest.mark.slow
def test_a_job_survives_kills(tmp_path):
    chain_of_kills(tmp_path, num_kills=3, seed=1)


@pytest.mark.slow
def test_a_job_survives_many_kills(tmp_path):
    chain_of_kills(tmp_path, num_kills=50, seed=2)
