"""The measurements run, and count what arithmetic says."""

import json
import subprocess
import sys

import pytest

from keras_par.plan.operation_cost import FLOPS_PER_ELEMENT
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, WITH_EXTRAS, environment


def measure(*arguments) -> None:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    result = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment(**WITH_EXTRAS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_systems_train_in_turns(tmp_path):
    file, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    systems = ["bound", "keras-par", "loop"]
    measure("throughput", "--workloads", "mlp", "--systems", *systems, "--rounds", 2, "--json", file, "--plot", plot)
    results = json.loads(file.read_text())["results"]
    assert [result["system"] for result in results] == systems
    assert [result["failure"] for result in results] == [""] * 3
    assert all(len(result["seconds"]) == 2 and len(result["peak_memory"]) == 2 for result in results)
    parameters = 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    phases = [result["told"].pop("phases") for result in results]
    assert results[1]["told"] == {"collectives": 1, "bytes": 4 * parameters}
    bound, own, loop = ({name for name, ms in spent.items() if ms > 0} for spent in phases)
    assert bound == {"forward, backward", "update", "rest"}
    assert own == bound | {"reduce"} and loop >= bound
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_reduction_sends_as_much_as_a_ring(tmp_path):
    file = tmp_path / "figures.json"
    measure("growth", "--ways", "gloo", "--ranks", 2, 4, "--parameters", "1e6", "--seconds", 1, "--json", file)
    figures = json.loads(file.read_text())
    assert [(figure["ranks"], figure["parameters"]) for figure in figures] == [(2, 10**6), (4, 10**6)]
    for figure in figures:
        assert figure["bytes_a_rank"] == pytest.approx(figure["ring"], rel=0.1)


@pytest.mark.slow
def test_functions_that_costs_count_are_measured(tmp_path):
    file = tmp_path / "figures.json"
    measure("functions", "--rounds", 1, "--json", file)
    operations = {figure["function"]: max(figure["operations"]) for figure in json.loads(file.read_text())}
    assert set(FLOPS_PER_ELEMENT) <= set(operations)
    assert operations["nn.sparse_categorical_crossentropy"] > 2 * operations["numpy.sqrt"]
