"""Where agents connect to the launcher and speak to it: one thread waits for all of them, however many there are."""

import contextlib
import hmac
import json
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Iterator

from keras_par.agent import wire
from keras_par.base.addresses import own_addresses
from keras_par.base.limited_server import NONCE_BYTES, PROOF_BYTES, proof
from keras_par.launch.engines import EngineError

BACKLOG = 4096  # connections that wait to be greeted; the kernel may allow fewer
MOST_STRANGERS = 2**13  # at once; when one more comes, the first is turned away
STRANGER_SECONDS = 20.0  # for somebody who connects to prove that the launcher has started him
OTHER_FILES = 200  # that the launcher opens besides connections


class Line(wire.Channel):
    """The launcher's end of one agent's connection."""

    def __init__(self, connection: socket.socket, switchboard: "Switchboard"):
        super().__init__(connection)
        self._switchboard = switchboard
        self.challenge: bytes | None = secrets.token_bytes(NONCE_BYTES)  # None once it is answered
        self.began = time.monotonic()
        self.rank: int | None = None  # for who listens

    def flush(self) -> None:
        """Sends what is to be sent, as much as goes now, and the rest later."""
        super().flush()
        self._switchboard.listen(self)

    def close(self) -> None:
        """Ends the connection."""
        self._switchboard.drop(self)


class Switchboard:
    """Lets agents in that know the key in `invitation`, and hears what they say.

    Args:
        is_local: True if all agents run on this host, so that no other can reach it.
    """

    def __init__(self, is_local: bool):
        self._key = secrets.token_hex(16)
        self._door = socket.create_server(("127.0.0.1" if is_local else "0.0.0.0", 0), backlog=BACKLOG)
        self._door.setblocking(False)
        port = self._door.getsockname()[1]
        hosts = ["127.0.0.1"] if is_local else own_addresses()
        self.invitation = json.dumps({"addresses": [[each, port] for each in hosts], "key": self._key})
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._strangers: dict[Line, None] = {}  # in the order of their coming
        self._held: dict[Line, wire.Message] = {}  # what is kept of lines that are not heard

    def hear(self, seconds: float) -> Iterator[tuple[Line, wire.Message | None]]:
        """What agents say next, within so many seconds, each with its line; None is the end of one."""
        for key, events in self._selector.select(seconds):
            line = key.data
            if line is None:
                self._admit()
                continue
            if events & selectors.EVENT_WRITE:
                line.flush()
            if events & selectors.EVENT_READ and line.is_open:
                yield from self._read(line)
        self._turn_away()

    def hold(self, line: Line, message: wire.Message) -> None:
        """Keeps a message for `release`, and hears nothing more of its line until then."""
        self._held[line], line.is_held = message, True
        self.listen(line)

    def release(self) -> Iterator[tuple[Line, wire.Message | None]]:
        """The messages that were kept, and what followed them."""
        held, self._held = self._held, {}
        for line, message in held.items():
            line.is_held = False
            yield line, message
            if not line.is_held:
                yield from self._messages(line)
            self.listen(line)

    def drop(self, line: Line) -> None:
        """Ends a connection."""
        if line.is_open:
            line.is_open = False
            self._strangers.pop(line, None)
            with contextlib.suppress(KeyError):
                self._selector.unregister(line.socket)
            line.socket.close()

    def close(self) -> None:
        """Lets nobody in any more, and ends all connections; an agent out of reach hears of it when it is back."""
        lines = [key.data for key in self._selector.get_map().values() if key.data is not None]
        for line in {*lines, *self._held}:
            self.drop(line)
        self._selector.close()
        self._door.close()

    def _admit(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except BlockingIOError:
                return
            except OSError:  # no file is left for it
                if not self._strangers:
                    return
                self.drop(next(iter(self._strangers)))
                continue
            if len(self._strangers) >= MOST_STRANGERS:
                self.drop(next(iter(self._strangers)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(connection, self)
            self._strangers[line] = None
            assert line.challenge is not None
            line.write(line.challenge)

    def _turn_away(self) -> None:
        """Ends connections of strangers who have said nothing, or not what they should, for too long."""
        limit = time.monotonic() - STRANGER_SECONDS
        while self._strangers and (line := next(iter(self._strangers))).began < limit:
            self.drop(line)

    def _read(self, line: Line) -> Iterator[tuple[Line, wire.Message | None]]:
        is_there = line.read()
        if line.challenge is not None and not self._greet(line):
            return None if is_there else self.drop(line)
        yield from self._messages(line)
        if not is_there and line.is_open:
            self.drop(line)
            yield line, None

    def _greet(self, line: Line) -> bool:
        """True once the other end has shown that it knows the key; one that does not is dropped."""
        answer = line.take(NONCE_BYTES + PROOF_BYTES)
        if answer is None or line.challenge is None:
            return False
        theirs, shown = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(shown, proof(self._key, "agent", line.challenge, theirs)):
            self.drop(line)
            return False
        line.write(proof(self._key, "launcher", theirs, line.challenge))
        line.challenge = None
        self._strangers.pop(line, None)
        return True

    def _messages(self, line: Line) -> Iterator[tuple[Line, wire.Message | None]]:
        """The messages of a line that have arrived, as long as none of it is held."""
        try:
            for message in line.messages():
                yield line, message
                if line.is_held or not line.is_open:
                    return
        except ValueError:  # it is no agent
            self.drop(line)
            yield line, None

    def listen(self, line: Line) -> None:
        """Waits for what a line waits for now."""
        if not line.is_open:
            return
        wanted = selectors.EVENT_WRITE if line.waiting else 0
        wanted |= 0 if line.is_held else selectors.EVENT_READ
        known = self._selector.get_map().get(line.socket)
        if known is not None and known.events == wanted:
            return
        if known is not None:
            self._selector.unregister(line.socket)
        if wanted:
            self._selector.register(line.socket, wanted, line)


def make_room(num_ranks: int) -> None:
    """Lets this process open a file for each rank, where its limit is lower.

    Raises:
        EngineError: it may not.
    """
    wanted = num_ranks + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and hard < wanted:
        raise EngineError(
            f"{num_ranks} ranks need {wanted} open files, and this host lets a process have {hard}: raise the hard "
            "limit (nofile in /etc/security/limits.conf, or LimitNOFILE of the service)."
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
