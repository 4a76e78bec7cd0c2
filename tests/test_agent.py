"""An agent beside programs that write notes and output in all orders and sizes: it never waits for them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from keras_par.agent.wire import Channel, Message
from tests.launcher import program
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment

SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 200))]
BEGAN = """
import json, os, signal, sys, time
from pathlib import Path
notes = int(os.environ["KERAS_PAR_WATCH"].split(",")[2])
"""
# Output first and a note behind it, both before the agent looks: it reads the note while it shows the output.
STALE = """
os.kill(os.getppid(), signal.SIGSTOP)
while Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(") ")[2][0] != "T":
    time.sleep(0.001)
os.write(2, b"Traceback (most recent call last):\\nValueError: this\\n")
place = {"call": None, "epoch": 0, "step": 0, "marks": 0}
failure = {"note": "failure", "time": time.time(), "message": "ValueError: this", **place}
os.write(notes, json.dumps({**failure, "is_consequence": True, "on_all_ranks": False}).encode() + b"\\n")
os.kill(os.getppid(), signal.SIGCONT)
time.sleep(1000)
"""
WRITES = "\nwhile True:\n    os.write(1, b'x' * 1000 + b'\\n')\n"
# A child of a program that has ended: of a large pipe the agent never reads all.
WRITES_ON = f"""
import fcntl
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 2**20)
if os.fork():
    sys.exit(3)
{WRITES}
"""
NO_NOTES = """
for each in (b"[1, 2]", b"7", b"null", b'{"note": []}', b'{"note": "failure", "time": "x"}', b'{"note": "checkpoint"}'):
    os.write(notes, each + b"\\n")
sys.exit(3)
"""


@dataclass
class Beside:
    """An agent with its program, and the launcher's end of its connection."""

    process: subprocess.Popen
    channel: Channel
    said: list[Message] = field(default_factory=list)

    def hear_until(self, kind: str, seconds: float = PATIENCE) -> Message:
        """The content of the next message of a kind; all that was said before it is in `said`."""
        deadline = time.monotonic() + seconds
        while (message := self.channel.receive(deadline - time.monotonic())) is not None:
            self.said.append(message)
            if kind in message:
                return message[kind]
        raise AssertionError(f"no '{kind}' came; it said {[str(each)[:200] for each in self.said[-5:]]}")


@contextlib.contextmanager
def beside(*command: str) -> Iterator[Beside]:
    """An agent that runs a program, and is gone in the end with all that this has started."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        its = socket.create_connection(door.getsockname())
        own, _ = door.accept()
    agent = subprocess.Popen(
        [sys.executable, "-m", "tests.beside", str(its.fileno()), *command],
        cwd=REPOSITORY,
        env=environment(),
        pass_fds=[its.fileno()],
        start_new_session=True,
    )
    its.close()
    try:
        yield Beside(agent, Channel(own))
    finally:
        own.close()
        left = psutil.Process(agent.pid).children(recursive=True) if agent.poll() is None else []
        agent.kill()
        agent.wait()
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


@pytest.mark.parametrize("seed", SEEDS)
def test_it_tells_the_end_of_whatever_program(seed):
    with beside(sys.executable, program("chatter"), str(seed)) as agent:
        end = agent.hear_until("exit")
        assert end["status"] in (0, 1, 7, -signal.SIGKILL)
        agent.channel.send({"dismiss": {"ends_engine": False, "keeps_memory": False}})
        assert agent.process.wait(PATIENCE) == 0


def test_a_child_that_writes_on_does_not_keep_it_from_telling_the_end():
    with beside(sys.executable, "-c", BEGAN + WRITES_ON) as agent:
        assert agent.hear_until("exit")["status"] == 3


def test_a_note_that_was_read_already_is_not_waited_for():
    with beside(sys.executable, "-c", BEGAN + STALE) as agent:
        time.sleep(1)
        agent.channel.send({"kill": True})
        end = agent.hear_until("exit")
        assert (end["status"], end["error"]) == (-signal.SIGKILL, "ValueError: this")


def test_notes_that_are_none_are_left_alone():
    with beside(sys.executable, "-c", BEGAN + NO_NOTES) as agent:
        assert agent.hear_until("exit")["status"] == 3
        assert not [each for each in agent.said if "checkpoint" in each]


def test_it_hears_of_the_end_though_nobody_reads_what_its_program_writes():
    """As where a user pages through the output: the program waits, and what is kept does not grow."""
    with beside(sys.executable, "-c", BEGAN + WRITES) as agent:
        agent.hear_until("output")
        process, memory = psutil.Process(agent.process.pid), []
        deadline = time.monotonic() + PATIENCE
        while len(memory) < 3 or memory[-1] != memory[-3]:  # it has stopped to read
            assert time.monotonic() < deadline
            memory.append(process.cpu_times().user)
            time.sleep(0.5)
        assert process.memory_info().rss < 200 * 2**20
        [writer] = process.children()
        agent.channel.send({"kill": True})
        psutil.wait_procs([writer], timeout=PATIENCE)
        assert not writer.is_running()
        assert agent.hear_until("exit")["status"] == -signal.SIGKILL


def test_half_an_order_does_not_stop_it():
    with beside(sys.executable, "-c", BEGAN + "time.sleep(1.5); sys.exit(3)") as agent:
        os.write(agent.channel.fileno(), b"\x00\x00\x01\x00{")
        assert agent.hear_until("exit")["status"] == 3
