"""A rank without TensorFlow that writes notes and output in an order and in sizes drawn from a seed, then ends.

chatter.py SEED
"""

import json
import os
import random
import signal
import sys
import time

draw = random.Random(int(sys.argv[1]))
agent, notes = os.getppid(), int(os.environ["KERAS_PAR_WATCH"].split(",")[2])
SIZES = (0, 1, 100, 4096, 70_000, 200_000)
NO_NOTES = (
    b"[1, 2]",
    b"7",
    b'"text"',
    b"null",
    b"{",
    b"\xff\xfe",
    b'{"note": []}',
    b'{"note": "failure", "time": "x"}',
)
KINDS = ("failure", "epoch", "first_step", "resume", "stopped", "checkpoint", "another")


def write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # closed
        pass


def note() -> bytes:
    if draw.random() < 0.4:
        return draw.choice(NO_NOTES) + b"\n"
    about = {"note": draw.choice(KINDS), "time": time.time(), "message": "E" * draw.choice(SIZES)}
    about |= {"is_consequence": draw.random() < 0.5, "on_all_ranks": draw.random() < 0.5, "marks": 0}
    if draw.random() < 0.3:
        del about[draw.choice(list(about))]
    return json.dumps(about).encode() + b"\n"


def part(data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def error() -> bytes:
    text = "E" * draw.choice(SIZES)
    return f'Traceback (most recent call last):\n  File "user.py", line 3, in <module>\nValueError: {text}\n'.encode()


def talk() -> None:
    """Something on one of the three."""
    write(
        *draw.choice([(1, b"o" * draw.choice(SIZES) + b"\n"), (1, part(b"p" * 300)), (2, error()), (2, part(error()))])
    )
    write(notes, draw.choice([note(), part(note()), b"\n", b""]))


for _ in range(draw.randrange(1, 12)):
    if draw.random() < 0.4:  # all is there when the agent looks next
        os.kill(agent, signal.SIGSTOP)
        if os.fork() == 0:
            time.sleep(0.05)
            os.kill(agent, signal.SIGCONT)
            os._exit(0)
        time.sleep(0.005)
        write(2, error()[:30_000])
        write(notes, (note()[:20_000] + b"\n")[:20_001])
        write(1, b"q" * draw.choice((0, 10, 30_000)))
    elif draw.random() < 0.15:
        os.close(draw.choice([1, 2, notes])) if draw.random() < 0.7 else os.closerange(0, 100)
        break
    else:
        talk()
    time.sleep(draw.choice((0, 0, 0.01)))
if draw.random() < 0.3 and os.fork() == 0:  # a child that holds all open, and writes when this one has ended
    time.sleep(0.1)
    talk()
    time.sleep(1000)
if draw.random() < 0.5:
    write(2, error())
end = draw.choice((0, 1, 7, signal.SIGKILL))
os.kill(os.getpid(), end) if end == signal.SIGKILL else os._exit(end)
