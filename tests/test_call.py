"""`kp.run` starts ranks from a script or a notebook: results in order, output, errors, an interrupt, nothing left."""

import glob
import json
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

import keras_par as kp
from tests import call_tasks, launcher
from tests.jobs import write_script
from tests.launcher import Job
from tests.patience import PATIENCE, comes_to_be


def script(folder: Path, text: str) -> str:
    """A script that has no `if __name__ == "__main__"`."""
    return write_script(folder, text)


def call(path: str, *arguments: str, seconds: float = PATIENCE, **variables: str) -> launcher.Ended:
    """Runs a script in one process, and waits until it and all that it started are gone, also their folder."""
    before = folders()
    ended = Job(path, *arguments, launcher=(), **variables).wait(seconds)
    left = folders() - before  # of this, or of tests that another process runs just now
    assert comes_to_be(lambda: not left & folders())
    return ended


def folders() -> set[str]:
    return set(glob.glob(f"{tempfile.gettempdir()}/.keras-par-*"))


def found(ended: launcher.Ended) -> dict:
    """What a script has told, which is its last line."""
    assert ended.status == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


RESULTS = """
    import json, os, sys
    import keras_par as kp

    factor, engine = 10, {engine!r}

    class Pair:
        def __init__(self, rank, values):
            self.rank, self.values = rank, values

    def train(begin, step=1):
        import numpy as np
        kp.init()
        print("this is a rank")
        print("and this its other stream", file=sys.stderr)
        return Pair(kp.rank(), begin + step * factor * np.arange(3) + kp.rank())

    pairs = kp.run(train, (5,), {{"step": 2}}, np=2, engine=engine)
    tell = {{"ranks": [each.rank for each in pairs], "values": [each.values.tolist() for each in pairs]}}
    tell["kinds"] = [type(each) is Pair for each in pairs]
    tell["lambda"] = kp.run(lambda: os.environ["HOW_MANY"], np=3, engine=engine, env={{"HOW_MANY": "three"}})
    tell["heavy"] = [name for name in ("tensorflow", "keras", "horovod") if name in sys.modules]
    print(json.dumps(tell))
"""


@pytest.mark.parametrize(
    "engine", ["mpi", *(pytest.param(each, marks=pytest.mark.long) for each in ("gloo", "tensorflow"))]
)
def test_results_come_in_the_order_of_the_ranks(engine, tmp_path):
    ended = call(script(tmp_path, RESULTS.format(engine=engine)))
    tell = found(ended)
    assert tell["ranks"] == [0, 1] and tell["kinds"] == [True, True]
    assert tell["values"] == [[5, 25, 45], [6, 26, 46]]
    assert tell["lambda"] == ["three"] * 3
    assert tell["heavy"] == [], "the caller loads neither TensorFlow nor Horovod"
    assert {"[0] this is a rank", "[1] this is a rank"} <= set(ended.stdout.splitlines())
    assert {"[0] and this its other stream", "[1] and this its other stream"} <= set(ended.stderr.splitlines())
    assert "2 ranks finished in" in ended.stderr


TRAINING = """
    import json, sys
    import keras, numpy as np, tensorflow as tf
    import keras_par as kp
    from keras_par.comm import world

    rows = np.random.default_rng(5).normal(size=(70, 4)).astype("float32")  # the caller's own, which ranks are sent
    tf.reduce_sum(rows).numpy()  # TensorFlow's threads are there
    begin = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])  # which ranks have before they call anything

    def train(strategy, begin):
        kp.init()
        keras.utils.set_random_seed(3)
        if strategy:
            keras.distribution.set_distribution(kp.DataParallel())
        model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.build((None, 4))
        model.layers[0].set_weights(begin.get_weights())
        return model.fit(rows, rows.sum(1), batch_size=16, epochs=3, verbose=0), kp.size(), world.current().engine

    def told(history, size, engine):
        weights = [each.tolist() for each in history.model.get_weights()]
        return {"loss": history.history["loss"], "weights": weights, "size": size, "engine": engine}

    of_ranks, alone = kp.run(train, [True, begin], engine=sys.argv[1]), train(False, begin)
    print(json.dumps({"ranks": [told(*each) for each in of_ranks], "alone": told(*alone)}))
"""


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mpi", "tensorflow"])
def test_ranks_train_as_one_process_also_where_the_caller_has_begun_tensorflow(engine, tmp_path):
    """Histories come back with their models."""
    tell = found(call(script(tmp_path, TRAINING), engine))
    assert [(each["size"], each["engine"]) for each in tell["ranks"]] == [(2, engine)] * 2
    assert tell["alone"]["size"] == 1
    assert tell["ranks"][0] == tell["ranks"][1] and len(tell["ranks"][0]["weights"]) == 4
    assert tell["ranks"][0]["loss"] == pytest.approx(tell["alone"]["loss"], rel=1e-5)


FAILURES = """
    import json, sys, threading
    import keras_par as kp

    lock, tell = threading.Lock(), {}

    def fails():
        kp.init()
        if kp.rank() == 1:
            raise ValueError("this is the trouble")
        kp.barrier()

    def uses_a_lock():
        return lock.locked()

    def yields():
        return (each for each in ())

    class OfARank:
        def __reduce__(self):
            return int, ("no number",)

    def leaves():
        sys.exit(0)

    def calls():
        kp.run(leaves)

    for each in (fails, uses_a_lock, yields, OfARank, leaves, calls, 7):
        try:
            kp.run(each, env={"ENGINE": "any"})
        except (RuntimeError, TypeError) as error:
            tell[getattr(each, "__name__", "number")] = [type(error).__name__, str(error)]
    print(json.dumps(tell))
"""


@pytest.mark.long
def test_failures_raise_the_sentence_of_the_launcher(tmp_path):
    path = script(tmp_path, FAILURES)
    ended = call(path)
    tell = found(ended)
    kind, text = tell["fails"]
    assert kind == "RuntimeError" and text.startswith("keras-par: rank 1 failed first\nRank 1 on host ")
    assert "\nError: ValueError: this is the trouble\n" in text
    assert f'\nLast line of your code: {path}:10 in fails: raise ValueError("this is the trouble")\n' in text
    assert "[1] ValueError: this is the trouble" in ended.stderr.splitlines()
    kind, text = tell["uses_a_lock"]
    assert kind == "TypeError" and "uses_a_lock (script.py:13) cannot be sent to the ranks (TypeError: " in text
    kind, text = tell["yields"]
    assert kind == "RuntimeError" and "yields (script.py:16) returned a generator, which cannot be sent back" in text
    assert "all ranks failed alike" in text
    assert "what rank 0 returned cannot be read here (ValueError: invalid literal" in tell["OfARank"][1]
    assert "rank 0 ended with status 0 before its function returned" in tell["leaves"][1]
    assert "Error: RuntimeError: keras-par: kp.run starts ranks, but this process is a rank itself" in tell["calls"][1]
    assert tell["number"] == ["TypeError", "keras-par: 7 is no function: give the function that each rank shall call."]


def test_a_rank_starts_no_ranks(ranks):
    reason = "starts ranks, but this process is a rank itself (OMPI_COMM_WORLD_RANK is set)"
    for said in ranks(2).run(call_tasks.refused):
        assert [each.split(": ")[1] for each in said] == [f"kp.run {reason}", f"kp.ray.run {reason}"]


INTERRUPTED = """
    import pathlib, sys, time
    import keras_par as kp
    from tests.launcher import rank_of_this_process

    folder, joins = pathlib.Path(sys.argv[1]), "joins" in sys.argv

    def waits():
        if joins:
            kp.init()
        (folder / f"ready.{rank_of_this_process()}").touch()
        time.sleep(100)

    try:
        kp.run(waits, engine=sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(kp.run(lambda: 3))
"""


@pytest.mark.long
@pytest.mark.parametrize("how", [("mpi", "joins"), ("gloo",)], ids=" ".join)
def test_an_interrupt_ends_the_ranks_and_raises_in_the_caller(how, tmp_path):
    job = Job(script(tmp_path, INTERRUPTED), tmp_path, *how, launcher=())
    job.wait_until_ready(tmp_path)
    job.signal(signal.SIGINT)
    ended = job.wait(30)
    assert ended.status == 0 and ended.stdout.splitlines() == ["interrupted", "[3, 3]"], ended.stderr
    assert "stopping all ranks after the step under way" in ended.stderr


def test_sigterm_ends_the_caller_once_the_ranks_are_gone(tmp_path):
    job = Job(script(tmp_path, INTERRUPTED), tmp_path, "mpi", launcher=())
    job.wait_until_ready(tmp_path)
    words = [word for each in psutil.Process(job.process.pid).children(recursive=True) for word in each.cmdline()]
    [folder] = {Path(word).parent for word in words if "/.keras-par-" in word}
    assert folder.is_dir()
    job.signal(signal.SIGTERM)
    assert job.wait(30).status == -signal.SIGTERM
    assert not folder.exists()


def test_another_thread_than_the_main_one_may_call(tmp_path):
    text = "import threading, keras_par as kp\nfound = []\n"
    text += "thread = threading.Thread(target=lambda: found.extend(kp.run(lambda: 'done')))\n"
    ended = call(script(tmp_path, f"{text}thread.start()\nthread.join()\nprint(found)\n"))
    assert ended.stdout.splitlines()[-1] == "['done', 'done']", ended.stderr


@pytest.mark.parametrize("number", [0, -1, 2.5, "2", None, True, 10**31, float("nan")], ids=repr)
def test_what_is_no_number_of_ranks_is_refused(number):
    with pytest.raises(
        ValueError, match=r"keras-par: np=.* is no number of ranks: give a whole number of at least 1\."
    ):
        kp.run(print, np=number)


def test_a_log_and_a_number_that_is_none(tmp_path):
    text = f"import keras_par as kp\nkp.run(lambda: print('so'), np=2, log_dir={str(tmp_path / 'log')!r})\n"
    ended = call(script(tmp_path, f"{text}kp.run(print, np=0)\n"))
    assert ended.status == 1 and "ValueError: keras-par: np=0 is no number of ranks" in ended.stderr
    assert [(tmp_path / f"log/rank.{rank}/stdout").read_text() for rank in (0, 1)] == ["so\n", "so\n"]
    assert {"[0] so", "[1] so"} <= set(ended.stdout.splitlines())


def test_an_engine_that_there_is_not_is_refused():
    with pytest.raises(RuntimeError, match=r"^keras-par: there is no engine nccl: set KERAS_PAR_ENGINE to"):
        kp.run(print, env={"KERAS_PAR_ENGINE": "nccl"})
