"""Tests how an agent signals its program."""

import os
import select
import signal
import sys

import pytest

from keras_par.agent.rank_process import RankProcess

ANSWER_SECONDS = 5
SIGNALS = 300

SLEEPS_WHILE_THREADS_BEGIN = """
import signal, threading, time
from keras_par.job import heartbeat

def begin_threads():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
heartbeat.current()
threading.Thread(target=begin_threads, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(100)
"""

IS_INTERRUPTED = """
import time
from keras_par.job import heartbeat

heartbeat.current()
try:
    print("ready", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def started():
    """Starts programs; yields what does, and returns the process and what reads its next line."""
    processes = []

    def start(*command):
        process = RankProcess(command, os.environ, merge_stderr=True)
        processes.append(process)

        def line():
            assert select.select([process.stdout], [], [], ANSWER_SECONDS)[0], "the program says nothing"
            return process.stdout.readline().decode().strip()

        return process, line

    yield start
    for process in processes:
        process.kill()
        process.stdout.close()
        os.close(process.notes)


def test_a_main_thread_that_sleeps_hears_of_every_signal_though_threads_begin(started):
    process, line = started(sys.executable, "-c", SLEEPS_WHILE_THREADS_BEGIN)
    assert line() == "ready"
    for _ in range(SIGNALS):
        process.send_signal(signal.SIGINT)
        assert line() == "interrupted"


def test_a_program_within_a_shell_is_signalled_and_so_is_the_shell(started):
    within = "trap 'echo the shell too' INT; \"$@\"; echo after"
    process, line = started("sh", "-c", within, "sh", sys.executable, "-c", IS_INTERRUPTED)
    assert line() == "ready"
    process.send_signal(signal.SIGINT)
    assert [line(), line(), line()] == ["interrupted", "the shell too", "after"]
