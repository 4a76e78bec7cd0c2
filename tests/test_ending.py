"""All ranks of a job stop after the same step, wherever each of them is when its user asks for it."""

import signal

import pytest

from keras_par.agent.states import Exit, State
from keras_par.base.heartbeat_page import AT_ONCE, BY_USER, FOR_ANOTHER_WORLD, NEVER, Page
from keras_par.job.rank_heartbeat import Heartbeat
from keras_par.launch.members import Ending, Member, Members


class Orders:
    """A channel that keeps what was sent."""

    def __init__(self):
        self.sent: list[dict] = []

    def send(self, message: dict) -> None:
        self.sent.append(message)


@pytest.fixture
def members():
    """Three ranks."""
    return Members({rank: Member(Orders(), "node", State(rank)) for rank in range(3)})


def answer(executions: int, is_in_fit: bool = True) -> dict:
    return {"executions": executions, "is_in_fit": is_in_fit}


def last_orders(members: Members) -> list[dict]:
    return [member.channel.sent[-1] for member in members.running.values()]


def test_nobody_is_told_where_to_stop_before_all_have_answered(members):
    ending = Ending(members)
    for rank in range(2):
        ending.note_pause(rank, answer(5))
        ending.decide()
    assert last_orders(members) == [{"pause": BY_USER}] * 3


def test_ranks_in_fit_stop_before_a_step_that_none_has_begun(members):
    ending = Ending(members)
    for rank, executions in enumerate((5, 6, 5)):
        ending.note_pause(rank, answer(executions))
    ending.decide()
    assert last_orders(members) == [{"stop_before": 8}] * 3


def test_a_rank_outside_of_fit_gets_all_interrupted(members):
    ending = Ending(members)
    for rank in range(3):
        ending.note_pause(rank, answer(5, is_in_fit=rank != 1))
    ending.decide()
    for member in members.running.values():
        assert member.channel.sent[-2:] == [{"stop_before": AT_ONCE}, {"signal": int(signal.SIGINT)}]


def test_for_another_world_ranks_outside_of_fit_are_let_go_on(members):
    ending = Ending(members, is_of_user=False)
    for rank in range(3):
        ending.note_pause(rank, answer(5, is_in_fit=rank != 1))
    ending.decide()
    assert ending.is_given_up
    for member in members.running.values():
        assert member.channel.sent == [{"pause": FOR_ANOTHER_WORLD}, {"pause": 0}]


def test_a_rank_that_ends_before_it_answers_keeps_nobody_waiting(members):
    ending = Ending(members)
    ending.note_pause(0, answer(5))
    ending.note_pause(1, answer(5))
    ending.decide()
    members.note_end(Exit(2, "node", 0, 1.0))
    ending.decide()
    ending.decide()
    assert [member.channel.sent for member in members.running.values()] == [
        [{"pause": BY_USER}, {"stop_before": 7}]
    ] * 2


@pytest.mark.parametrize("positions", [(5, 5, 5), (5, 6, 5), (6, 6, 5)])
def test_no_rank_comes_past_the_step(positions):
    """Ranks whose steps reduce are at most one apart; each goes on until it must stop, and does so at one step."""
    heartbeats = [Heartbeat(Page(stop_before=NEVER), None) for _ in positions]
    for heartbeat, executions in zip(heartbeats, positions, strict=True):
        heartbeat.page.executions, heartbeat.page.pause = executions, 1
        heartbeat.page.stop_before = max(positions) + 2
    ends = []
    for heartbeat in heartbeats:
        while not heartbeat.must_stop:
            heartbeat.begin_step(1)
            heartbeat.end_step({})
        ends.append(heartbeat.page.executions)
    assert ends == [max(positions) + 1] * 3


def test_steps_that_one_rank_does_alone_do_not_count():
    heartbeat = Heartbeat(Page(stop_before=NEVER), None)
    heartbeat.page.pause = 1
    heartbeat.begin_step(1, is_common=False)  # which does not wait either
    assert heartbeat.page.executions == 0
