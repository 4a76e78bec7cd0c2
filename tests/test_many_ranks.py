"""Jobs of very many ranks: the launcher hears simulated agents, and what is done for each rank does not grow."""

import contextlib
import cProfile
import json
import pstats
import re
import resource
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.agents import rehearse
from keras_par.agent import wire
from keras_par.agent.states import Beats, Exit, State, brief, state_of
from keras_par.base.limited_server import NONCE_BYTES, PROOF_BYTES
from keras_par.base.slots import slots
from keras_par.cluster.hosts import Place
from keras_par.job import failures, rendezvous
from keras_par.job.launch_environment import MeetingPoint
from keras_par.launch import switchboard, verdict
from keras_par.launch.culprit import find_hang, first_failure, named
from keras_par.launch.engines import EngineError, Plan
from keras_par.launch.members import Member, Members
from keras_par.launch.reception import Silence, beat_seconds, seconds_ahead
from keras_par.launch.switchboard import Switchboard, make_room
from tests.launcher import Job, program
from tests.patience import PATIENCE, comes_to_be

RANKS, SECONDS = 300, 4.0
CULPRIT, OTHERS = RANKS // 2, f"ranks 0 to {RANKS // 2 - 1} and {RANKS // 2 + 1} to {RANKS - 1}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "status", "words", "orders"),
    [
        ("calm", 0, "the job ended with status 0", {}),
        ("crash", 1, f"Rank {CULPRIT} on host .* exited with status 1, .* Then {OTHERS} exited with status 1.", {}),
        ("hang", 124, f"rank {CULPRIT} is in its input pipeline .*; {OTHERS} wait in", {"stacks": 2, "look": RANKS}),
        ("interrupt", 130, "the job ended with status 130", {"pause": RANKS, "stop_before": RANKS}),
    ],
)
def test_a_job_of_simulated_agents(scenario, status, words, orders):
    found = rehearse(scenario, RANKS, SECONDS, hang_after=6.0)
    assert found.status == status
    assert re.search(words, found.text), found.text
    assert found.named < 10
    ends = {"terminate": RANKS} if scenario == "hang" else {}
    assert found.heard == {"environment": RANKS, **orders, **ends, "dismiss": RANKS}
    assert found.sent["hello"] == found.sent["exit"] == found.sent["output"] == RANKS
    assert len(found.stops) == (scenario == "interrupt")


def test_ranks_tell_their_states_more_rarely_the_more_there_are():
    assert [beat_seconds(ranks, 120) for ranks in (2, 1000, 4000, 10_000, 100_000)] == [1, 1, 4, 10, 15]
    assert beat_seconds(10_000, 20) == 5 and beat_seconds(10_000, 2) == 1
    for seconds, most in ((1.0, 61), (10.0, 7)):
        beats = Beats(seconds)
        assert sum(beats.is_due(State(0), float(second)) for second in range(1, 62)) == most


@pytest.mark.parametrize(("least", "waited", "ahead"), [(5, 0.1, 5), (-5, 0.5, -4.5), (-5, 7, 0), (0, 3, 0)])
def test_a_clock_is_not_called_off_because_many_arrive_at_once(least, waited, ahead):
    assert seconds_ahead(least, waited) == ahead


def test_an_agent_whose_beat_is_rare_is_not_doubted_before_it(monkeypatch):
    class Lost:
        def is_lost(self, host):
            return True

    channel: Any = SimpleNamespace(is_held=False)
    member = Member(channel, "node1", State(0), beat=10.0)
    plan = Plan("mpi", (Place(0, "node1"),), (), {}, None)
    silence = Silence(plan, Members({0: member}), Lost())
    for seconds, found in ((12.0, []), (18.0, [(0, member)])):
        member.heard = time.monotonic() - seconds
        assert list(silence.look(None)) == found
    channel.is_held = True
    assert list(silence.look(None)) == []
    member.heard = time.monotonic() - 18.0
    assert list(silence.look(time.monotonic() - 7.0)) == [(0, member)]


def test_what_decides_is_told_at_once():
    beats, now = Beats(10.0), 100.0
    states = [State(0), State(0, True), State(0, True), State(0, True, is_stopped=True), State(0, True), State(0, True)]
    assert [beats.is_due(state, now + number) for number, state in enumerate(states)] == [1, 1, 0, 1, 1, 0]
    beats.hasten(1.0)
    assert beats.is_due(State(0, True), now + 6)


def test_what_is_told_is_short_and_all_that_is_judged():
    state = State(3, True, "reduce", 1.234567, "fit", ("a", "b"), 1, 7, 90, 0.123456, True, 6.0)
    assert brief(State(3)) == {}
    told = state_of(3, json.loads(json.dumps(brief(state))))
    assert told == State(3, True, "reduce", 1.23, "fit", ("a", "b"), 1, 7, 90, 0.12, True, 6.0)


def calls_of(action: Callable[[], object]) -> int:
    """How many functions are called, which no clock decides."""
    profile = cProfile.Profile()
    profile.runcall(action)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def waiting(rank: int) -> State:
    return State(rank, True, "reduce", 20.0, "fit", ("kp.gradients.0.0",), 0, 7, 7, 20.0)


def parted(size: int) -> list[State]:
    return [State(r, True, "reduce", 20.0, "fit", ("a" if r % 2 else "b",), 0, 7, 7, 20.0) for r in range(size)]


def ends(size: int) -> dict[int, Exit]:
    return {rank: Exit(rank, "node", 1, 100.0 + rank, is_consequence=rank != 7) for rank in range(size)}


def enter_all(size: int) -> None:
    book = rendezvous.Register(size, MeetingPoint("localhost", 0, 1))
    for rank in range(size):
        place = {"host": f"node{rank // 8}", "own_address": "10.0.0.1", "reached": "10.0.0.2"}
        book.enter(rank, size, process=str(rank), engine="gloo", **place)
    book.close()


GROWING = {
    "one holds up all": lambda size: find_hang([waiting(r) if r else State(0, True) for r in range(size)], {}, 10),
    "all hold up one": lambda size: find_hang([State(r, True) if r else waiting(0) for r in range(size)], {}, 10),
    "two camps": lambda size: find_hang(parted(size), {}, 10),
    "the first failure": lambda size: first_failure(list(ends(size).values())),
    "the verdict": lambda size: verdict.lines(ends(size)[7], ends(size)),
    "places": lambda size: slots([f"node{rank // 8}" for rank in range(size)]),
    "a meeting": enter_all,
}


@pytest.mark.parametrize("work", GROWING.values(), ids=GROWING)
def test_work_grows_as_ranks_do(work):
    """Not with their square, which would be 16 times as many calls."""
    few, many = (calls_of(lambda size=size: work(size)) for size in (500, 2000))
    assert many < 5 * few


@pytest.mark.parametrize("work", [GROWING[name] for name in ("one holds up all", "all hold up one", "two camps")])
def test_a_hang_of_ten_thousand_ranks_is_told_in_few_words(work):
    assert len(work(10_000).text) < 600


def test_a_failure_of_ten_thousand_ranks_is_told_in_few_words():
    text = verdict.lines(ends(10_000)[7], ends(10_000))
    assert "Then ranks 0 to 6 and 8 to 9999 exited with status 1." in text
    assert len(" ".join(text)) < 600


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0 and 1"),
        ([0, 1, 2, 4], "ranks 0, 1, 2 and 4"),
        (range(10_000), "ranks 0 to 9999"),
        ([*range(7), 8, *range(10, 20)], "ranks 0 to 6, 8 and 10 to 19"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 42 more"),
    ],
)
def test_ranks_are_named_shortly(numbers, text):
    assert named(numbers) == text


def test_who_meets_is_told_no_more_the_more_ranks_there_are():
    book = rendezvous.Register(10_000, MeetingPoint("localhost", 0, 1))
    told = book.enter(5, 10_000, process="5", host="node", own_address="10.0.0.1", engine="gloo", reached="10.0.0.2")
    assert told == {"missing": [0, 1, 2, 3, 4, 6, 7, 8], "others": 9_991}
    book.close()


class Alone:
    """A job of which this process is rank 0."""

    rank, size, local_size = 0, 10_000, 10_000

    def all_gather_object(self, value, name):
        return [value]


def test_a_board_with_ten_thousand_failures_answers_shortly():
    board = failures.FailureBoard(Alone())
    for rank in range(10_000):
        known = board._note(rank, 0, "ValueError: x")
    assert known == failures.Known([(0, "ValueError: x"), (1, "ValueError: x")], 10_000, True, [], 10_000)
    known = board._note(3, 0)
    assert len(json.dumps(known, default=vars)) < 200
    assert not board._note(0, 1).count
    board._server.close()


@pytest.fixture
def desk():
    """The launcher's, and a thread that hears what is said to it."""
    desk, heard, is_over = Switchboard(is_local=True), [], threading.Event()

    def listen():
        while not is_over.is_set():
            heard.extend((line, message) for line, message in desk.hear(0.02))

    thread = threading.Thread(target=listen)
    thread.start()
    yield desk, heard
    is_over.set()
    thread.join()
    desk.close()


def agent(desk: Switchboard) -> wire.Channel:
    invited = json.loads(desk.invitation)
    return wire.first_to_answer(invited["addresses"], invited["key"])


def test_who_knows_the_key_is_heard_and_answered(desk):
    desk, heard = desk
    channel = agent(desk)
    for number in range(3):
        channel.send({"number": number, "text": "x" * 200_000})
    assert comes_to_be(lambda: len(heard) == 3)
    assert [message["number"] for _, message in heard] == [0, 1, 2]
    heard[0][0].send({"text": "y" * 3_000_000})
    assert len(channel.receive()["text"]) == 3_000_000
    channel.close()
    assert comes_to_be(lambda: len(heard) == 4)
    assert heard[3] == (heard[0][0], None)


def test_of_too_many_strangers_the_first_are_turned_away(desk, monkeypatch):
    monkeypatch.setattr(switchboard, "MOST_STRANGERS", 4)
    desk, heard = desk
    [address] = json.loads(desk.invitation)["addresses"]
    silent = [socket.create_connection(address, timeout=PATIENCE) for _ in range(10)]
    for each in silent[:6]:
        assert len(each.makefile("rb").read()) == NONCE_BYTES
    channel = agent(desk)
    channel.send({"hello": 1})
    assert comes_to_be(lambda: bool(heard))
    for each in (*silent, channel):
        each.close()


def test_strangers_are_not_heard_and_keep_nobody_out(desk, monkeypatch):
    monkeypatch.setattr(switchboard, "STRANGER_SECONDS", 1.0)
    desk, heard = desk
    [[host, port]] = json.loads(desk.invitation)["addresses"]
    silent = [socket.create_connection((host, port), timeout=PATIENCE) for _ in range(50)]
    liar = socket.create_connection((host, port), timeout=PATIENCE)
    liar.sendall(b"x" * (NONCE_BYTES + PROOF_BYTES) + (2).to_bytes(wire.LENGTH_BYTES) + b"{}")
    assert len(liar.makefile("rb").read()) == NONCE_BYTES
    with pytest.raises(OSError, match="cannot be reached at any of"):
        wire.first_to_answer([[host, port]], "another key")
    channel = agent(desk)
    channel.send({"hello": 1})
    assert comes_to_be(lambda: bool(heard))
    assert [message for _, message in heard] == [{"hello": 1}]
    for each in silent:
        assert len(each.makefile("rb").read()) == NONCE_BYTES
        each.close()
    liar.close()
    channel.close()


def test_an_agent_talks_to_nobody_who_does_not_know_the_key():
    door = socket.create_server(("127.0.0.1", 0))

    def impostor():
        for _ in wire.CONNECT_SECONDS:
            connection, _ = door.accept()
            connection.sendall(b"n" * NONCE_BYTES)
            connection.recv(1000)
            connection.sendall(b"p" * PROOF_BYTES)
            connection.recv(1000)
            connection.close()

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(OSError, match="another program answers there"):
        wire.first_to_answer([door.getsockname()], "key")
    thread.join()
    door.close()


def test_a_launcher_that_does_not_read_is_not_lost(monkeypatch):
    """What a rank prints fills the connection while its user pages through it; the host still answers."""
    monkeypatch.setattr(wire, "SILENCE_SECONDS", 0.5)
    with contextlib.ExitStack() as sockets:
        door = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        own = sockets.enter_context(socket.create_connection(door.getsockname()))
        sockets.enter_context(door.accept()[0])
        own.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                own.send(bytes(1 << 16))
        deadline = time.monotonic() + 2  # the kernel asks less often each time
        while time.monotonic() < deadline:
            assert not wire.Channel(own).is_lost
            time.sleep(0.01)


def test_what_is_held_comes_later_in_its_order():
    desk = Switchboard(is_local=True)
    thread = threading.Thread(target=lambda: talk(agent(desk)))
    thread.start()
    heard: list[int] = []
    lines: set[switchboard.Line] = set()
    num_held, deadline = 0, time.monotonic() + PATIENCE
    while len(heard) < 20 and time.monotonic() < deadline:
        is_held = any(line.is_held for line in lines)
        assert not is_held or heard == [0, 1, 2]
        for line, message in desk.release() if is_held else desk.hear(0.05):
            lines.add(line)
            if message is not None and message["number"] == 3 and not num_held:
                num_held += 1
                desk.hold(line, message)
            elif message is not None:
                heard.append(message["number"])
    assert heard == list(range(20)) and num_held == 1
    thread.join()
    desk.close()


def test_what_an_end_does_not_read_yet_goes_when_it_does():
    message = {"output": "x" * 2**24}  # more than sockets hold
    own, other = map(wire.Channel, socket.socketpair())
    own.send(message)
    assert own.waiting and own.is_behind
    thread = threading.Thread(target=own.receive, args=(10,))
    thread.start()
    assert other.receive(10) == message
    other.send({"heard": True})
    thread.join()
    assert not own.waiting
    own.close()
    assert other.receive(10) is None
    other.close()


def talk(channel: wire.Channel) -> None:
    for number in range(20):
        channel.send({"number": number})
    channel.close()


def test_files_are_made_room_for(monkeypatch):
    given: list = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    make_room(8)
    assert given == []
    make_room(3000)
    assert given == [(3200, 4096)]
    with pytest.raises(EngineError, match="10000 ranks need 10200 open files, and this host lets a process have 4096"):
        make_room(10_000)


def test_a_job_with_more_ranks_than_files_is_not_started():
    job = Job("-np", "2", program("plain"), before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150)))
    ended = job.wait()
    assert ended.status == 1
    assert "the job did not start" in ended.last_panel and "2 ranks need 202 open files" in ended.last_panel
