"""The pages of plans and searches show what the JSON says, in a browser of any width, light and dark."""

import json
import math

import pytest

from tests.browser import look, start
from tests.commands import run_plan
from tests.known_machine import KNOWN

MODEL = "tests/search_tasks.py:gpt"
LAYOUT = """
[options]
batch_dim_name = "{rows}"
[layout]
'up_\\d+/kernel' = ["{rows}", "{columns}"]
'up_\\d+/bias' = ["{columns}"]
'down_\\d+/kernel' = ["{columns}", "-"]
'embedding/embeddings' = ["-", "{columns}"]
"""
THREE = """
[mesh]
data = 2
rows = 2
columns = 2
[layout]
'up_\\d+/kernel' = ["rows", "columns"]
'down_\\d+/kernel' = ["columns", "rows"]
'attention_\\d+/(query|key|value)/kernel' = ["-", "rows", "-"]
'attention_\\d+/attention_output/kernel' = ["rows", "-", "columns"]
'embedding/embeddings' = ["columns", "rows"]
'logits/kernel' = ["data", "columns"]
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    path = tmp_path_factory.mktemp("machine") / "machine.toml"
    path.write_text(KNOWN.text())
    return str(path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, machine, ranks):
    """The page of a search and its JSON."""
    page = tmp_path_factory.mktemp("page") / "found.html"
    options = f"--search dynamic --ranks 8 --batch-size 8 --machine {machine}"
    done = run_plan(ranks, f"{MODEL} {options} --html {page} --json")
    assert done.status == 0, done.errors
    return page, json.loads(done.output)


@pytest.fixture(scope="module")
def browser(tmp_path_factory, searched):
    started = start(tmp_path_factory.mktemp("profile"))
    look(started, searched[0], 1200)  # its own first page asks for things until then
    yield started
    started.quit()


def cells(browser, table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    script = "return [...document.querySelectorAll(arguments[0])].map(r => [...r.cells].map(c => c.innerText.trim()))"
    return browser.execute_script(script, f"#{table} tbody tr")


@pytest.mark.long
def test_the_page_of_a_search_shows_what_was_found(searched, browser):
    page, found = searched
    seen = look(browser, page, 1200)
    assert seen.console == [] and seen.requests == [page.as_uri()] and seen.page["active"] == 0
    best = found["best"]
    assert len(browser.find_elements("css selector", ".mesh span")) == 8
    assert [row[0] for row in cells(browser, "layouts")] == list(found["layout"])
    layers = {row[0]: row for row in cells(browser, "layers")}
    assert float(layers["up_0"][1]) == pytest.approx(1e3 * found["layers"]["up_0"], abs=6e-4)
    others = cells(browser, "others")
    assert others[0][0] == "data parallel" and len(others) == 1 + len(found["others"])
    assert float(others[0][1]) == pytest.approx(1e3 * found["data_parallel"]["seconds"], abs=6e-4)
    rows = cells(browser, "alternatives")
    assert [row[0] for row in rows] == [each["pattern"] for each in found["alternatives"]] and len(rows) == 12
    longer = found["alternatives"][0]["seconds"] / best["seconds"] - 1
    assert rows[0][5] == f"{longer:+.2%}"


@pytest.mark.long
def test_the_bars_are_as_long_as_what_they_show(searched, browser):
    page, found = searched
    look(browser, page, 1200)
    parts = browser.execute_script(
        "const last = [...document.querySelectorAll('.stack')].at(-1);"
        "return [...last.querySelectorAll('i')].map(e => e.getBoundingClientRect().width)"
    )
    held = [size for name, size in found["best"].items() if name not in ("mesh", "seconds", "bytes") and size]
    for part, size in zip(parts, held, strict=True):
        assert part / sum(parts) == pytest.approx(size / sum(held), abs=0.01)
    rows = cells(browser, "layers")
    longest = max(float(row[1] or 0) for row in rows)
    bars = browser.execute_script(
        "return [...document.querySelectorAll('#layers tbody tr')].map(r => { const i = r.cells[2].querySelector('i');"
        "return i ? parseFloat(i.style.width) : 0 })"
    )
    for bar, row in zip(bars, rows, strict=True):
        assert bar == pytest.approx(100 * float(row[1] or 0) / longest, abs=0.2)


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_any_window(searched, browser, width, scheme):
    seen = look(browser, searched[0], width, scheme=scheme)
    assert seen.page["width"] == width
    assert (seen.page["background"] == "rgb(255, 255, 255)") == (scheme == "light")


@pytest.mark.long
def test_a_plan_predicts_time_and_memory_whatever_its_axes_are_called(tmp_path, machine, ranks):
    found = {}
    for name, text in (
        ("plain", "[mesh]\nbatch = 4\nmodel = 2\n" + LAYOUT.format(rows="batch", columns="model")),
        ("renamed", "[mesh]\ntensor = 2\ndata = 4\n" + LAYOUT.format(rows="data", columns="tensor")),
        ("three", THREE),
    ):
        path, page = (tmp_path / f"{name}.{kind}" for kind in ("toml", "html"))
        path.write_text(text)
        done = run_plan(ranks, f"{path} {MODEL} --ranks 8 --batch-size 8 --machine {machine} --json --html {page}")
        assert done.status == 0, done.errors
        plan = json.loads(done.output)
        prediction = found[name] = plan["prediction"]
        sent = sum(call["num_bytes"] for call in plan["collectives"]["train_step"])
        assert prediction["sent_bytes"] == sent and plan["hints"] == []
        assert prediction["parts"]["variables"] == plan["local_bytes"] and prediction["parts"]["gradients"] > 0
        assert math.isclose(sum(prediction["parts"].values()), prediction["bytes"])
        assert "Time and messages of each layer" in page.read_text() and "The same, enlarged" in page.read_text()
    plain, renamed = found["plain"], found["renamed"]
    assert plain["seconds"] == pytest.approx(renamed["seconds"]) and plain["parts"] == renamed["parts"]


def test_what_a_prediction_leaves_out_is_said(machine, ranks):
    done = run_plan(ranks, f"megatron tests/planning_tasks.py:transformer --ranks 2 --machine {machine}")
    assert done.status == 0, done.errors
    assert "bytes of collectives, the traced step sends" in done.output  # the norms of its optimizer


def test_without_a_machine_or_sizes_a_line_says_what_would_tell(tmp_path, machine, ranks):
    page, cache = tmp_path / "plan.html", str(tmp_path / "wheels")
    words = "data-parallel tests/planning_tasks.py:of_any_length --ranks 2 --batch-size 4"
    unmeasured = run_plan(ranks, f"{words} --html {page}", KERAS_PAR_CACHE=cache)
    assert unmeasured.status == 0, unmeasured.errors
    left_open = "A ? is a size that the trace left open"
    assert "run 'keras-par calibrate'" in unmeasured.output and "?" in unmeasured.output
    assert unmeasured.output.splitlines()[-1].startswith(left_open)
    assert page.read_text().count(left_open) == 2 and "keras-par calibrate" in page.read_text()
    (tmp_path / "machine.toml").write_text(KNOWN.text())  # where 'keras-par calibrate' writes
    unsized, sized = (
        json.loads(run_plan(ranks, f"{words} --json{more}", KERAS_PAR_CACHE=cache).output)
        for more in ("", " --input-shape 12")
    )
    assert unsized["prediction"] is None and "--input-shape" in unsized["hints"][0]
    assert sized["prediction"]["machine"] == "known" and sized["hints"] == []


def test_many_ranks_are_not_all_drawn():
    from keras_par.planning.page import picture_of

    wide = picture_of({"batch": 8, "model": 64}, 0, {1})
    assert [len(line) for line in wide["lines"]] == [32] * 8 and wide["num_hidden"] == 256
    for mesh in ({"batch": 512, "model": 1}, {"ranks": 512}):
        assert picture_of(mesh, 0, ())["num_hidden"] == 512 - 16 * 8
    assert picture_of({"ranks": 2}, 1, {0})["lines"] == [[(0, "near"), (1, "own")]]
