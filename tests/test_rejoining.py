"""A process that has left its job joins it again over Gloo, and says in one sentence why it cannot elsewhere."""

import re

import pytest

from tests.jobs import write_script
from tests.launcher import run


@pytest.mark.parametrize("engine", ["mpi", pytest.param("gloo", marks=pytest.mark.long)])
def test_a_rank_that_failed_within_a_step_says_so_whenever_ranks_are_needed_again(engine, tmp_path):
    script = write_script(
        tmp_path,
        """
        import keras, numpy as np, keras_par as kp
        kp.init()

        def fit(*callbacks):
            with kp.DataParallel().scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            model.fit(np.ones((32, 4)), np.ones((32, 1)), batch_size=8, verbose=0, callbacks=callbacks)

        rank = kp.rank()
        fails = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch < 2 or rank == 0 or 1 / 0)
        for name, call in {"first": lambda: fit(fails), "second": fit, "third": kp.rank, "fourth": kp.init}.items():
            try:
                call()
            except Exception as error:
                print(f"{name} on {rank}: {type(error).__name__}: {error}", flush=True)
        """,
    )
    job = run("-np", 2, "--engine", engine, script)
    assert job.status == 0, job.stdout + job.stderr
    own = r"RuntimeError: keras-par: this rank failed before other ranks did \(ZeroDivisionError: division by zero\)"
    assert "first on 1: ZeroDivisionError: division by zero" in job.stdout
    for name in ("second", "third", "fourth"):
        assert re.search(f"{name} on 1: {own}, .*: let the error end", job.stdout)
    for name in ("first", "second"):
        assert re.search(
            f"{name} on 0: RuntimeError: keras-par: rank 1 failed first, .*: ZeroDivisionError", job.stdout
        )


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_ranks_that_have_left_join_again_over_gloo(engine, tmp_path):
    script = write_script(
        tmp_path,
        """
        import numpy as np, keras, keras_par as kp
        for number in range(3):
            kp.init()
            with kp.DataParallel().scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            model.fit(np.ones((32, 4)), np.ones((32, 1)), batch_size=8, verbose=0)
            print(f"trained {number} on {kp.rank()} of {kp.size()}", flush=True)
            kp.shutdown()
        """,
    )
    job = run("-np", 2, "--engine", engine, script)
    trained = re.findall(r"trained (\d) on (\d) of 2", job.stdout)
    if engine == "gloo":
        assert job.status == 0 and len(trained) == 6, job.stdout + job.stderr
    else:
        assert job.status == 1 and sorted(trained) == [("0", "0"), ("0", "1")], job.stdout + job.stderr
        assert "has left its job by kp.shutdown(), and MPI starts only once in a process" in job.stdout + job.stderr
