"""Keras's own tests of trainers, data and callbacks: those that pass in plain Keras pass under the strategy.

Those that do not are listed below with the reason. Each is run in plain Keras, on one rank and on two.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.keras_own import runner

DATA = [f"trainers/data_adapters/{kind}_adapter_test.py" for kind in ("array_data", "generator_data", "py_dataset")]
CALLBACKS = (
    *("backup_and_restore", "callback", "csv_logger", "early_stopping", "lambda_callback", "learning_rate_scheduler"),
    *("model_checkpoint", "monitor_callback", "reduce_lr_on_plateau", "remote_monitor", "swap_ema_weights"),
    *("tensorboard", "terminate_on_nan"),
)
FILES = {
    "trainers": ["trainers/trainer_test.py", "trainers/epoch_iterator_test.py", "trainers/compile_utils_test.py"],
    "data": [*DATA, "trainers/data_adapters/torch_data_loader_adapter_test.py"],
    "callbacks": [f"callbacks/{name}_test.py" for name in CALLBACKS],
}

# Tests that pass in plain Keras and not here, on each rank that is named: (on one rank, on two ranks, why).
LISTED: dict[str, tuple[bool, bool, str]] = {}


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
    assert len(passed) > 10
    results = outcomes(group, kind)
    assert len(results) == (2 if kind == "ranks" else 1)
    listed = {name for name, (solo, ranks, _) in LISTED.items() if (solo if kind == "solo" else ranks)}
    failed: dict[str, str] = {}
    for rank, result in enumerate(results):
        assert set(result) >= passed, f"not run on rank {rank}: {sorted(passed - set(result))}"
        for name in passed:
            if result[name]["outcome"] != "passed":
                failed[name] = f"rank {rank}: {result[name]['outcome']}: {result[name]['said'][-300:]}"
    assert set(failed) - listed == set(), failed
    assert listed & passed <= set(failed), "listed, but they pass"
