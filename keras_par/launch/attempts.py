"""Runs a job, and again after a failure as often as its user allows."""

import contextlib
import platform
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from keras_par.base.version import VERSION
from keras_par.launch import verdict
from keras_par.launch.console import Console
from keras_par.launch.engines import Plan
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.supervisor import Settings, Supervisor

ECHO_SECONDS = 1.0  # a terminal that closes sends several signals at once, which are not the user's second


def supervise(
    plan: Plan,
    command: Sequence[str],
    settings: Settings,
    folder: RunFolder,
    console: Console,
    interrupts: list[int],
    max_restarts: int = 0,
) -> int:
    """Runs the job, and again after a failure as often as the user allows; its exit status.

    Args:
        plan: how it is started.
        command: what each rank runs.
        settings: what the user wants.
        folder: of the run.
        console: where things are shown.
        interrupts: the signals that the user has sent, appended to as they come.
        max_restarts: how often it may start again.
    """
    began = time.monotonic()
    folder.describe(
        command=list(command),
        engine=plan.engine,
        num_ranks=len(plan.places),
        hosts={},
        started=time.time(),
        keras_par=VERSION,
        python=platform.python_version(),
    )
    if plan.warning:
        console.say(plan.warning)
    while True:
        status = Supervisor(plan, settings, folder, console, interrupts).run()
        if status == 0 or interrupts or folder.attempt == max_restarts:
            break
        folder.attempt += 1
        text = f"restart {folder.attempt} of {max_restarts}, after status {status}"
        console.say(text)
        folder.event("restart", text)
    folder.event("end", f"the job ended with status {status}", status=status)
    if status == 0:
        logs = None if folder.path is None else str(folder.path)
        console.say(verdict.finished(len(plan.places), time.monotonic() - began, logs))
    if folder.complaint:
        console.say(folder.complaint)
    return status


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """A list that grows with each signal by which the user or the system wants the job to end.

    Python gives signals to its main thread alone; in another the list stays empty.
    """
    received: list[int] = []
    last = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

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
