"""The notes of a rank: what they cost, what they say, and that a rank nobody watches is left alone."""

import contextlib
import itertools
import json
import math
import os
import threading
import time

import pytest

from keras_par.agent.notes import parsed
from keras_par.agent.rank_process import seconds_by_phase
from keras_par.base.heartbeat_page import (
    AT_ONCE,
    BY_USER,
    FOR_ANOTHER_WORLD,
    NEVER,
    NUM_BUCKETS,
    PHASES,
    SHORTEST_STEP,
    Page,
    bucket,
    clipped,
)
from keras_par.job import rank_heartbeat
from keras_par.job.rank_heartbeat import Heartbeat


@pytest.fixture
def heartbeat():
    return Heartbeat(Page(stop_before=NEVER), None)


def test_time_is_divided_among_phases():
    began = time.monotonic()
    heartbeat = Heartbeat(Page(stop_before=NEVER), None)
    with heartbeat.call("fit"):
        called = time.monotonic()
        heartbeat.begin_epoch(2, 5)
        heartbeat.enter(rank_heartbeat.DATA)
        time.sleep(0.02)
        heartbeat.enter(rank_heartbeat.CALLBACK)
        heartbeat.begin_step(1)
        assert (heartbeat.page.epoch, heartbeat.page.step, heartbeat.page.steps) == (2, 6, 1)
        assert PHASES[heartbeat.page.phase] == "step"
        time.sleep(0.03)
        heartbeat.end_step({"loss": 0.5})
        assert PHASES[heartbeat.page.phase] == "callback"
        within = time.monotonic() - called
    spent = dict(zip(PHASES, heartbeat.page.seconds, strict=True))
    assert spent["data"] >= 0.02 and spent["step"] >= 0.03
    assert within <= sum(spent.values()) <= time.monotonic() - began
    assert PHASES[heartbeat.page.phase] == "script"
    assert heartbeat.page.loss == 0.5


def test_all_time_is_told_and_that_in_collectives_as_reducing(heartbeat):
    """Also of those that Python waits for, outside of steps."""
    heartbeat.page.pid = os.getpid()
    with heartbeat.call("fit"):
        heartbeat.enter(rank_heartbeat.DATA)
        heartbeat.begin_step(1)
        heartbeat.end_step({})
        with heartbeat.collective("kp.mean"):
            time.sleep(0.02)
    now = time.monotonic()
    told = seconds_by_phase(heartbeat.page, now)
    assert told["reduce"] >= 0.02
    all_time = sum(heartbeat.page.seconds) + now - heartbeat.page.phase_since
    assert sum(told.values()) == pytest.approx(all_time, abs=1e-3)  # each is told rounded


def test_an_evaluation_counts_no_training_steps_and_leaves_the_place(heartbeat):
    with heartbeat.call("fit"):
        heartbeat.begin_epoch(0, 0)
        heartbeat.begin_step(4)
        with heartbeat.call("evaluate"):
            heartbeat.begin_step(4)
            heartbeat.end_step({"loss": 9.0})
            assert heartbeat.page.step == 4
        assert (heartbeat.page.step, heartbeat.page.steps, heartbeat.page.executions) == (4, 4, 2)
        assert math.isnan(heartbeat.page.loss)


def test_step_times_are_counted_from_begin_to_begin(heartbeat):
    begins = []
    with heartbeat.call("fit"):
        for _ in range(3):
            heartbeat.begin_step(2)
            begins.append(heartbeat.page.phase_since)
            heartbeat.end_step({})
            time.sleep(0.02)
    counts = list(heartbeat.page.step_times)
    assert sum(counts) == 4  # two intervals of two steps
    assert min(number for number, count in enumerate(counts) if count) >= bucket(0.01)
    assert {number for number, count in enumerate(counts) if count} == {
        bucket((end - begin) / 2) for begin, end in itertools.pairwise(begins)
    }


def test_buckets_cover_a_quarter_of_an_octave():
    for number in range(NUM_BUCKETS):
        begin = SHORTEST_STEP * 2 ** (number / 4)
        assert bucket(begin * 1.01) == number
        assert bucket(begin * 1.18) == number
    assert bucket(0.0) == 0 and bucket(1e9) == NUM_BUCKETS - 1


def test_all_ranks_stop_after_the_same_step(heartbeat):
    with heartbeat.call("fit"):
        heartbeat.page.pause, heartbeat.page.stop_before = FOR_ANOTHER_WORLD, 3
        heartbeat.begin_step(1)
        heartbeat.end_step({})
        assert not heartbeat.must_stop
        heartbeat.begin_step(1)
        heartbeat.end_step({})
        assert heartbeat.must_stop


@pytest.mark.parametrize("stop_before", [4, AT_ONCE])
def test_a_rank_whose_fit_ends_before_the_step_stops_there(heartbeat, stop_before):
    """If the user asked while all ranks were in fit; else a signal comes to all."""
    asked = contextlib.nullcontext() if stop_before == AT_ONCE else pytest.raises(KeyboardInterrupt, match="fit")
    with asked, heartbeat.call("fit"):
        heartbeat.begin_step(1)
        heartbeat.page.pause = BY_USER
        threading.Timer(0.05, setattr, (heartbeat.page, "stop_before", stop_before)).start()
    assert heartbeat.page.stop_before == stop_before


def test_a_fit_that_ends_before_other_ranks_are_found_goes_on(heartbeat):
    with heartbeat.call("fit"):
        heartbeat.page.pause, heartbeat.page.stop_before = FOR_ANOTHER_WORLD, 4
    assert not heartbeat.page.in_fit


def test_a_rank_does_not_stop_by_itself(heartbeat):
    assert heartbeat.page.stop_before == NEVER and not heartbeat.must_stop


def test_nobody_watches_a_process_that_no_launcher_started(monkeypatch):
    monkeypatch.delenv("KERAS_PAR_WATCH", raising=False)
    assert rank_heartbeat.inherited() is None


def test_a_child_of_a_rank_does_not_write_on_its_page(monkeypatch, tmp_path):
    """It has the variable but not the files, or files of other processes behind the same numbers."""
    with (tmp_path / "other").open("wb+") as other:
        other.write(b"x" * 10000)
        other.flush()
        for number in (other.fileno(), 9999):
            monkeypatch.setenv("KERAS_PAR_WATCH", f"{number},{number},{number}")
            assert rank_heartbeat.inherited() is None
        assert (tmp_path / "other").read_bytes() == b"x" * 10000


def test_notes_never_wait():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    heartbeat = Heartbeat(Page(stop_before=NEVER), writer)
    begin = time.monotonic()
    for number in range(5000):
        heartbeat.tell("epoch", epoch=number, logs={"loss": 0.5})
    assert time.monotonic() - begin < 60
    first = json.loads(os.read(reader, 65536).splitlines()[0])
    assert first["note"] == "epoch" and first["epoch"] == 0 and first["logs"] == {"loss": 0.5}
    os.close(reader)
    heartbeat.tell("epoch")  # whoever read is gone
    os.close(writer)


def test_names_are_clipped_between_characters():
    assert clipped("é" * 10, 8) == "ééé".encode()
    assert clipped("short", 160) == b"short"


def notes_of(reader: int) -> list[tuple[str, dict]]:
    return [note for note in map(parsed, os.read(reader, 65536).decode().splitlines()) if note is not None]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_where_a_call_is_left_by_what_is_no_error_is_told(error):
    reader, writer = os.pipe()
    heartbeat = Heartbeat(Page(stop_before=NEVER), writer)
    with pytest.raises(type(error)), heartbeat.call("fit"):
        heartbeat.begin_epoch(2, 0)
        heartbeat.begin_step(1)
        with heartbeat.call("evaluate"):
            raise error
    [(kind, note)] = notes_of(reader)
    assert kind == "leaving" and (note["call"], note["epoch"], note["step"]) == ("evaluate", 2, 0)
    assert note["user_line"].startswith(f"{__file__}:") and note["user_line"].endswith("raise error")
    for each in (reader, writer):
        os.close(each)


@pytest.mark.parametrize(
    "text", ["", "x", "1,2", "1,2,3,4", "-1,-2,-3", "9" * 31 + ",1,2", "0,0,0", "٣,1,1", "7,999999,8"]
)
def test_garbage_in_the_launchers_variable_is_no_watcher(text, monkeypatch):
    monkeypatch.setenv("KERAS_PAR_WATCH", text)
    assert rank_heartbeat.inherited() is None
