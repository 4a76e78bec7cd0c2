"""Tests how an agent signals its program, and what it sees of it."""

import json
import subprocess
import sys

from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment

TIMES = 300

SLEEPS_WHILE_THREADS_BEGIN = f"""
import itertools, signal, sys, threading, time
from keras_par.job import rank_heartbeat

def begin_threads():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def answer(*_, numbers=itertools.count(1)):
    print("interrupted", flush=True)
    if next(numbers) == {TIMES}:
        sys.exit()

signal.signal(signal.SIGINT, answer)
rank_heartbeat.current()
threading.Thread(target=begin_threads, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""

IS_INTERRUPTED = """
import time
from keras_par.job import rank_heartbeat

rank_heartbeat.current()
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def said(times: int, *command: str) -> list[str]:
    """What a program says that is interrupted so often, each time while it sleeps."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.signalled", str(times), *command],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_main_thread_that_sleeps_hears_of_every_signal_though_threads_begin():
    assert said(TIMES, sys.executable, "-c", SLEEPS_WHILE_THREADS_BEGIN) == ["ready", *["interrupted"] * TIMES]


def test_a_program_within_a_shell_is_signalled_and_so_is_the_shell():
    within = "trap 'echo the shell too' INT; \"$@\"; echo after"
    found = said(1, "sh", "-c", within, "sh", sys.executable, "-c", IS_INTERRUPTED)
    assert found == ["ready", "interrupted", "the shell too", "after"]


CLOSES = "import os, sys, time; time.sleep(0.2); os.closerange(0, 4096); time.sleep(1000)"
WRITES = "import os\nwhile True: os.write(1, bytes(100_000))"


def seen(program: str, *how: str) -> list[dict]:
    """What an agent sees of a program, until that is as wanted."""
    command = [sys.executable, "-m", "tests.watched", program, *how]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_program_that_closes_all_that_it_inherited_is_noticed():
    found = seen(CLOSES, "has_closed")
    assert not found[0]["has_closed"] and found[-1]["has_closed"] and not found[-1]["is_writing"]


def test_a_program_that_waits_for_its_output_to_be_taken_is_noticed():
    found = seen(WRITES, "quiet")
    assert found[-1]["is_writing"] and not found[-1]["has_closed"] and found[-1]["quiet"] > 1


def test_output_that_is_taken_is_progress_of_a_program_that_waits_for_that():
    found = seen(WRITES, "is_writing", "reads")
    assert sum(state["is_writing"] for state in found) > 50
    assert max(state["quiet"] for state in found[-40:]) < 1
