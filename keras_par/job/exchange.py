"""Questions of ranks to rank 0 and its answers, over connections on which both prove to know the job's key."""

import contextlib
import hmac
import json
import logging
import secrets
import socket
from collections.abc import Callable
from socketserver import StreamRequestHandler
from typing import Any

from keras_par.base.limited_server import NONCE_BYTES, PROOF_BYTES, READ_SECONDS, LimitedServer, proof

MOST_BYTES, MOST_ANSWER_BYTES = 2**17, 2**19
TRIES = 2  # of a question; many connections of strangers may have ended the first
KEY_BYTES = 16
ANSWER_SECONDS = 3.0  # that rank 0 has for an answer

logger = logging.getLogger("keras_par")


class Exchange(LimitedServer):
    """Rank 0's end.

    Args:
        is_local: True if all ranks are on this host, so that no other can reach it.
        size: number of ranks.
        answer: to a question, anything JSON can carry, as the result is.
        name: of its thread.
    """

    def __init__(self, is_local: bool, size: int, answer: Callable[[dict[str, Any]], Any], name: str):
        self.key = secrets.token_hex(KEY_BYTES)
        self.answer_to = answer
        self._has_told = False
        super().__init__("127.0.0.1" if is_local else "", 0, size, Handler, name)

    def tell_of_stranger(self, address: str) -> None:
        """Says once that somebody connects who does not know the key."""
        if not self._has_told:
            self._has_told = True
            logger.warning(
                "keras-par: rank 0 refuses a connection from %s on its port %d, which is none of the job's: look for a "
                "program that tries ports; this is said once.",
                address,
                self.port,
            )


class Handler(StreamRequestHandler):
    """Answers one question, where it comes with the proof that its rank knows the key."""

    timeout = READ_SECONDS
    server: Exchange

    def handle(self) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.wfile.write(nonce)
        shown, question = self.rfile.read(PROOF_BYTES), self.rfile.readline(MOST_BYTES)
        if not hmac.compare_digest(shown, proof(self.server.key, "rank", nonce, question)):
            return self.server.tell_of_stranger(self.client_address[0]) if shown else None
        answer = json.dumps(self.server.answer_to(json.loads(question)), default=vars).encode()
        self.wfile.write(proof(self.server.key, "rank 0", nonce, answer) + answer)


def ask(host: str, port: int, key: str, question: dict[str, Any]) -> Any:
    """The answer to a question; None if rank 0 is gone, or who answers does not know the key.

    Raises:
        OSError: nobody listens there, or says anything.
    """
    content = json.dumps(question).encode() + b"\n"
    for _ in range(TRIES):
        with (
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
            socket.create_connection((host, port), timeout=ANSWER_SECONDS) as connection,
            connection.makefile("rb") as file,
        ):
            nonce = file.read(NONCE_BYTES)
            connection.sendall(proof(key, "rank", nonce, content) + content)
            shown, answer = file.read(PROOF_BYTES), file.read(MOST_ANSWER_BYTES)
            if hmac.compare_digest(shown, proof(key, "rank 0", nonce, answer)):
                return json.loads(answer)
    return None
