"""Keras's own tests: those that pass in plain Keras pass under the strategy.

Those that do not are listed below with the reason. Each is run in plain Keras, on one rank and on two.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.keras_own import runner

CALLBACKS = (
    *("backup_and_restore", "callback", "csv_logger", "early_stopping", "lambda_callback", "learning_rate_scheduler"),
    *("model_checkpoint", "monitor_callback", "reduce_lr_on_plateau", "remote_monitor", "swap_ema_weights"),
    *("tensorboard", "terminate_on_nan"),
)
ADAPTERS = ("array_data", "generator_data", "py_dataset", "tf_dataset", "torch_data_loader")
FILES = {
    "trainers": [f"trainers/{name}_test.py" for name in ("trainer", "epoch_iterator", "compile_utils")],
    "data": [f"trainers/data_adapters/{name}_adapter_test.py" for name in ADAPTERS],
    "callbacks": [f"callbacks/{name}_test.py" for name in CALLBACKS],
    "saving": [f"saving/{name}_test.py" for name in ("saving_api", "saving_lib", "serialization_lib", "file_editor")],
}

# At least as many tests of a group pass in plain Keras; others need packages or backends that are not here.
FLOORS = {"trainers": 180, "data": 100, "callbacks": 65, "saving": 160}

BY_HAND = (
    "An epoch iterator that is made outside of fit takes data sets alone if there are several processes, as in Keras."
)
ITERATORS = (
    *("basic_flow_enumerate_epoch", "basic_flow_iterator", "epoch_callbacks_finite", "epoch_callbacks_infinite"),
    *("insufficient_data", "python_generator_input", "unrecognized_data_type"),
)

# Tests that pass in plain Keras and not here: (on one rank, on two ranks, why).
LISTED: dict[str, tuple[bool, bool, str]] = {
    **{
        f"trainers/epoch_iterator_test.py::TestEpochIterator::test_{name}": (False, True, BY_HAND) for name in ITERATORS
    },
    "trainers/data_adapters/tf_dataset_adapter_test.py::TestTFDatasetAdapter"
    "::test_distributed_datasets_from_function_model_integration": (
        False,
        True,
        "A data set that tf.distribute has distributed cannot be cut for ranks; fit refuses it with a sentence.",
    ),
    "callbacks/swap_ema_weights_test.py::SwapEMAWeightsTest::test_swap_ema_weights_with_tf_distribute": (
        False,
        True,
        "A model that tf.distribute has mirrored on devices has variables that only its replicas' threads can read.",
    ),
    **{
        f"saving/saving_lib_test.py::SavingTest::test_save_model_exception_raised_{memory}_memory_config": (
            False,
            True,
            "A model that fails while it is saved leaves no file: ranks write beside the path, and name what is whole.",
        )
        for memory in ("high", "low")
    },
}


@cache
def outcomes(group: str, kind: str) -> list[dict[str, dict]]:
    with TemporaryDirectory(prefix="kp-own-") as folder:
        return runner.run(FILES[group], kind, Path(folder) / "run")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["solo", "ranks"])
@pytest.mark.parametrize("group", FILES)
def test_what_passes_in_plain_keras_passes_under_the_strategy(group, kind):
    [plain] = outcomes(group, "plain")
    passed = {name for name, result in plain.items() if result["outcome"] == "passed"}
    assert len(passed) >= FLOORS[group]
    results = outcomes(group, kind)
    assert len(results) == (2 if kind == "ranks" else 1)
    failed: dict[str, str] = {}
    for rank, result in enumerate(results):
        assert set(result) >= passed, f"not run on rank {rank}: {sorted(passed - set(result))}"
        for name in passed:
            if result[name]["outcome"] != "passed":
                failed[name] = f"rank {rank}: {result[name]['outcome']}: {result[name]['said'][-2000:]}"
    own = {name: entry for name, entry in LISTED.items() if name.split("::")[0] in FILES[group]}
    listed = {name for name, (solo, ranks, _) in own.items() if (solo if kind == "solo" else ranks)}
    assert set(failed) - listed == set(), "\n".join(f"{name}: {failed[name]}" for name in set(failed) - listed)
    assert listed - set(failed) == set(), "listed, but they pass, or are no tests of this Keras that pass in it"
