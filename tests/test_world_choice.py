"""Which world comes next, what of the worlds before counts, and what the page of a run says of them."""

import argparse
import threading
import time

import pytest

from keras_par.cluster.hosts import ClusterError, Host, Place, discovered
from keras_par.cluster.reach import AS_SET
from keras_par.launch import next_world as choice
from keras_par.launch.cli import main
from keras_par.launch.goodput import Account
from keras_par.launch.next_world import (
    MOST_SECONDS,
    AwaitedWorlds,
    ChangingWorlds,
    FixedWorlds,
    LeftOut,
    Limits,
    Watch,
)
from keras_par.launch.run_request import Span, UsageError, limits_of
from keras_par.report import head, page, run_folder
from tests import run_folders, worlds

A, B, C = Host("a", 2), Host("b", 2), Host("c", 1)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_host_is_left_out_twice_as_long_each_time():
    clock = Clock()
    left_out = LeftOut(clock)
    for seconds in (10, 20, 40):
        assert left_out.add("a") == seconds
        assert left_out.without([A, B]) == [B]
        clock.now += seconds - 0.1
        assert left_out.without([A, B]) == [B]
        clock.now += 0.2
        assert left_out.without([A, B]) == [A, B]
    assert max(left_out.add("a") for _ in range(9)) == MOST_SECONDS


def test_slots_are_left_out_one_by_one():
    clock = Clock()
    left_out = LeftOut(clock)
    left_out.add("a", slots=1)
    assert left_out.without([A, B]) == [Host("a", 1), B]
    left_out.add("a", slots=1)
    assert left_out.without([A, B]) == [B]
    clock.now += 1000
    assert left_out.without([A, B]) == [A, B]
    left_out.add("a", slots=1)
    assert left_out.without([A]) == [Host("a", 1)]


def test_hosts_are_discovered_by_a_script(tmp_path):
    script, listed = worlds.discovery_script(tmp_path, "a:2\n\n b \na:1\n")
    assert discovered(script) == [Host("a", 3), Host("b", 1)]
    listed.write_text("")
    assert discovered(script) == []
    listed.write_text("a:x\n")
    with pytest.raises(ClusterError, match=r"what '.*discover' prints: host a has 'x' slots"):
        discovered(script)
    script.write_text("#!/bin/sh\necho no such cluster >&2\nexit 3\n")
    with pytest.raises(ClusterError, match=r"ended with status 3 \(no such cluster\)"):
        discovered(script)
    with pytest.raises(ClusterError, match=r"'nowhere' cannot be run \(No such file or directory\)"):
        discovered(tmp_path.relative_to(tmp_path) / "nowhere")


@pytest.fixture
def cluster(monkeypatch):
    """Hosts of which some are out of reach; nobody waits long."""
    away: set[str] = set()
    monkeypatch.setattr(choice, "obstacles", lambda names, ssh: {name: "no route" for name in names if name in away})
    monkeypatch.setattr(choice, "UNREACHABLE_SECONDS", 0.0)
    monkeypatch.setattr(choice, "LOOK_SECONDS", 0.01)
    return away


def changing(hosts: list[Host], said: list[str], timeout: float = 0.1, **limits) -> ChangingWorlds:
    wanted = {"least": 1, "most": None, "first": 1} | limits
    return ChangingWorlds(lambda: hosts, Limits(**wanted), timeout, AS_SET, said.append)


def names(found: list[Place]) -> str:
    return "".join(place.host for place in found)


def next_of(asked: ChangingWorlds) -> str:
    return names(asked.next(lambda: False))


def test_a_world_has_the_hosts_that_can_be_reached(cluster):
    said: list[str] = []
    asked = changing([A, B, C], said)
    assert next_of(asked) == "aabbc"
    cluster.add("b")
    assert next_of(asked) == next_of(asked) == "aac"
    assert said == ["host b cannot be reached (no route): the job does without it until it can"]
    current = asked.next(lambda: False)
    assert asked.better_than(current) is None
    cluster.clear()
    assert asked.better_than(current) == "5 ranks fit now"
    assert next_of(asked) == "aabbc"


def test_a_world_keeps_its_limits(cluster):
    assert next_of(changing([A, B, C], [], most=3)) == "aab"
    assert next_of(changing([A, B, C], [], most_hosts=1)) == "aa"
    current = changing([A, B, C], [], most=3).next(lambda: False)
    assert changing([A, B, C], [], most=3).better_than(current) is None
    for limits in ({"least": 6, "first": 6}, {"first": 6}, {"least_hosts": 4}):
        said: list[str] = []
        with pytest.raises(ClusterError, match=r"fit into the hosts that there are, after 0\.1 s"):
            changing([A, B, C], said, **limits).next(lambda: False)
        assert len(said) == 1 and said[0].startswith("waiting for hosts: ")


def test_a_world_gives_way_when_its_host_is_not_listed_any_more(cluster):
    listed = [A, B]
    asked = changing(listed, [], least=2)
    current = asked.next(lambda: False)
    listed.remove(B)
    assert asked.better_than(current) == "host b has fewer slots now"
    listed.remove(A)
    assert asked.better_than(current) is None  # too few are left: it goes on


def test_a_lost_host_is_left_out_and_one_that_kills_gets_fewer_ranks(cluster):
    said: list[str] = []
    asked = changing([A, B], said)
    asked.lose("b")
    assert next_of(asked) == "aa" and said == ["host b is left out for 10 s"]
    asked.blame("a")
    assert next_of(asked) == "a"
    assert "host a gets one rank less for 10 s" in said[1]
    asked.lose("localhost")  # where the launcher is
    assert len(said) == 2


def test_a_world_of_the_same_hosts_waits_for_one_that_was_lost(cluster):
    said: list[str] = []
    found = [Place(0, "a"), Place(1, "b")]
    asked = AwaitedWorlds(found, 0.1, AS_SET, said.append)
    cluster.add("b")
    assert asked.next(lambda: False) == found and said == []  # it was not lost
    asked.lose("b")
    with pytest.raises(ClusterError, match=r"host b cannot be reached after 0\.1 s \(no route\): bring it back"):
        asked.next(iter([False] * 99).__next__)  # which is asked each 10 ms
    assert said == ["waiting for host b, which cannot be reached (no route)"]
    patient = AwaitedWorlds(found, 60, AS_SET, said.append)
    patient.lose("b")
    with pytest.raises(ClusterError):
        patient.next(iter([True]).__next__)  # at once
    threading.Timer(0.1, cluster.clear).start()
    assert patient.next(lambda: False) == found and not cluster


def test_hosts_that_cannot_be_read_end_no_world(cluster):
    said: list[str] = []

    def read():
        raise ClusterError("keras-par: the list is gone.")

    asked = ChangingWorlds(read, Limits(1, None, 1), 0.1, AS_SET, said.append)
    assert asked.better_than([Place(0, "a")]) is asked.better_than([Place(0, "a")]) is None
    assert said == ["the list is gone."]


def test_a_list_of_hosts_that_is_half_written_ends_no_world(cluster, monkeypatch):
    monkeypatch.setattr(choice, "LOOK_SECONDS", 0.01)
    looks = iter([None, "host b has fewer slots now", None, "5 ranks fit now", "5 ranks fit now", "5 ranks fit now"])
    seen: list[str | None] = []

    class Listed(FixedWorlds):
        def better_than(self, current):
            seen.append(watch.reason if seen else None)
            return next(looks, "5 ranks fit now")

    watch = Watch(Listed([]), [], AS_SET)
    while len(seen) < 8:
        time.sleep(0.01)
    watch.close()
    assert seen[:8] == [None] * 5 + ["5 ranks fit now"] * 3


def test_a_world_waits_where_the_list_cannot_be_read_yet(cluster):
    answers = iter([ClusterError("keras-par: it names no host."), [A]])
    said: list[str] = []

    def read():
        answer = next(answers)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    asked = ChangingWorlds(read, Limits(1, None, 1), 5.0, AS_SET, said.append)
    assert next_of(asked) == "aa"
    assert said[0] == "it names no host."


def options(**given) -> argparse.Namespace:
    found = {"min_ranks": None, "max_ranks": None, "num_ranks": None, "per_node": None, "nnodes": None}
    others = {"host_discovery_script": None, "rank_table": None, "hosts": None, "hostfile": None}
    return argparse.Namespace(**found | others | given)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"num_ranks": 4}, None),
        ({"nnodes": Span(2, 2)}, None),
        ({"num_ranks": 4, "min_ranks": 2}, Limits(2, None, 4)),
        ({"min_ranks": 2, "max_ranks": 8}, Limits(2, 8, 2)),
        ({"num_ranks": 4, "max_ranks": 8}, Limits(4, 8, 4)),
        ({"nnodes": Span(1, 3), "per_node": 2}, Limits(2, None, 2, 1, 3)),
        ({"host_discovery_script": "x"}, Limits(1, None, 1)),
    ],
)
def test_limits_are_read(given, limits, monkeypatch):
    monkeypatch.delenv("RANK_TABLE_FILE", raising=False)
    assert limits_of(options(**given)) == limits


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_ranks": 4, "max_ranks": 2}, "--min-np 4, -np 4 and --max-np 2 must be in this order"),
        ({"min_ranks": 4, "num_ranks": 2}, "--min-np 4, -np 2 and --max-np None must be in this order"),
        ({"min_ranks": 1, "rank_table": "t.json"}, "a rank table has all ranks there are: leave 't.json' out"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(given, said, monkeypatch):
    monkeypatch.delenv("RANK_TABLE_FILE", raising=False)
    with pytest.raises(UsageError, match=said):
        limits_of(options(**given))


def test_nnodes_that_are_no_range_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--nnodes", "3:2", "x.py"])
    assert "'3:2' must be MIN:MAX" in capsys.readouterr().err


def test_what_comes_after_the_checkpoint_that_a_world_goes_on_from_does_not_count():
    account = Account()
    account.begin()
    account.note_first_step(1000.0)
    account.note_steps(7, 1007.0)
    account.note_checkpoint("CKP-1_7", 1007.0, 7)
    account.note_steps(14, 1014.0)
    account.note_checkpoint("CKP-1_14", 1014.0, 14)
    account.note_steps(20, 1020.0)
    account.begin()
    assert account.note_resume("CKP-1_14") == 6
    account.note_first_step(1050.0)
    account.note_steps(3, 1053.0)
    account.begin()  # which died before it had a checkpoint of its own
    assert account.note_resume("CKP-1_14") == 3
    account.note_first_step(1090.0)
    account.note_steps(10, 1099.0)
    assert account.trained_seconds() == 14 + 0 + 9
    account.note_checkpoint("CKP-1_22", 1097.0, 8)  # whose state has the first world's steps, too
    account.begin()
    assert account.note_resume("CKP-1_22") == 2
    assert account.trained_seconds() == 14 + 0 + 7 + 0
    account.begin()  # the newest was damaged
    assert account.note_resume("CKP-1_7") == 7 + 8
    assert account.trained_seconds() == 7


def test_a_world_that_begins_anew_leaves_nothing_of_those_before():
    account = Account()
    account.begin()
    account.note_first_step(1000.0)
    account.note_steps(20, 1020.0)
    account.begin()
    assert account.trained_seconds() == 20  # until it has done a step, it may still go on from a checkpoint
    account.note_first_step(1050.0)
    account.note_steps(5, 1054.0)
    assert account.trained_seconds() == 0 + 4 and not account.has_checkpoint


def test_the_page_says_how_much_of_the_time_counted(tmp_path):
    run_folders.describe(tmp_path, 2)
    why = "rank 1 on host node01 vanished <b>together</b>"
    ended = {"num_ranks": 2, "hosts": ["node00", "node01"], "began": run_folders.STARTED, "why": why}
    later = {"num_ranks": 1, "hosts": ["node00"], "began": run_folders.STARTED + 60, "why": "it finished"}
    lines = [
        run_folders.event(0, "start", "2 rank(s) started on 2 host(s)"),
        run_folders.event(50, "world", f"2 rank(s), until: {why}", **ended),
        run_folders.event(51, "restart", "restart 1 of 3", attempt=1),
        run_folders.event(62, "resume", "from CKP-1_7", attempt=1, steps_lost=5),
        run_folders.event(99, "world", "1 rank(s)", attempt=1, **later),
        run_folders.event(99, "world", "of something else", attempt=1, num_ranks="many"),
        run_folders.event(100, "end", "the job ended with status 0", attempt=1, status=0, trained_share=0.5),
    ]
    run_folders.write_lines(tmp_path / "events.jsonl", lines)
    found = run_folder.read(tmp_path)
    assert dict(head.facts(found))["ETTR"] == "50.0\N{NO-BREAK SPACE}%"
    assert "&lt;b&gt;together" in page.render(found)


def test_waiting_for_hosts_ends_when_the_user_wants_it(cluster):
    cluster.add("a")
    began = time.monotonic()
    with pytest.raises(ClusterError):
        changing([A], [], timeout=60).next(lambda: time.monotonic() - began > 0.1)
    assert time.monotonic() - began < 5
