"""Bad input gets one sentence that says what is wrong and what to do, the same on every rank, and no hang."""

import re
import traceback

import pytest

from keras_par.base.user_code import PACKAGE, without_own_frames
from tests import layout_misuse, tasks
from tests.ranks.pool import Failure

CASES = {
    "options": ("ValueError", "compression='int8' is unknown", "use None, 'fp16' or 'bf16'"),
    "initialize": ("ValueError", "num_processes=17", "leave it out"),
    "not batched": ("AgreedValueError", "not batched", "add .batch("),
    "distributed by tf.distribute": ("AgreedValueError", "by a strategy of tf.distribute", "use the tf.data.Dataset"),
    "mirrored": ("ValueError", "in the scope of tf.distribute's MirroredStrategy", "start one rank a device"),
    "dropped whole": (
        "AgreedValueError",
        "remainder='drop' leaves nothing of global batches of 1 rows",
        "use remainder='exact'",
    ),
    "steps": ("AgreedValueError", "'batches' is 4 on rank 0 but 3 on rank 1", "kp.data.shard"),
    "epochs": ("AgreedValueError", "'epochs' is 1 on rank 0 but 2 on rank 1", "the same arguments"),
    "monitor on one rank": ("AgreedValueError", "['LossMonitor(every=1)'] on rank 0 but []", "the same arguments"),
    "other model": ("AgreedValueError", "on rank 0 but", "build the same model"),
    "jit": ("ValueError", "XLA allows no collective", "jit_compile=False"),
    "other kind": (
        "AgreedValueError",
        "is ArrayData of dense arrays on rank 0 but TFDataset on rank 1",
        "the same arg",
    ),
    "shutdown": ("RuntimeError", "kp.shutdown() was called within fit", "call it afterwards"),
    "scalars in shard": ("ValueError", "data.shard takes arrays", "a generator"),
    "unknown length": ("ValueError", "data.shard(remainder='wrap') must know how long", "remainder='exact'"),
    "remainder": ("ValueError", "remainder='pad' is unknown", "use 'exact', 'wrap' or 'drop'"),
}


@pytest.mark.parametrize("which", CASES)
def test_misuse_is_refused_on_every_rank(which, ranks):
    kind, what, advice = CASES[which]
    results = ranks(2).attempt(tasks.misuse, which=which)
    assert len(results) == 2
    assert all(isinstance(result, Failure) for result in results), results
    for result in results:
        assert result.kind == kind, result.traceback
        assert result.message.startswith("keras-par: ")
        assert what in result.message
        assert advice in result.message
        assert "\n" not in result.message
    assert results[0].message == results[1].message


def test_an_error_of_kerass_shows_few_lines_of_this_package(ranks):
    failures = ranks(2).attempt(tasks.fit_with_too_many_columns)
    assert len(failures) == 2
    for failure in failures:
        assert failure.kind == "ValueError" and "expected axis -1 of input shape" in failure.message
        assert len(re.findall(r'File ".*keras_par/keras_patches/', failure.traceback)) == 3, failure.traceback
        assert "fit.py" in failure.traceback and "local_batch_size" not in failure.traceback


def test_lines_of_the_users_stay_in_a_traceback():
    ours: dict = {}
    exec(compile("def call(function):\n    function()\n", str(PACKAGE / "made_up.py"), "exec"), ours)

    def mistake():
        raise KeyError("the user's")

    with pytest.raises(KeyError) as caught:
        ours["call"](lambda: ours["call"](mistake))
    lines = traceback.extract_tb(without_own_frames(caught.value.__traceback__))
    assert [line.name for line in lines][1:] == ["<lambda>", "mistake"]


@pytest.mark.parametrize("which", layout_misuse.CASES)
def test_misuse_of_layouts_is_refused_on_every_rank(which, ranks):
    kind, what, advice = layout_misuse.CASES[which]
    results = ranks(2).attempt(layout_misuse.misuse, which=which)
    assert len(results) == 2
    for result in results:
        assert isinstance(result, Failure)
        assert result.kind == kind, result.traceback
        assert what in result.message and advice in result.message, result.message
    assert results[0].message == results[1].message


def test_the_first_difference_between_models_is_named(ranks):
    [first, _] = ranks(2).attempt(tasks.misuse, which="other model")
    assert "(8, 16) float32 on rank 0 but" in first.message
    assert "(8, 24) float32 on rank 1" in first.message
