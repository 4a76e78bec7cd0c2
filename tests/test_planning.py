"""The plan of a job is what a run of it does; steps send what they need to and no more."""

import json
import subprocess
import sys

import pytest

from tests import planning_tasks
from tests.commands import run_plan
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, scripts

MODEL, OPEN = "tests/planning_tasks.py:transformer", "tests/planning_tasks.py:of_any_length"

OF_EIGHT = "--ranks 8 --mesh 2x4 --batch-size 8"


@pytest.mark.long
@pytest.mark.parametrize("mesh", [(1, 2), (2, 2)])
def test_the_plan_agrees_with_what_a_run_counts(mesh, ranks):
    size = mesh[0] * mesh[1]
    results = ranks(size).run(planning_tasks.run_transformer, mesh=mesh)
    assert len(results) == size
    last = size - 1
    options = f"--ranks {size} --rank {last} --mesh {mesh[0]}x{mesh[1]} --batch-size 8 --json"
    planned = run_plan(ranks, f"megatron {MODEL} {options}")
    assert planned.status == 0, planned.errors
    plan, run = json.loads(planned.output), results[last]
    assert plan["variables"] == run["variables"]
    assert plan["outputs"]["train_step"] == run["outputs"]["train_step"]
    assert plan["local_bytes"] == run["local_bytes"] < plan["bytes"]
    keys = ("kind", "ranks", "shapes", "num_bytes", "layer")
    seen, done = ([[call[key] for key in keys] for call in found["collectives"]["train_step"]] for found in (plan, run))
    assert seen == done
    assert run["sent"] == [[call["kind"], call["num_bytes"]] for call in run["collectives"]["train_step"]]


def test_a_column_and_a_row_cost_one_all_reduce_forward_and_one_backward(ranks):
    for counted in ranks(2).run(planning_tasks.count_blocks):
        # The loss's own backward pass goes through the row's sum without a collective.
        assert counted["dense"] == [["all_reduce", "down"], ["all_reduce", "up"]]
        assert counted["attention"] == [["all_reduce", "attention/attention_output"], ["all_reduce", "attention/query"]]
        assert counted["vocabulary"] == [["all_reduce", "loss"], ["all_reduce", "loss"], ["all_reduce", "logits"]]


def test_a_block_of_4096_holds_half_on_each_rank(ranks):
    for held in ranks(2).run(planning_tasks.hold_block):
        assert held["largest_whole"] <= 1024 * 4096 * 4  # one variable at a time
        assert held["share"] <= 0.52


def test_describe_shows_whole_and_local_sizes(ranks):
    for rank, shown in enumerate(ranks(2).run(planning_tasks.describe)):
        assert f"this rank at batch 0, model {rank}" in shown["text"]
        assert "up/kernel" in shown["text"] and "(8, 16)" in shown["text"] and "(8, 8)" in shown["text"]
        assert shown["count_params"] == shown["parameters"]
        assert "Parameters on this rank" in shown["summary"]


def test_the_page_shows_mesh_and_layers(tmp_path):
    """By the command itself."""
    page = tmp_path / "plan.html"
    command = [scripts() / "keras-par", "plan", "megatron", MODEL, *OF_EIGHT.split()]
    done = subprocess.run([*command, "--html", page], capture_output=True, text=True, cwd=REPOSITORY, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count('class="near"') == 4 and text.count('class="own"') == 1
    assert "block_up" in text and "(4, 8, 32)" in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_plan_shows_what_follows_and_refuses_what_a_run_refuses(ranks, tmp_path):
    """Row A3 of the tutorials: one product is said, ReLU and the second product follow."""
    strategy = tmp_path / "one.toml"
    mesh = "[mesh]\nbatch = 2\nmodel = 4\n[options]\npropagate = true\n[layout]\n"
    strategy.write_text(mesh + '".*first/kernel" = ["model", "-"]\n')
    words = f"{strategy} tests/planning_tasks.py:quickstart --ranks 8 --batch-size 16 --json"
    done = run_plan(ranks, words)
    assert done.status == 0, done.errors
    plan = json.loads(done.output)
    assert [row["axes"] for row in plan["variables"]] == [["model", None]] * 2
    outputs = {row["layer"]: [row["shape"], row["axes"], row["local_shape"]] for row in plan["outputs"]["train_step"]}
    assert outputs["relu"] == outputs["first"] == [[16, 16], ["batch", "model"], [8, 4]]
    sources = {call["source"].split(":")[0] for call in plan["collectives"]["train_step"] if call["layer"] == "second"}
    assert sources == {"planning_tasks.py"}
    strategy.write_text(mesh + '".*first/kernel" = ["model", "-"]\n".*third/kernel" = ["model", "-"]\n')
    refused = run_plan(ranks, words)
    assert refused.status == 2 and "the layout map's pattern '.*third/kernel' matches no variable" in refused.errors


# What is asked of two ranks, unless it says how many, and what is said.
REFUSED = {
    f"megatro {MODEL}": "no strategy 'megatro' in the catalogue; nearest are 'megatron'",
    "megatron tests/planning_tasks.py:nothing": "has no function 'nothing'",
    f"megatron {MODEL} --ranks 6 --mesh 2x3": "is not divisible by the 3 ranks of 'model'",
    "megatron nowhere.py:build": "there is no file 'nowhere.py'",
    "megatron nowhere.py": "names no file and function",
    f"megatron {MODEL} --rank 2": "rank 2 of 2 ranks does not exist",
    f"megatron {MODEL} --ranks 4 --mesh 2x2 --batch-size 7": "be cut evenly into 2",
    f"data-parallel {OPEN} --input-shape 12x3": "keras-par: ",
    f"data-parallel {OPEN} --input-shape many": "keras-par: --input-shape 'many' has no sizes",
    f"{OPEN} --search dynamic --machine gpu-host": "--input-shape",
    f"gpt2 {MODEL} --memory 8GB": "keras-par: --memory ",
    f"gpt2 {MODEL} --write x.toml": "keras-par: --write ",
    f"{MODEL} --search dynamic --rank 1": "keras-par: --rank ",
    "tests/search_tasks.py:two_layers --search dynamic --memory 150KB --machine gpu-host": (
        "the model does not fit into 150 KiB on each of 2 ranks: start "
    ),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_cannot_be_planned_is_one_sentence(asked, ranks):
    done = run_plan(ranks, asked if "--ranks" in asked else f"{asked} --ranks 2")
    assert done.status == 2
    [told] = [line for line in done.errors.splitlines() if line[:11] == "keras-par: " and "is not divided" not in line]
    assert REFUSED[asked] in told


def test_the_command_line_does_not_load_tensorflow_before_it_runs():
    script = "import sys, keras_par.planning.command; print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_many_ranks_are_shown_as_a_slice():
    from keras_par.distribution.describe import ranks_shown

    assert ranks_shown((0, 1)) == "(0, 1)"
    assert ranks_shown(tuple(range(3, 512, 8))) == "3:515:8"
    assert ranks_shown(tuple(range(512))) == "0:512"
    assert ranks_shown((0, 1, 2, 4, 8)) == "(0, 1, 2, 4, 8)"


def test_sizes_that_inputs_leave_open_are_given(ranks):
    done = run_plan(ranks, f"data-parallel {OPEN} --ranks 2 --batch-size 4 --json --input-shape 12")
    assert done.status == 0, done.errors
    assert [row["shape"] for row in json.loads(done.output)["outputs"]["train_step"]][-1][1] == 12
