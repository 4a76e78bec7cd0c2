"""KerasHub's tasks, tuned whole or by adapters, are on ranks what they are in one process, and so are their files."""

import numpy as np
import pytest

from tests import kerashub_tasks as tasks

# Relative to the largest number of a variable, or to LEAST.
FLOAT64 = 1e-12
FLOAT32 = 1e-6  # of adapters and what is quantized, too, whatever the model's dtype, and of some layers of Gemma's
LEAST = 1e-3
SECONDS = 900.0  # of a cell; ranks that have had many keep what was traced, and take three times as long as at first
WITH_ADAPTERS = [task for task in tasks.TASKS if task != "segmenter"]  # which has convolutions only
CELLS = [
    *((task, "whole") for task in tasks.TASKS),
    *((task, tuning) for task in WITH_ADAPTERS for tuning in ("lora", "int8 lora")),
    *(("causal", tuning) for tuning in ("lora int8", "int4 lora", "lora int4", "float8", "gptq", "awq")),
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
    [alone] = plain.run(tasks.use, SECONDS, divided="plain", **options)
    assert distance(alone["initial"], alone["weights"]) > 1e-3  # it has learned something
    tolerance = FLOAT64 if tuning == "whole" and task != "causal" else FLOAT32
    for divided in ("data", "zero", *(["layouts"] if task in tasks.LAYOUTS else [])):
        for found in ranks(2).run(tasks.use, SECONDS, divided=divided, **options):
            assert found["size"] == 2 and found.keys() - {"resumed", "size"} == alone.keys()
            for name in alone.keys() - {"text", "predicted"}:
                exactness(distance(found[name], alone[name]), tolerance)
            exactness(distance([found["predicted"]], [alone["predicted"]]), tolerance)
            exactness(distance(found["resumed"], found["weights"]), 1e-12)
            assert found.get("text") == alone.get("text")
