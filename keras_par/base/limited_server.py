"""What servers that anybody may reach have in common: none takes more than ranks need; who knows a key proves it."""

import contextlib
import hmac
import socket
import threading
import time
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

READ_SECONDS = 3.0  # for the next bytes of a request; handlers take it as their `timeout`
REQUEST_SECONDS = 10.0  # for a whole one, and its answer
NONCE_BYTES, PROOF_BYTES = 16, 32
OPEN_AT_LEAST, OPEN_PER_RANK = 256, 4  # connections at once; when one more comes, the oldest ends


class LimitedServer(ThreadingMixIn, TCPServer):
    """Answers each connection in a thread of its own, from a thread that lasts as long as the process.

    Args:
        address: to listen at.
        port: to listen on; 0 takes one that is free.
        size: number of ranks that may come.
        handler: of a connection. What it raises ends the connection, and is not told.
        name: of the thread.

    Raises:
        OSError: the port is not free.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024  # with the usual 5, ranks that come together would wait for seconds

    def __init__(self, address: str, port: int, size: int, handler: Any, name: str):
        self._most_open = max(OPEN_AT_LEAST, OPEN_PER_RANK * size)
        self._open: dict[socket.socket, float] = {}  # since when, the oldest first
        self._counting = threading.Lock()
        super().__init__((address, port), handler)
        threading.Thread(target=self.serve_forever, name=name, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins to answer a connection."""
        with self._counting:
            while len(self._open) >= self._most_open:
                self._end(next(iter(self._open)))
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Ends connections that last for too long; called again and again."""
        latest = time.monotonic() - REQUEST_SECONDS
        with self._counting:
            for each in [each for each, began in self._open.items() if began < latest]:
                self._end(each)

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection that was answered."""
        with self._counting:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of what is no request of a rank's."""

    def close(self) -> None:
        """Listens no more."""
        self.shutdown()
        self.server_close()

    def _end(self, request: socket.socket) -> None:
        """Has the thread that answers a connection find its end."""
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def proof(key: str, who: str, nonce: bytes, said: bytes) -> bytes:
    """What only who knows the key can say of something, for one connection."""
    return hmac.digest(key.encode(), who.encode() + nonce + said, "sha256")
