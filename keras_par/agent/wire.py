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
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

VARIABLE = "KERAS_PAR_LAUNCHER"  # how an agent reaches its launcher
LENGTH_BYTES = 4  # before each message
MOST_BYTES = 2**28  # of a message; what says more is none
NONCE_BYTES, PROOF_BYTES = 16, 32
CONNECT_SECONDS = (5.0, 20.0)  # that the launcher has to answer, the first time and when it may be greeting thousands
PIECE, MOST_WAITING = 2**16, 2**20  # bytes: read at once; to be sent, before a program must wait to say more
SILENCE_SECONDS = 60.0  # after which the host at the other end is gone
TCP_INFO_BYTES = 60  # of struct tcp_info, up to the time since the last confirmation

Message = dict[str, Any]


class Channel:
    """An agent's end of a connection, which never waits; sending to an end that is gone does nothing.

    Args:
        connection: a socket, behind the greeting.
    """

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self._socket, self._pieces = connection, Pieces()
        self._waiting = bytearray()  # to be sent
        self._heard: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Sends a message, anything JSON can carry, as soon as the other end takes it."""
        self._waiting += packed(message)
        self.flush()

    def flush(self) -> None:
        """Sends what is to be sent, as much as goes now."""
        try:
            while self._waiting:
                del self._waiting[: self._socket.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()  # who reads learns it by the end of the stream

    def hear(self) -> list[Message] | None:
        """The messages that have come, None once the other end is gone or says what is no message."""
        try:
            while data := self._socket.recv(PIECE):
                self._pieces.add(data)
            is_over = True
        except BlockingIOError:
            is_over = False
        except OSError:
            is_over = True
        try:
            self._heard.extend(map(json.loads, self._pieces.whole()))
        except ValueError:
            is_over = True
        heard = list(self._heard)
        self._heard.clear()
        return heard if heard or not is_over else None

    def receive(self, seconds: float | None = None) -> Message | None:
        """Waits for the next message; None once the other end is gone, or after so many seconds."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while not self._heard and (rest := deadline - time.monotonic()) > 0:
            wanted = [self._socket] if self.has_more else []
            select.select([self._socket], wanted, [], None if seconds is None else rest)
            self.flush()
            heard = self.hear()
            if heard is None:
                return None
            self._heard.extend(heard)
        return self._heard.popleft() if self._heard else None

    @property
    def has_more(self) -> bool:
        """True while something is to be sent that does not go now."""
        return bool(self._waiting)

    @property
    def is_behind(self) -> bool:
        """True while so much is to be sent that there had better be no more."""
        return len(self._waiting) > MOST_WAITING

    @property
    def is_lost(self) -> bool:
        """True if the other end's host has confirmed nothing for SILENCE_SECONDS, though it was asked again and again.

        TCP itself would go on asking for a quarter of an hour. An end that is there but does not read, as where a user
        pages through the output, still confirms; TCP_USER_TIMEOUT would end that connection.
        """
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            return True
        num_retransmits, num_probes = info[2], info[3]  # that were not answered; struct tcp_info in linux/tcp.h
        unanswered = int.from_bytes(info[TCP_INFO_BYTES - 4 :], sys.byteorder) / 1000  # tcpi_last_ack_recv
        return (num_retransmits > 0 or num_probes > 1) and unanswered > SILENCE_SECONDS

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class Pieces:
    """Cuts what arrives on a connection into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Takes in what has arrived."""
        self._data += data

    def whole(self) -> Iterator[bytes]:
        """The messages that are complete, still packed.

        Raises:
            ValueError: no message can be so long.
        """
        while len(self._data) >= LENGTH_BYTES:
            length = int.from_bytes(self._data[:LENGTH_BYTES])
            if length > MOST_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = LENGTH_BYTES + length
            if len(self._data) < end:
                return
            message = bytes(self._data[LENGTH_BYTES:end])
            del self._data[:end]
            yield message

    def take(self, size: int) -> bytes | None:
        """The first bytes, None as long as there are fewer."""
        if len(self._data) < size:
            return None
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken


def packed(message: Message) -> bytes:
    """A message as it is sent."""
    content = json.dumps(message).encode()
    return len(content).to_bytes(LENGTH_BYTES) + content


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        EOFError: the other end is gone.
    """
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def proof(key: str, who: str, challenge: bytes, answered: bytes) -> bytes:
    """What only who knows the key can say to a challenge, bound to the challenge that it answers with."""
    return hmac.digest(key.encode(), who.encode() + challenge + answered, "sha256")


def connect() -> Channel | None:
    """An agent's channel to the launcher that its environment names, None if it names none.

    Raises:
        OSError: no address of the launcher can be reached.
    """
    invitation = os.environ.pop(VARIABLE, None)
    if invitation is None:
        return None
    invited = json.loads(invitation)
    return Channel(first_to_answer(invited["addresses"], invited["key"]))


def first_to_answer(addresses: Sequence[Sequence], key: str) -> socket.socket:
    error: Exception = OSError("no address")
    for seconds, (host, port) in product(CONNECT_SECONDS, addresses):
        try:
            return greeted(socket.create_connection((host, port), timeout=seconds), key)
        except (OSError, EOFError) as failure:
            error = failure
    raise OSError(f"the launcher cannot be reached at any of {[host for host, _ in addresses]}: {error}")


def keep_asking(connection: socket.socket) -> None:
    """Ends a connection on which nothing is under way after SILENCE_SECONDS without an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENCE_SECONDS / 2))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(SILENCE_SECONDS / 6))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def greeted(connection: socket.socket, key: str) -> socket.socket:
    """The connection, once both ends have shown each other that they know the key, which neither sends.

    Raises:
        OSError: the other end does not know it, or says nothing.
        EOFError: it is gone.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge, own = received(connection, NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
        connection.sendall(own + proof(key, "agent", challenge, own))
        if not hmac.compare_digest(received(connection, PROOF_BYTES), proof(key, "launcher", own, challenge)):
            raise OSError("another program answers there")
        connection.settimeout(None)
        keep_asking(connection)
        return connection
    except BaseException:
        connection.close()
        raise
