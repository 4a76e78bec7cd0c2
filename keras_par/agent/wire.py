"""Carries JSON messages between the launcher and its agents, over sockets that only they can join."""

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from keras_par.base.addresses import own_addresses

VARIABLE = "KERAS_PAR_LAUNCHER"  # how an agent reaches its launcher

Message = dict[str, Any]


class Channel:
    """One end of a connection; sending to an end that is gone does nothing."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def send(self, message: Message) -> None:
        """Sends a message, anything JSON can carry."""
        with contextlib.suppress(OSError):  # who reads learns it by the end of the stream
            self._connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> Message | None:
        """The next message, None once the other end is gone."""
        try:
            return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def peer(self) -> tuple[str, int]:
        """The address and port of the other end."""
        with socket.socket(fileno=os.dup(self.fileno())) as own:
            return own.getpeername()

    def close(self) -> None:
        self._connection.close()

    def hang_up(self) -> None:
        """Ends the connection, also for a thread that waits in `receive`."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)


class Door:
    """Where agents connect to the launcher.

    Args:
        is_local: True if all agents run on this host, so that no other can reach the door.
    """

    def __init__(self, is_local: bool):
        key = secrets.token_hex(16)
        host = "127.0.0.1" if is_local else "0.0.0.0"
        self._listener = Listener((host, 0), "AF_INET", backlog=128, authkey=key.encode())
        port = self._listener.address[1]
        hosts = [host] if is_local else own_addresses()
        self.invitation = json.dumps({"addresses": [[each, port] for each in hosts], "key": key})

    def admit(self, arrived: Callable[[Channel], None]) -> None:
        """Passes each agent that connects to `arrived`, until the door is closed."""
        while True:
            try:
                connection = self._listener.accept()
            except AuthenticationError:
                continue  # a stranger
            except (OSError, EOFError):
                if self._is_closed():
                    return
                continue
            arrived(Channel(connection))

    def close(self) -> None:
        """Lets nobody in any more."""
        with contextlib.suppress(OSError):  # which wakes those that wait in `admit`
            self._listener._listener._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        self._listener.close()

    def _is_closed(self) -> bool:
        return self._listener._listener is None  # type: ignore[attr-defined]


def parsed(line: str) -> Message:
    """A line of JSON, an empty message if it was cut."""
    try:
        return json.loads(line)
    except ValueError:
        return {}


def connect() -> Channel | None:
    """An agent's channel to the launcher that its environment names, None if it names none.

    Raises:
        OSError: no address of the launcher can be reached.
    """
    invitation = os.environ.pop(VARIABLE, None)
    if invitation is None:
        return None
    invited = json.loads(invitation)
    return Channel(first_to_answer(invited["addresses"], invited["key"].encode()))


def first_to_answer(addresses: Sequence[Sequence], key: bytes) -> Connection:
    error: Exception = OSError("no address")
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=5).close()  # Client itself would wait for minutes
            return Client((host, port), "AF_INET", authkey=key)
        except (OSError, AuthenticationError, EOFError) as failure:
            error = failure
    raise OSError(f"the launcher cannot be reached at any of {[host for host, _ in addresses]}: {error}")
