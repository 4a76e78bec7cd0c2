"""Hosts that do not reach each other are found by knocking at their doors, and named once both say so."""

import socket
import time

import pytest

from keras_par.agent.reachability import Knocks
from keras_par.agent.states import State
from keras_par.launch.hang_watch import Connections
from keras_par.launch.members import Member, Members


class Wire:
    """A channel that keeps what is sent."""

    def __init__(self, number: int):
        self.peer = (f"10.0.0.{number}", 40000 + number)
        self.sent = []

    def send(self, message):
        self.sent.append(message)


def job(*hosts: str) -> Members:
    return Members({rank: Member(Wire(rank), host, State(rank)) for rank, host in enumerate(hosts)})


def test_a_door_that_is_open_and_one_that_is_not_there_answer():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        knocks = Knocks({"open": server.getsockname(), "closed": nobody.getsockname()})
        time.sleep(0.1)
        assert knocks.unanswered() == []


def test_a_host_that_says_nothing_does_not_answer():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first:
        first.connect(server.getsockname())  # after which the kernel drops who else knocks
        knocks = Knocks({"full": server.getsockname(), "nowhere": ("255.255.255.255", 9)})
        time.sleep(0.1)
        assert knocks.unanswered() == ["full", "nowhere"]


def test_each_host_knocks_once_at_all_others():
    members = job("a", "a", "b")
    connections = Connections(members)
    connections.ask()
    sent = [member.channel.sent for member in members.of_rank.values()]
    assert sent == [[{"knock": {"b": ("10.0.0.2", 40002)}}], [], [{"knock": {"a": ("10.0.0.0", 40000)}}]]
    assert not connections.are_known


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"a": [], "b": [], "c": []}, ""),
        ({"a": [], "b": ["c"], "c": []}, ""),  # one way only: the address may be one that others cannot use
        ({"a": [], "b": ["c"], "c": ["b"]}, "; hosts b (rank 2) and c (ranks 3 and 4) do not reach each other"),
        ({"a": [], "b": ["c"]}, ""),
    ],
)
def test_two_hosts_are_named_where_both_get_no_answer(told, said):
    connections = Connections(job("a", "a", "b", "c", "c"))
    connections.ask()
    for host, unanswered in told.items():
        connections.note(host, unanswered)
    assert connections.are_known == (len(told) == 3) and connections.broken() == said


def test_places_are_told_where_there_are_several_hosts():
    connections = Connections(job("a", "b", "b"))
    assert connections.places((1,)) == "; rank 1 is on host b"
    assert connections.places((0, 1, 2)) == ""
    assert Connections(job("a", "a")).places((1,)) == ""


def test_one_host_has_nobody_to_knock_at():
    members = job("a", "a")
    connections = Connections(members)
    connections.ask()
    assert [member.channel.sent for member in members.of_rank.values()] == [[], []]
    assert connections.are_known
