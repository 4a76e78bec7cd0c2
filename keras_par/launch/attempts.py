"""Runs a job, and again after a failure as often as its user allows."""

import argparse
import contextlib
import os
import platform
import signal
import time
from collections.abc import Iterator

from keras_par.base.version import VERSION
from keras_par.launch import verdict
from keras_par.launch.console import Console
from keras_par.launch.engines import Plan
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.supervisor import Settings, Supervisor

ECHO_SECONDS = 1.0  # a terminal that closes sends several signals at once, which are not the user's second


def supervise(arguments: argparse.Namespace, plan: Plan, command: list[str], folder: RunFolder) -> int:
    """Runs the job, and again after a failure as often as the user allows."""
    console, began = Console(len(plan.places)), time.monotonic()
    folder.describe(
        command=command,
        engine=plan.engine,
        num_ranks=len(plan.places),
        hosts={},
        started=time.time(),
        keras_par=VERSION,
        python=platform.python_version(),
    )
    if plan.warning:
        console.say(plan.warning)
    if arguments.log_dir and not arguments.tee:
        console.say(f"the ranks' output goes to {arguments.log_dir}/rank.<r>/stdout and stderr; --tee shows it, too")
    settings = Settings(
        merge_stderr=arguments.merge_stderr,
        forward=arguments.log_dir is None or arguments.tee,
        verbose=arguments.verbose or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0",
        hang_after=arguments.hang_after,
        on_hang=arguments.on_hang,
    )
    with noted_signals() as interrupts:
        while True:
            status = Supervisor(plan, settings, folder, console, interrupts).run()
            if status == 0 or interrupts or folder.attempt == arguments.max_restarts:
                break
            folder.attempt += 1
            text = f"restart {folder.attempt} of {arguments.max_restarts}, after status {status}"
            console.say(text)
            folder.event("restart", text)
        folder.event("end", f"the job ended with status {status}", status=status)
        if status == 0:
            logs = None if folder.path is None else str(folder.path)
            console.say(verdict.finished(len(plan.places), time.monotonic() - began, logs))
        if folder.complaint:
            console.say(folder.complaint)
        is_shown = console.close()
    if not is_shown:
        os._exit(status)  # Python's own end would flush the stream in which a thread still writes, and abort
    return status


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """A list that grows with each signal by which the user or the system wants the job to end."""
    received: list[int] = []
    last = 0.0

    def note(number, _) -> None:
        nonlocal last
        is_echo = received and number != signal.SIGINT and time.monotonic() - last < ECHO_SECONDS
        last = time.monotonic()
        if not is_echo:
            received.append(number)

    ours = [signal.SIGINT, signal.SIGTERM]
    ours += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []  # as nohup sets it
    before = {each: signal.signal(each, note) for each in ours}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
