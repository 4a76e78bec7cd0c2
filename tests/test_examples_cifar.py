"""The examples on images of CIFAR-10's shape: they run on 2 ranks, which end with the same weights."""

import math

import pytest

from keras_par.comm import native
from tests.jobs import start, write_script

NUMBER = r"(\d+\.\d+|\d+)"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder in which the first run of an example writes its data set, and later ones find it."""
    return str(tmp_path_factory.mktemp("data"))


def check(job) -> None:
    """Asserts that both ranks took part, agree, and have trained on the data they name."""
    assert job.status == 0, job.output
    assert len(job.find(r"data: generated images, not CIFAR-10, 2000 rows in 16 file shard\(s\)")) == 1, job.output
    hashes = dict(job.find(r"rank (\d) of 2: weights ([0-9a-f]{16})"))
    assert hashes.keys() == {"0", "1"}, job.output
    assert hashes["0"] == hashes["1"], job.output
    epochs = job.find(rf"epoch (\d)/2 step 2/2: loss {NUMBER}, accuracy {NUMBER}, (\d+) rows, .*slowest rank [01]: ")
    assert [(epoch, rows) for epoch, _, _, rows in epochs] == [("1", "32"), ("2", "32")], job.output
    assert all(0 < float(loss) < 100 for _, loss, _, _ in epochs), job.output
    [loss] = job.find(rf"generated images, not CIFAR-10: test loss {NUMBER}, test accuracy {NUMBER}")
    assert math.isfinite(float(loss[0]))


@pytest.mark.slow
def test_resnet50_trains_on_two_ranks(data_dir):
    check(start("mpirun", 2, "examples/resnet50.py", "--smoke", "--data-dir", data_dir))


@pytest.mark.slow
def test_mobilenet_starts_from_the_weights_of_rank_0(data_dir):
    job = start("mpirun", 2, "examples/mobilenet.py", "--smoke", "--data-dir", data_dir)
    check(job)
    initial = dict(job.find(r"rank (\d) of 2: initial weights ([0-9a-f]{16})"))
    assert initial.keys() == {"0", "1"}
    assert initial["0"] != initial["1"]


@pytest.mark.slow
def test_each_rank_reads_its_own_rows_and_draws_its_own_crops(data_dir, tmp_path):
    """On one image for all rows, so that what ranks see differs by crop and flip alone; and on the data set."""
    script = write_script(
        tmp_path,
        f"""
        import sys
        sys.path.insert(0, "examples")
        sys.argv = ["resnet50.py", "--smoke", "--data-dir", {data_dir!r}]
        import cifar, hashlib, tensorflow as tf, keras_par as kp
        from keras_par.comm import world

        kp.init()
        args = cifar.arguments("", 8)
        rows = kp.data.load_tfds(cifar.prepared(args)[0], "train", as_supervised=True)
        own = sorted(hashlib.sha256(image.numpy().tobytes()).hexdigest() for image, _ in rows)
        everyone = world.current().all_gather_object(own, "test.rows")
        same = tf.random.stateless_uniform([32, 32, 3], [1, 2], 0, 256, tf.int32)
        batches = cifar.augmented(tf.data.Dataset.from_tensors((same, 0)).repeat(16), args)
        crops = [batch.numpy().tobytes() for batch, _ in batches.take(4)]
        digests = world.current().all_gather_object(hashlib.sha256(crops[0]).hexdigest(), "test.crops")
        print(
            f"rank {{kp.rank()}}: {{[len(part) for part in everyone]}} rows, "
            f"{{len(set(everyone[0]) & set(everyone[1]))}} shared, {{len(set(digests))}} sets of crops, "
            f"{{len(set(crops))}} batches differ",
            flush=True,
        )
        """,
    )
    job = start("mpirun", 2, script)
    assert job.status == 0, job.output
    said = job.find(r"rank (\d): (\[.*?\]) rows, (\d+) shared, (\d) sets of crops, (\d) batches differ")
    assert sorted(said) == [(rank, "[1000, 1000]", "0", "2", "4") for rank in ("0", "1")], job.output


@pytest.mark.slow
def test_the_example_in_one_process_takes_the_same_data(data_dir):
    job = start("python", 1, "examples/mobilenet.py", "--smoke", "--data-dir", data_dir)
    assert job.status == 0, job.output
    assert len(job.find(r"rank 0 of 1: weights [0-9a-f]{16}")) == 1
    assert len(job.find(r"epoch \d/2 step 2/2: loss .*, 16 rows, ")) == 2, job.output


@pytest.mark.slow
def test_resnet50_finds_its_strategy(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_PAR_CACHE", str(tmp_path / "wheels"))  # beside which the machine's measures are kept
    native.library()
    job = start("mpirun", 2, "examples/resnet50.py", "--smoke", "--auto", "--data-dir", data_dir)
    assert "Search 'dynamic'" in job.output and "why not" in job.output
    assert (tmp_path / "machine.toml").is_file()
    check(job)
