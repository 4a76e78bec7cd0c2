"""Notes this rank's progress in memory that its launcher reads, without collectives and without waiting."""

import atexit
import contextlib
import faulthandler
import json
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from keras_par.base.heartbeat_page import (
    AT_ONCE,
    BY_USER,
    CALLS,
    MAGIC,
    NEVER,
    PHASES,
    STACK_SIGNAL,
    VARIABLE,
    Page,
    bucket,
    clipped,
    image_of,
)
from keras_par.base.json_values import plain
from keras_par.base.user_code import last_line

PAUSE_SECONDS = 0.01
LOSS_SECONDS = 0.5
END_SECONDS = 0.2  # from one look at the threads that keep a process to the next
TRAINING = ("fit", "train_on_batch")
STARTING, SCRIPT, DATA, STEP, CALLBACK, COLLECTIVE = range(len(PHASES))


class Heartbeat:
    """This rank's notes; those of a step cost some microseconds of Python and no system call.

    Args:
        page: shared with the launcher, or of this process alone if none watches.
        notes: the file descriptor of a pipe to the launcher, None if none watches.
    """

    def __init__(self, page: Page, notes: int | None):
        self.page, self._notes = page, notes
        self._step_began = self._loss_read = 0.0
        page.image = image_of(os.getpid())
        page.pid, page.loss = os.getpid(), math.nan
        self.is_marked = False  # the step under way was traced with marks that tell its phases
        self.is_measured = False  # a step is traced that tells when it is in collectives
        self._lock = threading.Lock()
        self._num_collectives, self._counted = 0, 0.0  # that were under way, and since when
        self.collective_seconds = 0.0  # in which one or more were, outside of steps and in measured ones
        page.phase_since = time.monotonic()
        self.enter(SCRIPT)

    @property
    def is_watched(self) -> bool:
        """True if a launcher reads the notes."""
        return self._notes is not None

    @property
    def must_stop(self) -> bool:
        """True if all ranks stop after the step that was just done, for the user or for another world."""
        page = self.page
        return page.stop_before != NEVER and page.executions + 1 >= page.stop_before

    def enter(self, phase: int) -> None:
        """Notes that the phase with this number in PHASES begins, and adds up the time of the one before."""
        page, now = self.page, time.monotonic()
        page.seconds[page.phase] += now - page.phase_since
        page.phase, page.phase_since = phase, now
        page.marks += 1

    @contextlib.contextmanager
    def call(self, kind: str, is_common: bool = True) -> Iterator[None]:
        """Notes a call of a trainer method, which may be inside another; `is_common` if all ranks make it together."""
        page = self.page
        before = page.call, page.phase, page.step, page.in_fit
        page.call, page.step, page.in_fit = CALLS.index(kind), 0, page.in_fit or (kind == "fit" and is_common)
        self._step_began, self._num_collectives = 0.0, 0  # those of a step that has failed never end
        self.enter(CALLBACK)
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as error:  # of any other error `failures` tells
            if not getattr(error, "_keras_par_told", False):
                error._keras_par_told = True  # type: ignore[union-attr]
                self.tell("leaving", user_line=last_line(error.__traceback__))  # it may be the script's end
            raise
        finally:
            page.call, phase, page.step, page.in_fit = before
            self._step_began = 0.0
            self.enter(phase)
        if kind == "fit" and not page.in_fit:
            self._stop_after_fit()

    def _stop_after_fit(self) -> None:
        """Ends the script if its user asked for that when all ranks were in this `fit`, whose last steps came first.

        Whoever asks reads `in_fit` after `pause` was set, so that each rank which is told a step finds it set here.
        """
        page = self.page
        while page.pause == BY_USER and page.stop_before == NEVER:
            time.sleep(PAUSE_SECONDS)
        if page.pause == BY_USER and page.stop_before != AT_ONCE:
            where = "at the end of fit"
            self.tell("stopped", text=where)
            raise KeyboardInterrupt(f"keras-par: stopped by its user {where}")

    def begin_epoch(self, epoch: int, step: int) -> None:
        """Notes the epoch that begins, from 0, and how many of its steps are done."""
        self.page.epoch, self.page.step = epoch, step
        self._step_began = 0.0

    def begin_step(self, num_steps: int, is_common: bool = True) -> None:
        """Notes that a call of a step function begins; waits here if the launcher wants all ranks to stop.

        Args:
            num_steps: that it does.
            is_common: False if other ranks need not make this call, which therefore neither counts nor waits.
        """
        page = self.page
        page.step += num_steps
        if is_common:
            page.executions += 1
            while page.pause and page.stop_before == NEVER:
                time.sleep(PAUSE_SECONDS)
        self.enter(STEP)
        if CALLS[page.call] in TRAINING:
            page.steps += num_steps
            if self._step_began:
                page.step_times[bucket((page.phase_since - self._step_began) / num_steps)] += num_steps
            self._step_began = page.phase_since

    def end_step(self, logs: Any) -> None:
        """Notes that a step function has returned, and twice a second the loss in what it returned."""
        self.enter(CALLBACK)
        page = self.page
        if CALLS[page.call] not in TRAINING:
            return
        if not self._loss_read:
            self.tell("first_step")
        if page.phase_since - self._loss_read > LOSS_SECONDS:
            self._loss_read = page.phase_since
            with contextlib.suppress(AttributeError, TypeError, ValueError):  # no logs, or a loss that is no scalar
                page.loss = float(logs.get("loss", math.nan))

    @contextlib.contextmanager
    def collective(self, name: str) -> Iterator[None]:
        """Notes that this rank's Python waits in a collective."""
        page, before = self.page, self.page.phase
        if before == COLLECTIVE:  # one of several messages
            yield
            return
        page.collective = clipped(name, Page.collective.size)
        self.enter(COLLECTIVE)
        self.add_collectives(1)
        try:
            yield
        finally:
            self.add_collectives(-1)
            page.collective = b""
            self.enter(before)

    def add_collectives(self, by: int) -> bool:
        """Notes that so many more collectives are under way; any thread may call this, and measured steps do."""
        with self._lock:
            now = time.monotonic()
            if self._num_collectives:
                self.collective_seconds += now - self._counted
            self._counted, self._num_collectives = now, self._num_collectives + by
        return True

    def fail(self, is_common: bool = False) -> None:
        """Notes an error; after one that all ranks have they may go on together."""
        self.page.failed, self.page.failed_at = 0.0 if is_common else time.monotonic(), self.page.executions

    def tell(self, note: str, **content: Any) -> None:
        """Sends the launcher a note and where this rank is; it is dropped if nobody reads, so that this never waits."""
        if note == "failure":
            self.fail(content["on_all_ranks"])
        if self._notes is not None:
            page = self.page
            where = {"call": CALLS[page.call], "epoch": page.epoch, "step": page.step, "marks": page.executions}
            line = json.dumps({"note": note, "time": time.time(), **where, **content}, default=plain)
            with contextlib.suppress(OSError):
                os.write(self._notes, line.encode() + b"\n")


_heartbeat: Heartbeat | None = None


def current() -> Heartbeat:
    """This process's heartbeat; the first call looks whether a launcher watches."""
    global _heartbeat
    if _heartbeat is None:
        _heartbeat = inherited() or Heartbeat(Page(stop_before=NEVER), None)
    return _heartbeat


def inherited() -> Heartbeat | None:
    """The heartbeat of a process that a launcher started itself, else None.

    Its stacks are written to the launcher's file when that asks for them, and when it dies of a fault.
    """
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return None
    try:
        page_file, stacks, notes = map(int, given.split(","))
        page = Page.from_buffer(mmap.mmap(page_file, 0))
        if page.magic != MAGIC or page.pid != 0:
            return None
        for descriptor in (page_file, stacks, notes):
            os.set_inheritable(descriptor, False)
        os.set_blocking(notes, False)
    except (ValueError, OverflowError, OSError):  # a child of the launcher's child, which did not inherit the files
        return None
    threading.Thread(target=note_end, args=(page,), name="kp-end", daemon=True).start()
    faulthandler.enable(stacks)
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    atexit.register(faulthandler.unregister, STACK_SIGNAL)
    return Heartbeat(page, notes)


def note_end(page: Page) -> None:
    """Waits for the end of the script, and notes from then on for which threads Python waits before it ends."""
    threading.main_thread().join()
    page.ended = time.monotonic()
    page.marks += 1
    while True:
        left = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        page.threads = clipped(", ".join(left), Page.threads.size)
        time.sleep(END_SECONDS)
