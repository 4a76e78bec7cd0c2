"""Carries JSON messages between the launcher and its agents, over sockets that only they can join."""

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

VARIABLE = "KERAS_PAR_LAUNCHER"  # how an agent reaches its launcher
LENGTH_BYTES = 4  # before each message
MOST_BYTES = 2**28  # of a message; what says more is none
NONCE_BYTES, PROOF_BYTES = 16, 32
CONNECT_SECONDS = (5.0, 20.0)  # that the launcher has to answer, the first time and when it may be greeting thousands
WAIT_SECONDS = 1.0  # for an end that does not read, until its host is looked for
SILENCE_SECONDS = 60.0  # after which the host at the other end is gone
TCP_INFO_BYTES = 60  # of struct tcp_info, up to the time since the last confirmation

Message = dict[str, Any]


class Channel:
    """An agent's end of a connection; sending to an end that is gone does nothing.

    Args:
        connection: a socket that waits, behind the greeting.
    """

    def __init__(self, connection: socket.socket):
        self._socket = connection

    def send(self, message: Message) -> None:
        """Sends a message, anything JSON can carry; waits for an end that does not read, unless its host is lost."""
        rest, room = memoryview(packed(message)), select.poll()
        with contextlib.suppress(OSError, ValueError):  # who reads learns it by the end of the stream
            room.register(self._socket, select.POLLOUT)
            while rest:
                if room.poll(1000 * WAIT_SECONDS):
                    rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
                elif self.is_lost:
                    return

    def receive(self) -> Message | None:
        """The next message, None once the other end is gone."""
        try:
            length = int.from_bytes(received(self._socket, LENGTH_BYTES))
            return json.loads(received(self._socket, length))
        except (EOFError, OSError):
            return None

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
