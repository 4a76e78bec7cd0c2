"""Whoever connects to what the package listens on and is of no job is not heard, costs little, and stops nobody."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keras_par.agent import wire
from keras_par.base import limited_server
from keras_par.base.rendezvous import RendezvousServer
from keras_par.job import exchange
from keras_par.job.failures import FailureBoard
from keras_par.job.launch_environment import MeetingPoint
from keras_par.job.rendezvous import PATH, Register
from keras_par.launch.switchboard import Switchboard
from tests.patience import PATIENCE, comes_to_be
from tests.strangers import visit
from tests.test_shell_loop import free_port

MOST_TAKEN = 2**23  # bytes from one stranger: what buffers of the kernel hold, and no more than that is kept
MOST_GROWN = 100 * 2**20  # of the process's memory, in which the strangers are, too
SEED = 20261127


class Two:
    """A job of two ranks on this host, of which this process is rank 0."""

    rank, size, local_size = 0, 2, 2

    def all_gather_object(self, value, name):
        return [value]


Served = tuple[tuple[str, int], Callable[[int], None]]  # an address, and what an honest peer does, which must go well


@contextmanager
def board() -> Iterator[Served]:
    own = FailureBoard(Two())

    def ask(number: int) -> None:
        question = {"round_": number, "rank": 1, "failure": f"ValueError: {number}"}
        told = exchange.ask("127.0.0.1", own._port, own.token, question)
        assert told is not None and told["first"] == [[1, f"ValueError: {number}"]]

    yield ("127.0.0.1", own._port), ask
    own._server.close()


@contextmanager
def switchboard() -> Iterator[Served]:
    desk, heard, is_over = Switchboard(is_local=True), [], threading.Event()

    def listen() -> None:
        while not is_over.is_set():
            heard.extend(message for _, message in desk.hear(0.02))

    thread = threading.Thread(target=listen)
    thread.start()
    invited = json.loads(desk.invitation)

    def join(number: int) -> None:
        channel = wire.first_to_answer(invited["addresses"], invited["key"])
        channel.send({"hello": number})
        assert comes_to_be(lambda: {"hello": number} in heard)
        channel.close()

    yield tuple(invited["addresses"][0]), join
    is_over.set()
    thread.join()
    desk.close()
    assert all(message is None or list(message) == ["hello"] for message in heard)


@contextmanager
def rendezvous() -> Iterator[Served]:
    server = RendezvousServer("127.0.0.1", 0, 2)
    yield ("127.0.0.1", server.port), lambda number: put_and_get(server.port, number)
    server.close()


@contextmanager
def meeting_point() -> Iterator[Served]:
    port = free_port()
    server = Register(2, MeetingPoint("127.0.0.1", port, 30))
    entry = {"rank": 1, "size": 2, "process": "p", "host": "h", "own_address": "10.0.0.1", "engine": "gloo"}

    def enter(number: int) -> None:
        put_and_get(port, number)
        assert request(port, "POST", PATH, json.dumps(entry).encode())[0] == 200

    yield ("127.0.0.1", port), enter
    server.close()


def put_and_get(port: int, number: int) -> None:
    place, value = f"/honest/{number}", bytes([number % 256]) * 5000
    assert request(port, "PUT", place, value)[0] == 200
    assert request(port, "GET", place) == (200, value)
    assert request(port, "DELETE", place)[0] == 200
    assert request(port, "GET", place)[0] == 404


def request(port: int, verb: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(verb, path, content)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def memory() -> int:
    """Of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("number", [300, pytest.param(6000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("served", [board, switchboard, rendezvous, meeting_point])
def test_strangers_cost_little_and_stop_nobody(served, number, capfd, caplog):
    with served() as (address, honest):
        honest(0)
        before, is_over, failures = memory(), threading.Event(), []

        def go_on() -> None:
            at = 1
            while not is_over.is_set():
                try:
                    honest(at)
                except BaseException as error:
                    failures.append(error)
                    raise
                at += 1

        peer = threading.Thread(target=go_on)
        peer.start()
        try:
            taken = visit(address, number, SEED)
        finally:
            is_over.set()
            peer.join()
        grown = memory() - before
        honest(100_000)
    assert not failures
    assert max(taken) < MOST_TAKEN and grown < MOST_GROWN
    assert "Traceback" not in capfd.readouterr().err
    assert len(caplog.records) <= 1, caplog.text


def test_a_stranger_is_told_of_once(caplog):
    with board() as ((host, port), honest):
        for _ in range(3):
            with socket.create_connection((host, port), timeout=PATIENCE) as stranger:
                stranger.sendall(b'{"token": "x", "rank": 0}\n' * 10)
                while stranger.recv(100):
                    pass
        honest(1)
    [record] = caplog.records
    assert "rank 0 refuses a connection from 127.0.0.1 on its port" in record.getMessage()


def test_a_proof_is_of_one_connection_and_one_question():
    """One that was overheard opens no other connection, and nobody else answers in rank 0's place."""
    with board() as ((host, port), _):
        own = exchange.Exchange(True, 2, lambda question: "told", "kp-test")
        content = b'{"departures": 1}\n'
        with socket.create_connection((host, own.port), timeout=PATIENCE) as first:
            nonce = first.recv(exchange.NONCE_BYTES)
            overheard = exchange.proof(own.key, "rank", nonce, content) + content
            first.sendall(overheard)
            assert first.makefile("rb").read().endswith(b'"told"')
        with socket.create_connection((host, own.port), timeout=PATIENCE) as second:
            second.recv(exchange.NONCE_BYTES)
            second.sendall(overheard)
            assert second.makefile("rb").read() == b""
        assert exchange.ask(host, own.port, own.key, {}) == "told"
        assert exchange.ask(host, port, own.key, {}) is None  # whose key is another
        own.close()


def test_connections_that_say_nothing_end(monkeypatch):
    monkeypatch.setattr(limited_server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(exchange.Handler, "timeout", 60.0)
    with board() as (address, honest):
        silent = [socket.create_connection(address, timeout=PATIENCE) for _ in range(limited_server.OPEN_AT_LEAST + 20)]
        honest(1)
        for each in silent:
            assert len(each.makefile("rb").read()) == exchange.NONCE_BYTES
            each.close()


def test_the_rendezvous_keeps_no_more_than_ranks_need():
    server = RendezvousServer("127.0.0.1", 0, 2)
    server._room = 3 * 2**20
    filled = [request(server.port, "PUT", f"/a/{number}", bytes(2**18))[0] for number in range(20)]
    assert filled == [200] * 11 + [507] * 9
    assert request(server.port, "DELETE", "/a/3")[0] == 200
    assert request(server.port, "PUT", "/a/20", bytes(2**18))[0] == 200
    assert request(server.port, "HEAD", "/pyproject.toml")[0] == 501  # no files are told of
    server.close()
