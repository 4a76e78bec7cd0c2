"""Runs an agent on a socket that it inherits, whose other end is a test's.

python -m tests.beside DESCRIPTOR PROGRAM [ARGUMENT ...]
"""

import socket
import sys

from keras_par.agent.__main__ import Agent
from keras_par.agent.wire import Channel

JOB = {"environment": {}, "folder": None, "forward": True, "merge_stderr": False, "verbose": False}

if __name__ == "__main__":
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    Agent(1, sys.argv[2:], {**JOB, "attempt": 0, "beat": 1.0}, channel).run()
