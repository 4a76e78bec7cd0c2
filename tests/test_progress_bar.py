"""ProgressBar: who prints, whether its figures are those measured from outside, and what it costs."""

import re

import numpy as np
import pytest

from tests import progress_bar_tasks as tasks
from tests.jobs import start, write_script
from tests.ranks.pool import Failure

NUMBER = r"([\d.]+(?:e-?\d+)?)"
LINE = re.compile(
    rf"epoch (\d+)/2 step 5(?:/5)?: loss {NUMBER}, accuracy {NUMBER}, (\d+) rows, {NUMBER} rows/s, "
    rf"(\d+)% in collectives, slowest rank (\d): {NUMBER} (m?s) a step, rank (\d): {NUMBER} (m?s)"
)


def lines_of(result) -> list[re.Match]:
    """The lines of the epochs, each of which must be whole."""
    found = [LINE.fullmatch(line) for line in result["printed"].splitlines()]
    assert all(found), result["printed"]
    return [match for match in found if match]


def milliseconds(number: str, unit: str) -> float:
    return float(number) * (1000.0 if unit == "s" else 1.0)


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_rank_0_prints_figures_of_all_ranks_and_names_the_slowest(slow_rank, ranks):
    results = ranks(2).run(tasks.progress, slow_rank=slow_rank, pause=0.3)
    assert len(results) == 2
    assert results[1]["printed"] == ""
    lines = lines_of(results[0])
    assert [match[1] for match in lines] == ["1", "2"]
    for epoch, match in enumerate(lines):
        assert float(match[2]) == pytest.approx(results[0]["logs"]["loss"][epoch], rel=1e-3)
        assert float(match[3]) == pytest.approx(results[0]["logs"]["accuracy"][epoch], rel=1e-3)
        assert match[4] == "75"
        assert int(match[7]) == slow_rank
        assert int(match[10]) == 1 - slow_rank
        slow, fast = milliseconds(match[8], match[9]), milliseconds(match[11], match[12])
        # The callback that pauses comes after the bar, so of 5 steps the last one's pause is not in the epoch's line.
        assert slow >= 225
        assert fast < slow / 2
        assert 25 <= int(match[6]) <= 60  # one rank waits nearly all the time, the other hardly ever
    seconds = results[0]["seconds"]  # of the last epoch, in the line's without the last pause
    assert 0.9 * 75 / seconds < float(lines[1][5]) < 1.1 * 75 / (seconds - 0.3)


def test_the_share_of_collectives_is_small_where_ranks_are_alike(ranks):
    [printed, _] = ranks(2).run(tasks.progress, slow_rank=-1, pause=0.5)
    assert all(int(match[6]) < 25 for match in lines_of(printed))


def test_time_in_collectives_is_the_wait_for_the_other_rank_and_overlaps_count_once(ranks):
    early, late = ranks(2).run(tasks.late_rank, wait=0.8)
    for result in (early, late):
        assert result["a"] == 3.0
        assert result["b"] == [1.0, 2.0]
        assert 0 < result["in step"] <= result["elapsed"]
        assert 0 < result["eager"] < 0.4
    assert early["in step"] > 0.6  # each of the two takes 0.8 s
    assert late["in step"] < early["in step"] / 2


def test_reading_the_clock_makes_no_collective_wait_for_another(ranks):
    [found] = ranks(1).run(tasks.order_of_clocks)
    assert found["waits"] == [[], [0], [], [2]]  # begin and end of the first, begin and end of the second
    assert found["values"] == [[1.0, 2.0], [3.0, 4.0]]
    assert 0 < found["seconds"] < 1


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "unknown"},
        {"kind": "sharded", "num_rows": 76},
        {"run_eagerly": True},
        {"jit_compile": True},
        {"steps_per_execution": 2},
    ],
    ids=str,
)
def test_rows_are_those_of_all_ranks_and_nothing_is_changed(options, ranks):
    results = ranks(2).run(tasks.progress, **options)
    assert [match[4] for match in lines_of(results[0])] == [str(options.get("num_rows", 75))] * 2
    if "kind" not in options:
        for result, weights in zip(results, ranks(2).run(tasks.without, **options), strict=True):
            for ours, theirs in zip(result["weights"], weights, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_a_second_fit_does_not_trace_the_step_again(ranks):
    for result in ranks(2).run(tasks.progress, fits=2):
        assert result["functions"][0] == result["functions"][1]


def test_figures_are_exchanged_seldom(ranks):
    """The interval doubles from 1 step to 32, at steps 1 to 63; then there is one at the end of each epoch."""
    for names in ranks(2).run(tasks.exchanges, num_epochs=3, every_seconds=1000.0):
        assert names.count("kp.progress") == 6 + 3
        assert names.count("kp.metrics.sum.float32") == 6 + 3
    for names in ranks(2).run(tasks.exchanges, num_epochs=1, every_seconds=0.0):
        assert names.count("kp.progress") == 64


def test_lines_are_printed_in_between_where_time_has_passed(ranks):
    results = ranks(2).run(tasks.progress, slow_rank=-1, bar={"every_seconds": 0.1}, pause=0.1)
    lines = re.findall(rf"epoch 2/2 step (\d)/5: loss {NUMBER}, accuracy {NUMBER}, ", results[0]["printed"])
    assert {"3", "4"} <= {step for step, _, _ in lines} <= {"1", "2", "3", "4", "5"}
    assert "\x1b" not in results[0]["printed"]


def test_a_bar_is_drawn_if_asked_for(ranks):
    results = ranks(2).run(tasks.progress, bar={"bar": True, "every_seconds": 0.0})
    assert results[1]["printed"] == ""
    assert "\x1b[" in results[0]["printed"]
    plain = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", results[0]["printed"])
    assert len(re.findall(r"epoch [12]/2 .*━ 5/5", plain)) >= 2
    assert results[0]["printed"].count("\x1b[?25l") == results[0]["printed"].count("\x1b[?25h") == 1  # the cursor
    assert re.search(r"loss [\d.]+, accuracy [\d.]+, \d+ rows/s, \d+% in collectives, slowest rank [01]: ", plain)


def test_terminals_are_told_from_files(ranks):
    [found] = ranks(1).run(tasks.width_of_terminals)
    assert found == {0: None, 133: 133, "string": None}


def test_one_process_without_a_strategy_has_a_bar_too(tmp_path):
    script = write_script(
        tmp_path,
        """
        import keras, numpy as np, keras_par as kp
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        x, y = np.zeros((19, 4)), np.zeros((19, 2))
        for _ in range(2):
            model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[kp.callbacks.ProgressBar()])
        """,
    )
    job = start("python", 1, script)
    assert job.status == 0, job.output
    found = job.find(r"epoch [12]/2 step 5/5: loss 0, 19 rows, \d+ rows/s, [\d.]+ m?s a step")
    assert len(found) == 4, job.output
    assert "collectives" not in job.output


def test_a_bar_on_one_rank_only_is_refused(ranks):
    results = ranks(2).attempt(tasks.on_one_rank_only)
    assert all(isinstance(result, Failure) and result.kind == "AgreedValueError" for result in results)
    assert "'callbacks that act on all ranks' is ['ProgressBar'] on rank 0 but [] on rank 1" in results[1].message
