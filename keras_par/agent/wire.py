"""Carries JSON messages between the launcher and its agents, over sockets that only they can join."""

import hmac
import json
import math
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from keras_par.base.limited_server import NONCE_BYTES, PROOF_BYTES, proof

VARIABLE = "KERAS_PAR_LAUNCHER"  # how an agent reaches its launcher
LENGTH_BYTES = 4  # before each message
MOST_BYTES = 2**28  # of a message; what says more is none
CONNECT_SECONDS = (5.0, 20.0)  # that the launcher has to answer, the first time and when it may be greeting thousands
PIECE, MOST_WAITING = 2**16, 2**20  # bytes: read at once; to be sent, before a program must wait to say more
SILENCE_SECONDS = 60.0  # after which the host at the other end is gone
TCP_INFO_BYTES = 60  # of struct tcp_info, up to the time since the last confirmation

Message = dict[str, Any]


class Channel:
    """One end of a connection, which never waits; sending to an end that is gone does nothing.

    Args:
        connection: a socket.
    """

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.socket = connection
        self.is_open = True
        self.is_held = False  # nobody listens until what it has said can be shown
        self.waiting = bytearray()  # to be sent
        self._come = bytearray()  # and not taken yet

    def send(self, message: Message) -> None:
        """Sends a message, anything JSON can carry, as soon as the other end takes it."""
        content = json.dumps(message).encode()
        self.write(len(content).to_bytes(LENGTH_BYTES) + content)

    def write(self, data: bytes) -> None:
        """Sends what may be no message."""
        self.waiting += data
        self.flush()

    def flush(self) -> None:
        """Sends what is to be sent, as much as goes now."""
        try:
            while self.waiting:
                del self.waiting[: self.socket.send(self.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self.waiting.clear()  # who reads learns it by the end of the stream

    def read(self) -> bool:
        """Takes in some of what has come; False once the other end is gone."""
        try:
            data = self.socket.recv(PIECE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._come += data
        return bool(data)

    def take(self, size: int) -> bytes | None:
        """The first bytes of what has come, None as long as there are fewer."""
        if len(self._come) < size:
            return None
        taken = bytes(self._come[:size])
        del self._come[:size]
        return taken

    def messages(self) -> Iterator[Message]:
        """Takes the messages that have come.

        Raises:
            ValueError: it is none.
        """
        while len(self._come) >= LENGTH_BYTES:
            length = int.from_bytes(self._come[:LENGTH_BYTES])
            if length > MOST_BYTES:
                raise ValueError(f"a message of {length} bytes")
            content = self.take(LENGTH_BYTES + length)
            if content is None:
                return
            yield json.loads(content[LENGTH_BYTES:])

    def receive(self, seconds: float | None = None) -> Message | None:
        """Waits for the next message; None once the other end is gone, or after so many seconds."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        is_there = True
        while (message := next(self.messages(), None)) is None and is_there and time.monotonic() < deadline:
            rest = None if seconds is None else max(0.0, deadline - time.monotonic())
            found, _, _ = select.select([self.socket], [self.socket] if self.waiting else [], [], rest)
            self.flush()
            is_there = not found or self.read()
        return message

    @property
    def is_behind(self) -> bool:
        """True while so much is to be sent that there had better be no more."""
        return len(self.waiting) > MOST_WAITING

    @property
    def is_lost(self) -> bool:
        """True if the other end's host has confirmed nothing for SILENCE_SECONDS, though it was asked again and again.

        TCP itself would go on asking for a quarter of an hour. An end that is there but does not read, as where a user
        pages through the output, still confirms; TCP_USER_TIMEOUT would end that connection.
        """
        try:
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            return True
        num_retransmits, num_probes = info[2], info[3]  # that were not answered; struct tcp_info in linux/tcp.h
        unanswered = int.from_bytes(info[TCP_INFO_BYTES - 4 :], sys.byteorder) / 1000  # tcpi_last_ack_recv
        return (num_retransmits > 0 or num_probes > 1) and unanswered > SILENCE_SECONDS

    @property
    def peer(self) -> tuple[str, int]:
        """The address and port of the other end."""
        return self.socket.getpeername()

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()


def connect() -> Channel | None:
    """An agent's channel to the launcher that its environment names, None if it names none.

    Raises:
        OSError: no address of the launcher can be reached.
    """
    invitation = os.environ.pop(VARIABLE, None)
    if invitation is None:
        return None
    invited = json.loads(invitation)
    return first_to_answer(invited["addresses"], invited["key"])


def first_to_answer(addresses: Sequence[Sequence], key: str) -> Channel:
    error = OSError("no address")
    for seconds, (host, port) in product(CONNECT_SECONDS, addresses):
        try:
            return greeted(socket.create_connection((host, port), timeout=seconds), key)
        except OSError as failure:
            error = failure
    raise OSError(f"the launcher cannot be reached at any of {[host for host, _ in addresses]}: {error}")


def greeted(connection: socket.socket, key: str) -> Channel:
    """The connection, once both ends have shown each other that they know the key, which neither sends.

    It ends after SILENCE_SECONDS without an answer, where nothing else is under way.

    Raises:
        OSError: the other end does not know it, says nothing, or is gone.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as file:
            challenge, own = file.read(NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
            connection.sendall(own + proof(key, "agent", challenge, own))
            if not hmac.compare_digest(file.read(PROOF_BYTES), proof(key, "launcher", own, challenge)):
                raise OSError("another program answers there")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENCE_SECONDS / 2))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(SILENCE_SECONDS / 6))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        return Channel(connection)
    except BaseException:
        connection.close()
        raise
