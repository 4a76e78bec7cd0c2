"""Strategy files: what they may say, and the line and the word that an error names."""

import inspect
import math
import time
from dataclasses import fields
from pathlib import Path

import pytest

from keras_par.plan.mesh import resized, sizes_for
from keras_par.plan.options import Options
from keras_par.plan.strategy_file import OPTIONS, Entry, parse_strategy, read_strategy
from keras_par.plan.toml import line_of, lines_of_keys
from tests import catalogue_tasks

CATALOGUE = sorted((Path(__file__).resolve().parents[1] / "strategies").glob("*.toml"))
FILE = r"""name = "mine"  # [mesh] = 3
description = '''
two lines, one of which looks like
batch = 7
'''

[mesh]
batch = 1
"model" = -1

[layout]
'(.*/)?query/kernel' = ["-", "model", "-"]
".*/odd\\[#=\\].*" = "replicate"  # = [ "
'.*/key/kernel' = { axes = [
  "-",  # ] not the end
  "model",
  "-" ], indivisible = "replicate", optional = true }

[layout.'logits/kernel']
axes = ["-", "model"]
optional = false

[options]
batch_dim_name = "batch"
fusion_mb = 16
remainder = "drop"
"""


def test_a_file_says_all_of_it():
    strategy = parse_strategy(FILE, "mine.toml", "other")
    assert (strategy.name, strategy.description.count("\n")) == ("mine", 2)
    assert strategy.mesh == {"batch": 1, "model": -1}
    assert strategy.entries == (
        Entry("(.*/)?query/kernel", (None, "model", None)),
        Entry(r".*/odd\[#=\].*", ()),
        Entry(".*/key/kernel", (None, "model", None), is_optional=True, is_replicable=True),
        Entry("logits/kernel", (None, "model")),
    )
    assert strategy.options == {"batch_dim_name": "batch", "fusion_mb": 16, "remainder": "drop"}


def test_an_empty_file_is_data_parallel():
    strategy = parse_strategy("", "mine.toml", "mine")
    assert (strategy.name, strategy.mesh, strategy.entries, strategy.options) == ("mine", {}, (), {})


# Each: what is written in FILE, what instead, and what is said.
WRONG = [
    ("[options]", "[optoins]", "line 23: key 'optoins' is unknown, the nearest is 'options': correct it"),
    ("fusion_mb", "fusion", "line 25: key 'fusion' is unknown, the nearest is 'fusion_mb': correct it"),
    ("optional = true", "optinal = true", "line 14: key 'optinal' is unknown, the nearest is 'optional': correct it"),
    ('"replicate"  #', '"replicated"  #', """line 13: pattern '.*/odd\\[#=\\].*' cannot have 'replicated': write an \
axis or "-" for each dim in a list, or "replicate\""""),
    ('["-", "model"]', '["-", "modle"]', "line 20: pattern 'logits/kernel' has the axis 'modle', the nearest is \
'model': correct it"),
    ('["-", "model"]', '["model", "model"]', "line 20: pattern 'logits/kernel' has the axis 'model' twice: it can \
divide one dim only"),
    ('["-", "model"]', '["-", "-"]', "line 20: pattern 'logits/kernel' divides no dim: name an axis, or write \
\"replicate\""),
    ('["-", "model"]', '["-", 3]', "line 20: pattern 'logits/kernel' has the axis 3, use 'batch', 'model' or '-'"),
    ('axes = ["-", "model"]', "", "line 19: pattern 'logits/kernel' has no axes: add axes = [...], or put all of the \
pattern in quotes"),
    ("'logits/kernel'", "logits.kernel", "line 19: key 'kernel' is unknown, use 'axes', 'indivisible' or 'optional'"),
    ("optional = true", "optional = 1", "line 14: optional cannot be 1, use true or false"),
    ('indivisible = "replicate"', 'indivisible = "replicated"', "line 14: indivisible cannot be 'replicated', the \
nearest is 'replicate': correct it"),
    ("(.*/)?query", "(.*/?query", "line 12: pattern '(.*/?query/kernel' is no regular expression: missing ), \
unterminated subpattern at position 0: correct it"),
    ("batch = 1\n", "batch = 0\n", "line 8: axis 'batch' has the size 0: give it a number of ranks, or -1 for \
the rest"),
    ("batch = 1\n", "batch = true\n", "line 8: axis 'batch' has the size True: give it a number of ranks, or -1 for \
the rest"),
    ("batch = 1\n", "batch = -1\n", "line 9: axis 'model' is the second of size -1: give it a number of ranks"),
    ('= "batch"', '= "bach"', "line 24: batch_dim_name cannot be 'bach', the nearest is 'batch': correct it"),
    ("= 16", "= -16", "line 25: fusion_mb is -16: give it a number of megabytes above 0"),
    ("= 16", "= inf", "line 25: fusion_mb is inf: give it a number of megabytes above 0"),
    ('"drop"', '"Drop"', "line 26: remainder cannot be 'Drop', the nearest is 'drop': correct it"),
    ('remainder = "drop"', 'broadcast_variables = "yes"', "line 26: broadcast_variables cannot be 'yes', use true or \
false"),
    ('remainder = "drop"', 'compression = "none"', "line 26: compression cannot be 'none', use 'fp16' or 'bf16'"),
    ('"mine"', "3", "line 1: 'name' is 3, which is no text: put it in quotes"),
    ('"mine"', '"mine', "line 1: this is not TOML: Illegal character '\\n': correct it"),
    ('"drop"', '"drop', "line 26: this is not TOML: Illegal character '\\n': correct it"),
    ("'logits/kernel'", "'.*/key/kernel'", "line 19: this is not TOML: Cannot declare ('layout', '.*/key/kernel') \
twice: correct it"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "said"), WRONG, ids=range(len(WRONG)))
def test_an_error_names_the_line_and_what_was_meant(right, wrong, said):
    assert FILE.count(right) == 1
    with pytest.raises(ValueError) as error:
        parse_strategy(FILE.replace(right, wrong), "mine.toml", "mine")
    assert str(error.value) == f"keras-par: mine.toml, {said}."


OTHERS = {
    "[mesh]\nmodel = 2\n": "line 1: [mesh] divides nothing without a [layout]: add one, or leave [mesh] out",
    "\n[layout]\na = 'replicate'\n": "line 2: [layout] needs a [mesh] that says how many ranks each axis has: add one",
    "layout = 3": "line 1: 'layout' is 3, which is no table: write [layout] and its keys below",
    "[options]\nbatch_dim_name = 'b'": "line 2: batch_dim_name names an axis, but there is no [mesh]: leave it out",
}


@pytest.mark.parametrize("text", OTHERS)
def test_an_error_in_a_short_file(text):
    with pytest.raises(ValueError) as error:
        parse_strategy(text, "mine.toml", "mine")
    assert str(error.value) == f"keras-par: mine.toml, {OTHERS[text]}."


UNREADABLE = {
    "no text": (b"name = '\xff'", "cannot be read: it is no text in UTF-8"),
    "nested deeply": (b"name = " + b"[" * 5000, "line 1: this is not TOML: it is nested too deeply"),
    "a long number": (b"[mesh]\na = " + b"9" * 5000, "this is not TOML: Exceeds the limit"),
    "a large number": (b"[mesh]\na = 0x" + b"f" * 5000, "this is not TOML: a number has more than 64 bits"),
    "a pattern within patterns": (b"[layout]\n'" + b"(" * 5000 + b"' = 1", "is no regular expression: "),
    "a pattern too often": (
        b"[layout]\n'a{99999999999}' = 1",
        "is no regular expression: the repetition number is too",
    ),
}


@pytest.mark.parametrize(("content", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_one_sentence(content, said, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_strategy(path)
    assert str(error.value).startswith("keras-par: ") and said in str(error.value)


def test_a_strategy_that_is_gone_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"keras-par: strategy file '.*' cannot be read: No such file or directory"):
        read_strategy(tmp_path / "mine.toml")


def test_very_many_patterns_are_read_in_seconds():
    rows = "".join(f'"layer_{number}/.*kernel" = ["-", "model"]\n' for number in range(20_000))
    began = time.process_time()
    strategy = parse_strategy(f"[mesh]\nmodel = -1\n[layout]\n{rows}", "mine.toml", "mine")
    assert time.process_time() - began < 8
    assert len(strategy.entries) == 20_000


def test_a_layout_map_finds_among_very_many_patterns_what_keras_finds(ranks):
    [found] = ranks(1).run(catalogue_tasks.look_up, num_patterns=20_000)
    ours, theirs = found["said"]
    assert ours == theirs and "matches multiple" in ours[1]
    assert found["seconds"] < 4


def test_lines_of_keys_are_those_that_name_them():
    lines = lines_of_keys(FILE)
    assert {key: line for key, line in lines.items() if len(key) == 1} == {
        ("name",): 1, ("description",): 2, ("mesh",): 7, ("layout",): 11, ("options",): 23
    }  # fmt: skip
    assert lines["mesh", "model"] == 9
    assert lines["layout", r".*/odd\[#=\].*"] == 13
    assert lines["layout", "logits/kernel", "optional"] == 21
    assert line_of(("layout", ".*/key/kernel", "axes"), lines) == 14
    assert line_of(("nowhere",), lines) == 1


@pytest.mark.parametrize("file", CATALOGUE, ids=lambda file: file.stem)
def test_lines_of_the_catalogue(file):
    text = file.read_text().splitlines()
    lines = lines_of_keys(file.read_text())
    strategy = read_strategy(file)
    assert {key[1] for key in lines if key[0] == "layout" and len(key) == 2} == {e.pattern for e in strategy.entries}
    for key, line in lines.items():
        assert key[-1] in text[line - 1]


def test_options_are_those_of_the_strategies():
    from keras_par.distribution.data_parallel import DataParallel
    from keras_par.distribution.model_parallel import ModelParallel

    of_model = set(inspect.signature(ModelParallel).parameters) - {"layout_map"}
    of_data = set(inspect.signature(DataParallel).parameters) - {"device_mesh", "devices"}
    assert set(OPTIONS) == of_model == of_data | {"batch_dim_name", "propagate"}
    defaults = {field.name: field.default for field in fields(Options)}
    for kind in (DataParallel, ModelParallel):
        own = inspect.signature(kind).parameters
        assert {name: own[name].default for name in defaults if name in own}.items() <= defaults.items()


@pytest.mark.parametrize(
    ("mesh", "num_ranks", "sizes"),
    [
        ({"batch": 1, "model": -1}, 4, [1, 4]),
        ({"batch": -1, "model": 2}, 8, [4, 2]),
        ({"a": 2, "b": -1, "c": 3}, 6, [2, 1, 3]),
        ({"batch": 2, "model": 2}, 4, [2, 2]),
    ],
)
def test_the_rest_of_the_ranks(mesh, num_ranks, sizes):
    found = sizes_for(mesh, num_ranks)
    assert list(found) == list(mesh) and list(found.values()) == sizes
    assert math.prod(sizes) == num_ranks


def test_other_sizes_of_a_mesh():
    mesh = {"batch": 1, "model": -1}
    assert resized("mine", mesh, {"model": 2}) == {"batch": -1, "model": 2}
    assert resized("mine", mesh, {"model": 2, "batch": 4}) == {"batch": 4, "model": 2}
    assert resized("mine", mesh, (4, -1)) == {"batch": 4, "model": -1}


# Each: the arguments of load_strategy on 2 ranks, and what is said.
REFUSED = {
    "unknown": (["gpt3"], "there is no strategy 'gpt3' in the catalogue; nearest are 'gpt2', 'opt', 'phi3': give"),
    "no file": (["mine.toml"], "there is no strategy file 'mine.toml': correct the path, or give a name without .toml"),
    "many": (["gpt2", (2, 2)], "a mesh of batch = 2, model = 2 has 4 rank(s) but the job has 2: start as many"),
    "odd": (["gpt2", {"model": 3}], "a mesh of batch = -1, model = 3 has a multiple of 3 rank(s) but the job has 2"),
    "axis": (
        ["gpt2", {"modle": 2}],
        "strategy 'gpt2' has the mesh axes 'batch', 'model', but load_strategy was given 'modle', the nearest is "
        "'model': correct it.",
    ),
    "short": (["gpt2", (2,)], "load_strategy was given 1 size(s): give one for each axis."),
    "size": (["gpt2", (2, 0)], "load_strategy was given model = 0: give it a number of ranks, or -1 for the rest."),
    "none": (["gpt2", {}], "load_strategy was given no size for more than one of them: only one can be the rest"),
    "data": (["data-parallel", (2,)], "strategy 'data-parallel' is data parallel and has no axes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_load_strategy_refuses(name, ranks):
    arguments, said = REFUSED[name]
    failures = ranks(2).attempt(catalogue_tasks.load, arguments=arguments)
    assert [failure.kind for failure in failures] == ["ValueError"] * 2
    for failure in failures:
        assert failure.message.startswith("keras-par: ")
        assert said in failure.message


def test_load_strategy_takes_a_path_and_meshes_of_any_kind(ranks, tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    path = str(tmp_path / "mine.toml")
    for mesh, shape in [(None, (1, 2)), ({"model": 2}, (1, 2)), ((2, 1), (2, 1)), ("device mesh", (1, 1, 2))]:
        for found in ranks(2).run(catalogue_tasks.load, arguments=[path, mesh]):
            assert found == {
                "kind": "ModelParallel",
                "shape": shape,
                "batch": "batch",
                "auto_shard_dataset": True,
                "options": ("mean", 16, None, True, "drop", "auto", "auto", False, True, (), 0, 64.0, None),
            }
    for found in ranks(2).run(catalogue_tasks.load, arguments=["data-parallel-bf16"]):
        assert (found["kind"], found["options"][2]) == ("DataParallel", "bf16")


UNEVEN = """
[mesh]
model = -1
[layout]
"attention/query/kernel" = ["-", "model", "-"]
"up/kernel" = { axes = ["-", "model"], indivisible = "replicate" }
"down/kernel" = ["-", "model"]
"""


def test_what_an_axis_does_not_divide_is_whole_in_attention_and_where_the_file_says_so(ranks, tmp_path):
    (tmp_path / "mine.toml").write_text(UNEVEN)
    for found in ranks(2).run(catalogue_tasks.made_unevenly, path=str(tmp_path / "mine.toml")):
        assert (found["size"], found["divided"]) == (2, ["down/kernel"])
        query, up = found["messages"]
        assert query.startswith("keras-par: 'attention/query/kernel' is not divided, because ")
        assert up.startswith("keras-par: 'up/kernel' is not divided, because ")


def test_a_device_mesh_without_the_axis_is_refused(ranks):
    [failure, _] = ranks(2).attempt(catalogue_tasks.load, arguments=["gpt2", "other axes"])
    assert failure.message == (
        "keras-par: strategy 'gpt2' divides along the axis 'model', but the mesh given to load_strategy has the axes "
        "['batch', 'columns']: give it one of that name."
    )


def test_a_strategy_that_would_divide_nothing_is_refused(ranks):
    [failure, _] = ranks(2).attempt(catalogue_tasks.train_with_other_names)
    assert failure.kind == "AgreedValueError"
    assert "matches no variable and no layer's output" in failure.message
