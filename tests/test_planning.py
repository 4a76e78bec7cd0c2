"""The plan of a job is what a run of it does; steps send what they need to and no more."""

import json
import subprocess
import sys

import pytest

from tests import planning_tasks
from tests.ranks.pool import REPOSITORY, scripts

MODEL = "tests/planning_tasks.py:transformer"


def run_plan(*arguments: str) -> subprocess.CompletedProcess:
    command = [str(scripts() / "keras-par"), "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=120)


@pytest.mark.long
@pytest.mark.parametrize("mesh", [(1, 2), (2, 2)])
def test_the_plan_agrees_with_what_a_run_counts(mesh, ranks):
    size = mesh[0] * mesh[1]
    results = ranks(size).run(planning_tasks.run_transformer, mesh=mesh)
    assert len(results) == size
    last = size - 1
    planned = run_plan(
        "megatron",
        MODEL,
        "--ranks",
        str(size),
        "--rank",
        str(last),
        "--mesh",
        "x".join(map(str, mesh)),
        "--batch-size",
        "8",
        "--json",
    )
    assert planned.returncode == 0, planned.stderr
    plan, run = json.loads(planned.stdout), results[last]
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
    page = tmp_path / "plan.html"
    done = run_plan("megatron", MODEL, "--ranks", "8", "--mesh", "2x4", "--batch-size", "8", "--html", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count('class="near"') == 4 and text.count('class="own"') == 1
    assert "block_up" in text and "(4, 8, 32)" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.long
def test_the_plan_shows_what_follows_and_refuses_what_a_run_refuses(tmp_path):
    """Row A3 of the tutorials: one product is said, ReLU and the second product follow."""
    strategy = tmp_path / "one.toml"
    mesh = "[mesh]\nbatch = 2\nmodel = 4\n[options]\npropagate = true\n[layout]\n"
    strategy.write_text(mesh + '".*first/kernel" = ["model", "-"]\n')
    arguments = [str(strategy), "tests/planning_tasks.py:quickstart", "--ranks", "8", "--batch-size", "16", "--json"]
    done = run_plan(*arguments)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [row["axes"] for row in plan["variables"]] == [["model", None]] * 2
    outputs = {row["layer"]: [row["shape"], row["axes"], row["local_shape"]] for row in plan["outputs"]["train_step"]}
    assert outputs["relu"] == outputs["first"] == [[16, 16], ["batch", "model"], [8, 4]]
    sources = {call["source"].split(":")[0] for call in plan["collectives"]["train_step"] if call["layer"] == "second"}
    assert sources == {"planning_tasks.py"}
    strategy.write_text(mesh + '".*first/kernel" = ["model", "-"]\n".*third/kernel" = ["model", "-"]\n')
    refused = run_plan(*arguments)
    assert refused.returncode == 2 and "the layout map's pattern '.*third/kernel' matches no variable" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["megatro", MODEL, "--ranks", "2"], "no strategy 'megatro' in the catalogue; nearest are 'megatron'"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [
                (["megatron", "tests/planning_tasks.py:nothing", "--ranks", "2"], "has no function 'nothing'"),
                (["megatron", MODEL, "--ranks", "6", "--mesh", "2x3"], "is not divisible by the 3 ranks of 'model'"),
                (["megatron", "nowhere.py:build", "--ranks", "2"], "there is no file 'nowhere.py'"),
                (["megatron", "nowhere.py", "--ranks", "2"], "names no file and function"),
                (["megatron", MODEL, "--ranks", "2", "--rank", "2"], "rank 2 of 2 ranks does not exist"),
                (["megatron", MODEL, "--ranks", "4", "--mesh", "2x2", "--batch-size", "7"], "be cut evenly into 2"),
            ]
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments, sentence):
    done = run_plan(*arguments)
    assert done.returncode == 2
    [told] = [
        line for line in done.stderr.splitlines() if line.startswith("keras-par: ") and "is not divided" not in line
    ]
    assert sentence in told
    assert "Traceback" not in done.stderr


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


@pytest.mark.long
def test_sizes_that_inputs_leave_open_are_given():
    model = "tests/planning_tasks.py:of_any_length"
    common = ("data-parallel", model, "--ranks", "2", "--batch-size", "4", "--json")
    done = run_plan(*common, "--input-shape", "12")
    assert done.returncode == 0, done.stderr
    assert [row["shape"] for row in json.loads(done.stdout)["outputs"]["train_step"]][-1][1] == 12
    for wrong in (("--input-shape", "12x3"), ("--input-shape", "many")):
        refused = run_plan(*common, *wrong)
        assert refused.returncode == 2 and refused.stderr.splitlines()[-1].startswith("keras-par: ")
    unknown = run_plan(model, "--search", "dynamic", "--ranks", "2", "--machine", "gpu-host")
    assert unknown.returncode == 2 and "--input-shape" in unknown.stderr
