"""The server at which Horovod's ranks find each other over Gloo, which takes no more from anybody than they need.

Horovod's own does the same for its ranks, but waits and takes in without a limit, and tells of files that are in its
folder. Neither asks who speaks, since what is compiled into Horovod cannot prove it: docs/run.md.
"""

import http.client
import threading
from collections import defaultdict
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from keras_par.base.limited_server import READ_SECONDS, LimitedServer
from keras_par.base.slots import Slot

VALUE_BYTES, VALUE_BYTES_PER_RANK = 2**18, 2**10  # of a value, which has an address for each rank
VALUES_PER_RANK = 64  # of the largest size; a job has some communicators, in each of which a rank has a value
TENSORFLOW = "tensorflow"  # the scope of ranks that TensorFlow connects
NAME_LETTERS = 512  # of a scope and a key
NAME_BYTES = 2**10  # that both may take at most


class Handler(BaseHTTPRequestHandler):
    """Answers one request: values are put, got and deleted at /SCOPE/KEY."""

    timeout = READ_SECONDS
    server: "RendezvousServer"

    def do_GET(self) -> None:
        value = self.server.get(self._place())
        self.answer(http.client.NOT_FOUND if value is None else http.client.OK, value or b"")

    def do_PUT(self) -> None:
        is_kept = self.server.put(self._place(), self.content(self.server.most_bytes))
        self.answer(http.client.OK if is_kept else http.client.INSUFFICIENT_STORAGE)

    def do_DELETE(self) -> None:
        self.server.delete(self._place())
        self.answer(http.client.OK)

    def content(self, most: int) -> bytes:
        """What follows the request.

        Raises:
            ValueError: it is too long, is not all there, or does not say how long it is.
        """
        size = int(self.headers.get("Content-Length", ""))
        if not 0 <= size <= most:
            raise ValueError(size)
        data = self.rfile.read(size)
        if len(data) < size:
            raise ValueError(size)
        return data

    def answer(self, status: int, content: bytes = b"") -> None:
        """Sends it."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _place(self) -> tuple[str, str]:
        _, scope, key = self.path.split("/")
        if len(self.path) > NAME_LETTERS:
            raise ValueError(self.path)
        return scope, key

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


class RendezvousServer(LimitedServer):
    """Keeps what ranks tell each other, as long as its process lives.

    Args:
        address: to listen at.
        port: to listen on; 0 takes one that is free.
        size: number of ranks.
        handler: of requests.

    Raises:
        OSError: the port is not free.
    """

    def __init__(self, address: str, port: int, size: int, handler: type[Handler] = Handler):
        self.most_bytes = VALUE_BYTES + VALUE_BYTES_PER_RANK * size
        self._room = self.most_bytes * VALUES_PER_RANK * size
        self._values: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._sizes: dict[str, int] = {}  # of the scopes that all of their ranks leave
        self._left: dict[str, int] = defaultdict(int)  # how many have
        self._lock = threading.Lock()
        super().__init__(address, port, size, handler, "kp-rendezvous")

    def expect(self, slots: Sequence[Slot]) -> None:
        """Takes in where the ranks are."""
        with self._lock:
            for slot in slots:
                self._sizes["global"] = self._sizes[TENSORFLOW] = slot.size
                self._sizes[f"local_{slot.hostname}"] = slot.local_size
                self._sizes[f"cross_{slot.local_rank}"] = slot.cross_size

    def get(self, place: tuple[str, str]) -> bytes | None:
        """A value; None if it is not there yet."""
        scope, key = place
        with self._lock:
            return self._values.get(scope, {}).get(key)

    def put(self, place: tuple[str, str], value: bytes) -> bool:
        """Keeps a value; False if there is no room for it."""
        scope, key = place
        with self._lock:
            before = self._values.get(scope, {}).get(key)
            needed = cost(value) - (0 if before is None else cost(before))
            if needed > self._room:
                return False
            self._room -= needed
            self._values[scope][key] = value
            return True

    def delete(self, place: tuple[str, str]) -> None:
        """Deletes a value; in a scope that all ranks leave, all at once, when the last has left it."""
        scope, key = place
        with self._lock:
            if scope in self._sizes:
                self._left[scope] += 1
                if self._left[scope] < self._sizes[scope]:
                    return
                del self._left[scope]
                gone = list(self._values.pop(scope, {}).values())
            else:
                value = self._values[scope].pop(key, None)
                gone = [] if value is None else [value]
                if not self._values[scope]:
                    del self._values[scope]
            self._room += sum(map(cost, gone))


def cost(value: bytes) -> int:
    """How many bytes are kept for a value."""
    return NAME_BYTES + len(value)
