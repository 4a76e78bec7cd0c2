"""What ranks tell each other when they wait long in a collective, and what becomes of it."""

import json
import threading
import time

import pytest
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.communicator import Request, SoloCommunicator
from keras_par.distribution import runtime
from keras_par.job import failures, rank_heartbeat, step_clock, waits
from keras_par.job.failures import FailureBoard
from keras_par.job.step_clock import StepClock, TimedCommunicator
from keras_par.job.waits import Comparison, Wait, WaitWatch
from tests.patience import PATIENCE, comes_to_be


def wait(*given, kind="all_reduce", name="x", number=1, group="", **more) -> Wait:
    call = waits.call_of(group, Request(kind, name, **more), given)
    return waits.wait_in(call, number, call.num_elements)


def as_told(each: Wait) -> list:
    """As it comes by JSON."""
    return json.loads(json.dumps(each))


F3, F4, I3 = tf.zeros([3]), tf.zeros([4]), tf.zeros([3], tf.int32)
DIFFERENCES = {
    "shape": (wait(F3), wait(F4), "rank 0 gave float32 of shape (3,) and rank 1 float32 of shape (4,):"),
    "dims": (wait(F3), wait(F3[None]), "rank 0 gave float32 of shape (3,) and rank 1 float32 of shape (1, 3):"),
    "dtype": (wait(F3), wait(I3), "rank 0 gave float32 of shape (3,) and rank 1 int32 of shape (3,):"),
    "one of several": (wait(F3, F3), wait(F3, F4), "rank 1 float32 of shape (4,), as number 2 of 2:"),
    "how many": (wait(F3, F3), wait(F3), "rank 0 gave 2 tensor(s) and rank 1 1:"),
    "one of very many": (wait(*[F3] * 99), wait(*[F3] * 98, F4), "rank 0 gave 297 element(s) in all and rank 1 298:"),
    "kind": (wait(F3), wait(F3, kind="all_gather"), "rank 0 came to all_reduce (sum) and rank 1 to all_gather:"),
    "operation": (wait(F3), wait(F3, op="max"), "rank 0 came to all_reduce (sum) and rank 1 to all_reduce (max):"),
    "sent as": (wait(F3, sent_as=tf.float16), wait(F3), "rank 0 came to all_reduce (sum, sent as float16) and rank 1"),
    "root": (
        wait(F3, kind="broadcast"),
        wait(F3, kind="broadcast", root_rank=1),
        "rank 0 came to broadcast (from rank 0) and rank 1 to broadcast (from rank 1):",
    ),
    "dims of rows": (
        wait(F3[None], kind="all_gather"),
        wait(F4[None], kind="all_gather"),
        "rank 0 gave float32 of shape (?, 3) and rank 1 float32 of shape (?, 4):",
    ),
}


@pytest.mark.parametrize(("here", "there", "told"), DIFFERENCES.values(), ids=DIFFERENCES)
@pytest.mark.parametrize("first", [0, 1])
def test_what_ranks_give_otherwise_is_told_whoever_comes_first(here, there, told, first):
    comparison = Comparison()
    for rank in (first, 1 - first):
        assert comparison.difference is None
        comparison.note(rank, [as_told((here, there)[rank])])
    assert told in comparison.difference and comparison.difference.startswith("keras-par: in the collective 'x' rank ")


ALIKE = {
    "the same": (wait(F3, F4), wait(F3, F4)),
    "other rows": (wait(F3, kind="all_gather"), wait(F4, kind="all_gather")),
    "another name": (wait(F3), wait(F4, name="y")),
    "another group": (wait(F3, group="a"), wait(F4, group="b")),
    "another time": (wait(F3), wait(F4, number=2)),
    "an earlier time": (wait(F3, number=2), wait(F4)),
    "a length that is not known": (wait(F3), wait(F4)._replace(tensors=[("float32", (None,))], num_elements=None)),
}


@pytest.mark.parametrize(("here", "there"), ALIKE.values(), ids=ALIKE)
def test_other_collectives_are_not_compared(here, there):
    comparison = Comparison()
    comparison.note(0, [as_told(here)])
    comparison.note(1, [as_told(there)])
    assert comparison.difference is None


def test_what_is_awaited_of_all_is_known_until_that_is_over():
    comparison = Comparison()
    comparison.note(2, [wait(F3, group="a")])
    assert comparison.awaited == []
    comparison.note(1, [wait(F3, number=4), wait(F3, group="a")])
    assert comparison.awaited == [("x", 4)]
    comparison.note(1, [])
    assert comparison.awaited == []


def test_what_lasts_is_told_once_and_a_difference_ends_the_collectives(monkeypatch):
    monkeypatch.setattr(waits, "PAUSE_SECONDS", 0.01)
    told, ended, current, difference = [], [], [wait(F3)], []

    def tell(each):
        told.append(each)
        return difference[0] if difference else None

    watch = WaitWatch(2, lambda: list(current), tell, ended.append)
    assert comes_to_be(lambda: told[:2] == [[wait(F3)], None])  # and then that it is still so
    current[:] = []
    assert comes_to_be(lambda: [] in told)
    current[:] = [wait(F3, number=2)]
    assert comes_to_be(lambda: [wait(F3, number=2)] in told) and ended == []
    difference.append("keras-par: so.")
    assert comes_to_be(lambda: ended == ["keras-par: so."])
    watch.stop()


def test_a_clock_knows_what_a_rank_is_in_within_graphs_and_outside(monkeypatch):
    clock, seen = StepClock(), []
    clock.is_compared = True
    monkeypatch.setattr(step_clock, "clock", clock)

    class Looking(SoloCommunicator):
        """Looks while a collective is under way."""

        def issue(self, request, tensors):
            if tf.executing_eagerly():
                seen.append(clock.collectives())
                return list(tensors)
            look = tf.numpy_function(lambda x: [seen.append(clock.collectives()), x][1], tensors[:1], tensors[0].dtype)
            return [tf.ensure_shape(look, tensors[0].shape)]

    communicator = TimedCommunicator(Looking())
    communicator.all_reduce([F3], "x")
    assert seen.pop() == [wait(F3)]

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([3])])
    def step(rows, fixed):
        return communicator.all_reduce([rows], "rows"), communicator.all_reduce([fixed], "x")

    for number in (1, 2):
        step(tf.zeros([5, 2]), F3)
        found = {each.name: each for group in seen[-2:] for each in group}
        assert found["x"] == wait(F3, number=number + 1)
        assert found["rows"][:4] == ("", "rows", number, "all_reduce (sum)") and found["rows"].num_elements == 10
    assert clock.collectives() == []
    assert clock.has_come_to("x", 3) and not clock.has_come_to("x", 4) and not clock.has_come_to("y", 1)


def test_collectives_beyond_those_told_apart_are_noticed_and_compared_by_nobody(monkeypatch):
    monkeypatch.setattr(step_clock, "MOST_CALLS", 1)
    clock = StepClock()
    clock.is_compared = True
    calls = [waits.call_of("", Request("all_reduce", name), [F3]) for name in "xyz"]

    @tf.function
    def begin():
        for call in calls:
            clock.change(call, 1, [tf.identity(F3)])

    begin()
    assert [each.name for each in clock.collectives()] == ["x"]
    assert clock.read()[2] == ["x", step_clock.MORE]
    assert clock.has_come_to("x", 1) and not clock.has_come_to("y", 1)


class Two:
    """A job of two ranks on this host, of which this process is rank 0."""

    rank, size, local_size, has_groups = 0, 2, 2, True

    def all_gather_object(self, value, name):
        return [value]


@pytest.fixture
def board():
    board = FailureBoard(Two())
    yield board
    board._server.close()


def seconds_of(act) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def test_a_rank_that_is_awaited_does_not_wait_at_its_end(board, monkeypatch):
    clock = StepClock()
    monkeypatch.setattr(failures, "clock", clock)
    board.tell(rank=1, waits=[as_told(wait(F3))])
    assert seconds_of(board.wait_until_done) < failures.LEAVE_SECONDS / 2
    with clock.eagerly("", Request("all_reduce", "x"), [F3]):
        pass
    waiting = threading.Thread(target=board.wait_until_done)  # for rank 1, which is only slow to end the same
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    board.tell(rank=1, is_done=True)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_nobody_waits_at_its_end_for_ranks_that_have_shut_down(board, monkeypatch):
    monkeypatch.setattr(failures, "_board", board)
    failures.tell_done()
    assert board.tell(rank=1).num_missing == 2  # this rank has not begun
    monkeypatch.setattr(world, "_active", Two())
    monkeypatch.setattr(Two, "engine", "gloo", raising=False)
    monkeypatch.setattr(Two, "shutdown", lambda self: None, raising=False)
    runtime.shutdown()
    assert not world.is_started() and board.tell(rank=1, is_done=True).num_missing == 0


def test_a_rank_that_has_failed_does_not_wait_at_its_end(board, monkeypatch):
    heartbeat = rank_heartbeat.Heartbeat(rank_heartbeat.Page(stop_before=rank_heartbeat.NEVER), None)
    heartbeat.fail()
    left = []
    monkeypatch.setattr(failures, "_board", board)
    monkeypatch.setattr(board, "leave", lambda: left.append(True))
    monkeypatch.setattr(world, "_active", Two())
    monkeypatch.setattr(rank_heartbeat, "_heartbeat", heartbeat)
    assert seconds_of(failures.leave_together) < failures.LEAVE_SECONDS / 2 and left == [True]


def test_a_difference_is_raised_in_place_of_what_follows_from_it(board, monkeypatch):
    monkeypatch.setattr(failures, "_board", board)
    board.tell(waits=[wait(F3)])
    board.tell(rank=1, waits=[wait(F4)])
    error = failures.explain(tf.errors.UnavailableError(None, None, "Collective ops is aborted by: that"))
    assert isinstance(error, ValueError) and str(error) == board.tell().difference
