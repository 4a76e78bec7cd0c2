"""Strangers that connect to whatever listens, and say what no rank and no agent says, drawn by a seed."""

import contextlib
import json
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

FLOOD_BYTES, FLOODS = 2**25, 4  # that one stranger tries to send, and how many do
ANSWER_SECONDS = 0.5
VERBS = ("GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "")
PATHS = ("/", "/global/0", "/a/b/c/d", "/keras-par/ranks", "/../../etc/passwd", "/setup.py", "//", "x" * 70_000, "*")
LENGTHS = ("0", "-1", "99999999999", "ten", "1e9", "", "5")


def bytes_of(draw: random.Random, most: int = 3000) -> bytes:
    return draw.randbytes(draw.randrange(most))


def http(draw: random.Random) -> bytes:
    lines = [f"{draw.choice(VERBS)} {draw.choice(PATHS)} HTTP/{draw.choice(('1.0', '1.1', '9', 'x'))}"]
    lines += [f"Content-Length: {draw.choice(LENGTHS)}"] if draw.random() < 0.7 else []
    lines += [f"X-{number}: {'y' * draw.randrange(100)}" for number in range(draw.choice((0, 1, 200)))]
    return "\r\n".join([*lines, "", ""]).encode() + bytes_of(draw)


def deep(draw: random.Random) -> bytes:
    return b"[" * draw.choice((10, 100_000)) + draw.choice((b"\n", b""))


def entry(draw: random.Random) -> bytes:
    """Of the register, with something wrong."""
    about = {"rank": 0, "size": 2, "process": "x", "host": "h", "own_address": "10.0.0.1", "engine": "gloo"}
    wrong = draw.choice((None, -1, 10**30, [], {}, "x" * 5000, True, 1.5))
    about[draw.choice([*about, "reached", "more"])] = wrong
    content = draw.choice((json.dumps(about), "[" * 9000, "null", "3", '{"rank": 1'))
    return f"POST /keras-par/ranks HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode()


def message(draw: random.Random) -> bytes:
    """Of an agent that proves nothing."""
    length = draw.choice((0, 1, 100, 2**28, 2**32 - 1))
    return draw.randbytes(48) + length.to_bytes(4) + bytes_of(draw)


KINDS: tuple[Callable[[random.Random], bytes], ...] = (bytes_of, http, deep, entry, message, lambda _: b"")


def say(address: tuple[str, int], seed: int) -> None:
    """One stranger: connects, maybe reads, says something, and stays or leaves."""
    draw = random.Random(seed)
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=ANSWER_SECONDS) as connection:
        if draw.random() < 0.3:
            connection.recv(100)
        content = draw.choice(KINDS)(draw)
        for start in range(0, len(content), piece := draw.choice((7, 2**20)) if len(content) < 2000 else 2**20):
            connection.sendall(content[start : start + piece])
        if draw.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
        if draw.random() < 0.3:
            connection.recv(1000)


def flood(address: tuple[str, int], begin: bytes) -> int:
    """How many bytes are taken from a stranger that sends as long as it can."""
    sent = 0
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=2 * ANSWER_SECONDS) as connection:
        connection.sendall(begin)
        while sent < FLOOD_BYTES:
            sent += connection.send(bytes(2**16))
    return sent


def visit(address: tuple[str, int], number: int, seed: int) -> list[int]:
    """Many strangers, several at a time, some of them floods; how many bytes each of those was rid of."""
    with ThreadPoolExecutor(16) as threads:
        begins = (b"", b"PUT /global/0 HTTP/1.0\r\nContent-Length: 99999999\r\n\r\n", b"GET /", b'{"token": "')
        taken = [threads.submit(flood, address, begins[each % len(begins)]) for each in range(FLOODS)]
        for visitor in range(number):
            threads.submit(say, address, seed + visitor)
        return [each.result() for each in taken]
