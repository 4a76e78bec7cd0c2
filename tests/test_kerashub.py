"""KerasHub's tasks, tuned whole or by adapters, are on ranks what they are in one process, and so are their files."""

import numpy as np
import pytest

from tests import kerashub_tasks as tasks

# Relative to the largest number of a variable, or to LEAST. Adapters are float32 in models of float64, too.
TOLERANCES = {"whole": 1e-12, "lora": 1e-6, "qlora": 1e-6}
FLOAT32 = 1e-6  # in which KerasHub's Gemma computes some of its layers
LEAST = 1e-3
QUANTIZED = ("causal", "image_classifier")  # of which plain Keras trains one for a minute
CELLS = [
    *((task, "whole") for task in tasks.TASKS),
    *((task, "lora") for task in tasks.TASKS if task != "segmenter"),  # which has convolutions only
    *((task, "qlora") for task in QUANTIZED),
]


def distance(found: list, expected: list) -> float:
    """The largest of all arrays."""
    assert len(found) == len(expected)
    pairs = [(np.asarray(a, "float64"), np.asarray(b, "float64")) for a, b in zip(found, expected, strict=True)]
    assert [a.shape for a, _ in pairs] == [b.shape for _, b in pairs]
    return max(np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), LEAST) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "tuning"), CELLS)
def test_a_task_is_one_processs(task, tuning, ranks, plain, tmp_path, exactness):
    options = {"name": task, "tuning": tuning, "folder": str(tmp_path)}
    [alone] = plain.run(tasks.use, divided="plain", **options)
    assert distance(alone["initial"], alone["weights"]) > 1e-3  # it has learned something
    tolerance = FLOAT32 if task == "causal" else TOLERANCES[tuning]
    for divided in ("data", "zero", *(["layouts"] if task in tasks.LAYOUTS else [])):
        for found in ranks(2).run(tasks.use, divided=divided, **options):
            assert found["size"] == 2 and found.keys() - {"resumed", "size"} == alone.keys()
            for name in alone.keys() - {"text", "predicted"}:
                exactness(distance(found[name], alone[name]), tolerance)
            exactness(distance([found["predicted"]], [alone["predicted"]]), tolerance)
            exactness(distance(found["resumed"], found["weights"]), 1e-12)
            assert found.get("text") == alone.get("text")
