"""`keras-par report`: its numbers, what it makes of damaged folders, and its page as a real browser shows it."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from keras_par.launch import cli
from keras_par.report import charts, head, measures, page, run_folder
from tests import browser, run_folders

SECTIONS = ["Loss and metrics", "Step times", "Time by phase", "Slow ranks", "Communication over time", "Memory"]
KINDS = {kind.__name__: kind for kind in (run_folders.by_hand, run_folders.crash_at_once, run_folders.hostile)}


def many_but_one(folder: Path) -> None:
    """Hundreds of ranks, one of which noted no progress."""
    run_folders.many(folder, 400, lines=6, slow=123)
    (folder / "rank.398" / "progress.jsonl").unlink()


KINDS |= {"long_run": run_folders.long_run, "many": many_but_one}


def report(*given: str) -> int:
    """Runs the command with these arguments."""
    return cli.main(["report", *given])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A run's folder of each kind, with its page."""
    base = tmp_path_factory.mktemp("runs")
    for name, write in KINDS.items():
        write(base / name)
        assert report(str(base / name)) == 0
    return {name: base / name for name in KINDS}


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    driver = browser.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def seen(chrome, folders) -> dict[tuple[str, int], browser.Seen]:
    """What the browser saw of each page, on a laptop and on a telephone."""
    return {
        (name, width): browser.look(chrome, folder / "report.html", width)
        for name, folder in folders.items()
        for width in (1280, 400)
    }


def test_nothing_leaves_the_file_and_nothing_complains(seen, folders):
    for (name, _), saw in seen.items():
        assert saw.console == []
        assert saw.requests == [(folders[name] / "report.html").as_uri()]
        assert saw.page["active"] == 2 + len(saw.page["charts"])  # uPlot, page.js, and the data of each chart


def test_a_page_that_did_would_be_found(chrome, folders, tmp_path):
    text = (folders["by_hand"] / "report.html").read_text()
    intruder = '<div style="width: 2000px; height: 1px"></div><script src="missing.js"></script>'
    for name, changed in (("kept", text), ("loose", text.replace("Content-Security-Policy", "x"))):
        (tmp_path / f"{name}.html").write_text(changed.replace("</main>", intruder + "</main>"))
        saw = browser.look(chrome, tmp_path / f"{name}.html", 400)
        assert saw.page["active"] == 3 + len(saw.page["charts"]) and saw.page["width"] > 1900 and len(saw.requests) == 2
        [complaint] = saw.console
        assert ("has been blocked" in complaint) == (name == "kept")  # by the page's own policy


@pytest.mark.parametrize("width", [1280, 400])
def test_every_section_and_chart_is_there_and_fits(seen, width):
    for (name, at), saw in seen.items():
        if at == width:
            assert saw.page["width"] == width, name
            assert len(saw.page["charts"]) == saw.page["figures"] == len(saw.page["drawn"]) and all(saw.page["drawn"])
            for label, *size in saw.page["charts"]:
                assert size[0] > 280 and size[1] > 50, (name, label)
    for name in ("by_hand", "long_run"):
        saw = seen[name, width].page
        assert saw["headings"][0].startswith("train.py")
        assert [heading for heading in saw["headings"] if heading in SECTIONS] == SECTIONS
        assert saw["headings"][-1] == "Events"
        labels = [label for label, *_ in saw["charts"]]
        assert {"loss over steps", "distribution of step times, by rank"} <= set(labels)
        assert {"communication share over time, by rank", "resident memory, GiB over time, by rank"} <= set(labels)
        assert labels[-1] == "events over time"
    assert {"accuracy over steps", "learning_rate over steps"} <= {c[0] for c in seen["long_run", width].page["charts"]}


def test_the_page_says_what_was_added_up_by_hand(seen):
    saw = seen["by_hand", 1280].page
    values = {name: [line for line in text.split("\n") if line][1:] for name, text in saw["cards"].items()}
    assert values["card-steps"] == ["400", "3 epochs finished"]
    assert values["card-speed"] == ["5.71", "median step 24.4 ms"]  # 800 steps in 60 + 80 seconds
    assert values["card-loss"] == ["0.2500", "validation 0.3750"]
    assert values["card-communication"] == ["7.1 %", "of the time in fit"]  # 10 of 140 seconds
    assert values["card-slowest"] == ["rank 1", "60.0 % more time per step than the median of the others"]
    assert saw["facts"] == {
        **{"ranks": "2", "engine": "MPI", "host": "node00", "started": "2025-11-20 14:46:40 UTC"},
        **{"took": "1 min 30 s", "restarts": "1", "versions": "keras-par 0.2.0, Python 3.11.7"},
    }
    assert saw["tables"]["step-times"] == [
        ["0", "400", "22.1 ms", "24.1 ms", "24.3 ms", "24.4 ms"],
        ["1", "400", "44.7 ms", "48.3 ms", "48.6 ms", "48.7 ms"],
    ]
    assert saw["tables"]["phases"] == [
        ["0", "node00", "", "1 min 15 s", "20.0 %", "13.3 %", "40.0 %", "13.3 %", "13.3 %"],
        ["1", "node00", "", "1 min 35 s", "15.8 %", "21.1 %", "41.1 %", "0.0 %", "22.1 %"],
    ]
    assert saw["tables"]["ranking"] == [
        ["1", "node00", "", "200 ms", "+60.0 %", "50.0 ms", "97.5 ms", "52.5 ms"],
        ["0", "node00", "", "125 ms", "fastest", "25.0 ms", "75.0 ms", "25.0 ms"],
    ]
    assert "The most was 1.5 GiB, on rank 1." in saw["text"]
    answer = "22.1 % of the time in fit is callbacks and other Python between steps"  # 31 of 140 seconds
    assert answer in saw["text"].replace("\N{NO-BREAK SPACE}", " ")


def test_events_are_told_with_their_stacks_folded(seen):
    saw = seen["by_hand", 1280].page
    crash = saw["tables"]["events"][1]
    assert crash[:2] == ["21.0 s\n14:47:01", "crash\nrank 1, attempt 0"]
    assert "Rank 1 on node00 failed: ValueError: <script>document.title = 'gone'</script> & more." in crash[2]
    assert "Stack of rank 1" in crash[2] and "line 31" not in crash[2]
    assert [text.split("\n")[0] for text, _ in saw["folded"]] == ["<b>bold?</b>", run_folders.STACK.split("\n")[0]]
    assert not any(is_open for _, is_open in saw["folded"])
    assert saw["title"].startswith("train.py")
    assert [row[1].split()[0] for row in seen["long_run", 400].page["tables"]["events"]] == [
        *("start", "warning", "hang", "restart", "resume", "end"),
    ]


def test_a_run_that_crashed_at_once_says_so_and_what_is_missing(seen):
    saw = seen["crash_at_once", 1280].page
    assert saw["headings"] == [
        *("train.py failed, exit status 1", "Steps", "Events", "What this run did not come to"),
    ]
    assert saw["text"].count("No module named 'pandsa' (train.py, line 3)") == 2  # on top and among the events
    for title in SECTIONS:
        assert title in saw["text"]
    assert "No epoch ended and no rank noted a loss, so there is no curve." in saw["text"]
    assert [label for label, *_ in saw["charts"]] == ["events over time"]


def test_what_a_run_wrote_is_shown_as_it_is_and_does_nothing(seen):
    for width in (1280, 400):
        saw = seen["hostile", width].page
        assert run_folders.HOSTILE.rpartition("/")[2] + ".py" in saw["title"]
        assert f"{run_folders.HOSTILE} red ? {{{{ 7 * 7 }}}} -->" in saw["text"]
        assert "$x^2$" in saw["text"] and "<b>mpi" in saw["text"] and "Verlust äöü 損失" in saw["text"]
        unreadable = f"{len(run_folders.NOT_PROGRESS)} lines of rank.1/progress.jsonl could not be understood"
        assert unreadable in saw["text"] and "The last line of rank.1/progress.jsonl is cut." in saw["text"]
        assert "2 values of loss are not finite and not drawn." in saw["text"]
        assert "no end recorded" in saw["headings"][0]


def test_a_long_run_is_small_and_names_its_slow_rank(seen, folders):
    for name in KINDS:
        assert (folders[name] / "report.html").stat().st_size < (1_000_000 if name == "many" else 500_000)
    saw = seen["long_run", 1280].page
    assert "rank 2" in saw["cards"]["card-slowest"]
    assert saw["cards"]["card-steps"].split("\n")[-1] == "13 epochs finished"
    assert saw["tables"]["ranking"][0][0] == "2"


def test_of_many_ranks_those_that_matter_are_shown(seen, folders):
    saw = seen["many", 1280].page
    ranks = [row[0] for row in saw["tables"]["ranking"]]
    assert ranks[0] == "123" and {"0", "7", "399"} < set(ranks) and len(ranks) == 64
    for name in ("step-times", "phases"):
        assert [row[0] for row in saw["tables"][name]] == sorted(ranks, key=int)
    assert "own time per step, of all ranks" in [label for label, *_ in saw["charts"]]
    assert saw["text"].count("Of 399 ranks 64 are shown: the slowest, 8 fast ones, the first and the last") == 3
    assert "report.ranks.csv has all. Rank 398 noted no progress." in saw["text"]
    assert "median rank" in saw["legends"][-2]
    table = (folders["many"] / "report.ranks.csv").read_text().splitlines()
    assert len(table) == 400 and table[0].startswith("rank,host,steps,own ms a step,script s,data s")
    assert table[124].startswith("123,node0015,1000,") and not (folders["long_run"] / "report.ranks.csv").exists()


def test_a_band_holds_all_curves():
    curves = [[[(x, x + rank) for x in range(100)]] for rank in range(5)]
    band = charts.band(curves)
    assert len(band) == charts.BINS and band[0][1:] == (0, 2, 4) and band[-1][1:] == (99, 101, 103)


def test_dark_paper_print_and_light(chrome, folders):
    path = folders["by_hand"] / "report.html"
    light, dark = (browser.look(chrome, path, 1280, scheme=scheme).page for scheme in ("light", "dark"))
    assert brightness(light["background"]) > 240 > 60 > brightness(light["ink"])
    assert brightness(dark["background"]) < 40 < 200 < brightness(dark["ink"])
    printed = browser.look(chrome, path, 700, media="print", scheme="dark").page
    assert printed["background"] == light["background"] and printed["ink"] == light["ink"]
    assert [label for label, *_ in printed["charts"]] == [label for label, *_ in light["charts"]]
    assert all(width > 600 for _, width, _ in printed["charts"])  # those for wide screens


def test_values_are_read_and_a_part_is_enlarged(chrome, folders):
    browser.look(chrome, folders["by_hand"] / "report.html", 1280)
    left, top, width, height = chrome.execute_script(
        "const r = document.querySelector('.u-over').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]"
    )

    def mouse(kind, across, down, **others):
        place = {"x": left + across * width, "y": top + down * height}
        chrome.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "button": "left", **place, **others})

    def picture():
        return chrome.execute_script("return document.querySelector('.chart canvas').toDataURL()")

    whole = picture()
    mouse("mouseMoved", 0.62, 0.9, button="none")
    read = chrome.execute_script("return document.querySelector('.u-legend').innerText")
    read = "".join(read.split())
    assert "training0.6" in read and "validation0.7" in read and "steps250" in read
    for kind, across in (("mousePressed", 0.2), ("mouseMoved", 0.4), ("mouseReleased", 0.4)):
        mouse(kind, across, 0.5, clickCount=1, buttons=1)
    assert picture() != whole
    for count in (1, 2):
        mouse("mousePressed", 0.5, 0.5, clickCount=count)
        mouse("mouseReleased", 0.5, 0.5, clickCount=count)
    mouse("mouseMoved", 0.5, -0.5, button="none")
    assert picture() == whole


def test_a_chart_has_few_points_however_long_the_run():
    curve = [[(float(x), x / 3) for x in range(9000)], [(float(x), 1.0) for x in range(9001, 9003)]]
    for count in (1, 64):
        axis = charts.Axis("steps", 0.0, 9003.0)
        lines = charts.Chart("x", axis, axis, [charts.Line("a", "faint", curve)] * count).as_json()["lines"]
        points = [each["points"] for each in lines]
        assert sum(len(x) for x, _ in points) <= charts.POINTS + 4 * count and len(points[0][0]) <= 1004
        assert points[0][0][-1] == 9002 and points[0][1].count(None) == 1


def brightness(colour: str) -> float:
    """The mean of the three parts, 0 to 255, of what the browser calls rgb(...)."""
    return sum(float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3


def test_the_same_folder_makes_the_same_page(folders, tmp_path, capsys):
    assert report(str(folders["by_hand"]), "-o", str(tmp_path / "again.html")) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'again.html'}\n"
    assert (tmp_path / "again.html").read_bytes() == (folders["by_hand"] / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("kinds", "word", "culprit"),
    [
        (["start", "end 0"], "finished", None),
        (["start", "hang", "recovered", "end 0"], "finished", None),
        (["start", "hang", "end 7"], "failed, exit status 7", "hang"),
        (["start", "hang", "recovered", "crash", "crash", "end 1"], "failed, exit status 1", "crash"),
        (["start", "interrupt", "end 130"], "interrupted", None),
        (["start", "crash", "interrupt", "end 1"], "failed, exit status 1", "crash"),
        (["start", "hang"], "no end recorded", "hang"),
        (["start"], "no end recorded", None),
        ([], "no end recorded", None),
    ],
)
def test_how_a_run_ended(tmp_path, kinds, word, culprit):
    lines = []
    for time, kind in enumerate(kinds):
        kind, _, status = kind.partition(" ")
        lines.append(run_folders.event(time, kind, f"{time}", rank=1, **({"status": int(status)} if status else {})))
    run_folders.write_lines(tmp_path / "events.jsonl", lines)
    run = run_folder.read(tmp_path)
    assert head.ending(run).word == word
    named = head.culprit(run)
    assert (named and named.kind) == culprit
    assert named is None or named.text == str(kinds.index(culprit))


def test_communication_is_that_of_each_stretch(tmp_path):
    run_folders.by_hand(tmp_path)
    run = run_folder.read(tmp_path)
    begin = run_folders.STARTED
    first, second = measures.communication_over_time(run.progress[0], 5)
    assert first == [(begin + 15, pytest.approx(0.2))] and second == [(begin + 60, pytest.approx(0.16))]
    assert measures.steps_before(run) == {0: 0, 1: 100}


def test_no_rank_is_called_slow_by_chance(tmp_path):
    run_folders.describe(tmp_path, 2)
    for share, expected in ((1.04, None), (1.5, pytest.approx(0.5))):
        for rank, work in enumerate((20.0, 20.0 * share)):
            line = run_folders.sample(60, 100, (0, 0, work, 60 - work, 0))
            run_folders.write_lines(tmp_path / f"rank.{rank}" / "progress.jsonl", [line])
        assert measures.stands_out(measures.ranking(run_folder.read(tmp_path))) == expected
    for rank, work in enumerate((0.5, 0.6)):  # half a dozen samples tell nothing
        line = run_folders.sample(60, 100, (0, 0, work, 1 - work, 0))
        run_folders.write_lines(tmp_path / f"rank.{rank}" / "progress.jsonl", [line])
    assert measures.stands_out(measures.ranking(run_folder.read(tmp_path))) is None


def test_metrics_that_are_arrays_are_left_out():
    line = {"attempt": 0, "epoch": 1, "steps": 20, "logs": {"loss": 0.5, "f1_score": [0.1, 0.2]}}
    assert run_folder.parse_epoch(line).logs == {"loss": 0.5}


def test_a_file_may_be_cut_anywhere(tmp_path):
    run_folders.by_hand(tmp_path)
    path = tmp_path / "rank.0" / "progress.jsonl"
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        run = run_folder.read(tmp_path)
        found = len(run.progress[0].samples) if 0 in run.progress else 0
        assert found == sum(end <= length for end in ends)
        is_cut = length not in (0, *ends, *(end + 1 for end in ends))
        assert run.notes == (["The last line of rank.0/progress.jsonl is cut."] if is_cut else [])


def test_no_damage_stops_the_reader(tmp_path):
    run_folders.by_hand(tmp_path)
    whole = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    assert len(whole) == 6
    for seed in range(300):
        chance = random.Random(seed)
        for path, content in whole.items():
            path.write_bytes(damaged(content, chance))
            if chance.random() < 0.1:
                path.unlink()
        run = run_folder.read(tmp_path)
        if seed % 60 == 0:
            assert "</html>" in page.render(run)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """`content` with a few bytes changed, lost, doubled or put in."""
    changed = bytearray(content)
    for _ in range(chance.randrange(6)):
        place = chance.randrange(len(changed) + 1)
        stop = place + chance.choice((1, 3, 40))
        others = bytes(chance.randrange(256) for _ in range(3))
        numbers = chance.choice((b"null", b"-1", b"1e999", b"9" * 30, b'"x"', b"[]", b"{}", b"\n"))
        changed[place:stop] = chance.choice((b"", others, numbers, bytes(changed[place:stop]) * 2))
    return bytes(changed)


def test_only_regular_files_are_read(tmp_path):
    run_folders.by_hand(tmp_path)
    for name in ("run.json", "events.jsonl", "rank.0/progress.jsonl"):
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / "events.jsonl")  # into which nobody writes
    (tmp_path / "run.json").symlink_to("/dev/zero")
    (tmp_path / "rank.0/progress.jsonl").symlink_to("/dev/zero")
    run = run_folder.read(tmp_path)
    assert run.notes == [
        "run.json could not be understood (OSError), so part of the head is missing.",
        "events.jsonl could not be read (it is a pipe and no regular file).",
        "rank.0/progress.jsonl could not be read (it is a link and no regular file).",
    ]


def test_a_very_long_run_is_thinned_but_ends_where_it_ended(tmp_path):
    run_folders.describe(tmp_path, 1)
    lines = [run_folders.sample(s, s, (s, s, s, s, s), s // 50_000, rss=s % 977) for s in range(60_000)]
    run_folders.write_lines(tmp_path / "rank.0" / "progress.jsonl", lines)
    progress = run_folder.read(tmp_path).progress[0]
    curve = [sample for samples in progress.curves().values() for sample in samples]
    assert 400 < len(curve) < 1003
    assert progress.steps == 49_999 + 59_999 and progress.peak_rss == 976
    assert [curve[0].steps, curve[-1].steps] == [0, 59_999]


def test_memory_that_only_lines_that_are_left_out_tell_of_has_no_chart(tmp_path):
    run_folders.describe(tmp_path, 1)
    lines = [run_folders.sample(s, s, (s, s, s, s, s), rss=5000 * (s == 3)) for s in range(1200)]
    run_folders.write_lines(tmp_path / "rank.0" / "progress.jsonl", lines)
    assert run_folder.read(tmp_path).progress[0].peak_rss == 5000
    assert report(str(tmp_path)) == 0
    assert 'id="memory"' not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nowhere"], "there is no folder 'nowhere': give the one that the run had as --log-dir."),
        (["empty"], "'empty' holds no run: it has no run.json, no events.jsonl and no rank.0."),
        (["run", "-o", "nowhere/x.html"], "'nowhere/x.html' cannot be used (No such file or directory)"),
    ],
)
def test_mistakes_get_one_sentence(tmp_path, monkeypatch, capsys, given, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    run_folders.crash_at_once(tmp_path / "run")
    assert report(*given) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.count("\n") == 1 and written.out == ""


def test_without_the_extra_it_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    run_folders.crash_at_once(tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert report(str(tmp_path)) == 2
    assert capsys.readouterr().err == "keras-par: a page needs jinja2: run 'pip install jinja2'.\n"


def test_the_command_line_loads_nothing_that_makes_pages():
    script = (
        "import sys; from keras_par.report import command;"
        "print([name for name in ('jinja2', 'numpy', 'tensorflow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_without_a_browser_the_tests_say_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="run 'make browser'"):
        browser.start(tmp_path)
