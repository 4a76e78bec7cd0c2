"""A process that has left its job joins it again over Gloo, and says in one sentence why it cannot elsewhere."""

import re

import pytest

from tests.jobs import write_script
from tests.launcher import run

SCRIPT = """
    import sys
    import keras, numpy as np, keras_par as kp

    def fit(*callbacks):
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((32, 4)), np.ones((32, 1)), batch_size=8, verbose=0, callbacks=callbacks)

    for number in range(2 if "again" in sys.argv else 0):
        kp.init()
        fit()
        print(f"trained {number} on {kp.rank()} of {kp.size()}", flush=True)
        kp.shutdown()
    kp.init()
    rank = kp.rank()
    fails = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch < 2 or rank == 0 or 1 / 0)
    for name, call in {"first": lambda: fit(fails), "second": fit, "third": kp.rank, "fourth": kp.init}.items():
        try:
            call()
        except Exception as error:
            print(f"{name} on {rank}: {type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.parametrize("how", [("mpi",), pytest.param(("gloo", "again"), marks=pytest.mark.long)], ids=" ".join)
def test_a_rank_that_failed_within_a_step_says_so_whenever_ranks_are_needed_again(how, tmp_path):
    """Over Gloo in the third job of its process, which ranks have left and joined before."""
    engine, *again = how
    job = run("-np", 2, "--engine", engine, write_script(tmp_path, SCRIPT), *again)
    assert job.status == 0, job.stdout + job.stderr
    trained = re.findall(r"trained (\d) on (\d) of 2", job.stdout)
    assert sorted(trained) == [(number, rank) for number in "01" for rank in "01" if again], job.stdout
    own = r"RuntimeError: keras-par: this rank failed before other ranks did \(ZeroDivisionError: division by zero\)"
    assert "first on 1: ZeroDivisionError: division by zero" in job.stdout
    for name in ("second", "third", "fourth"):
        assert re.search(f"{name} on 1: {own}, .*: let the error end", job.stdout)
    for name in ("first", "second"):
        assert re.search(
            f"{name} on 0: RuntimeError: keras-par: rank 1 failed first, .*: ZeroDivisionError", job.stdout
        )


@pytest.mark.long
def test_ranks_that_have_left_cannot_join_again_over_mpi(tmp_path):
    job = run("-np", 2, "--engine", "mpi", write_script(tmp_path, SCRIPT), "again")
    trained = re.findall(r"trained (\d) on (\d) of 2", job.stdout)
    assert job.status == 1 and sorted(trained) == [("0", "0"), ("0", "1")], job.stdout + job.stderr
    assert "has left its job by kp.shutdown(), and MPI starts only once in a process" in job.stdout + job.stderr
