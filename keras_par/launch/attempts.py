"""Runs a job, and again after a failure as often as its user allows, or with other ranks as hosts come and go."""

import contextlib
import platform
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from keras_par.agent.cleanup import end_of_daemon
from keras_par.base import host_memory
from keras_par.base.version import VERSION
from keras_par.cluster.hosts import ClusterError
from keras_par.cluster.reach import execute, obstacles
from keras_par.launch import verdict
from keras_par.launch.engines import EngineError, Plan
from keras_par.launch.job import Job
from keras_par.launch.next_world import ChangingWorlds, Watch
from keras_par.launch.supervisor import Supervisor
from keras_par.launch.switchboard import make_room
from keras_par.launch.verdict import Outcome

ECHO_SECONDS = 1.0  # a terminal that closes sends several signals at once, which are not the user's second
NO_WORLD_STATUS = 1  # there are too few hosts


class Attempts:
    """The attempts of a job, one after another.

    Args:
        job: what is run.
    """

    def __init__(self, job: Job):
        self._job, self._folder, self._console, self._account = job, job.folder, job.console, job.account
        self._num_restarts = 0
        self._killed: str | None = None  # the host that a rank was killed on, at the end of the last attempt
        self._warning: str | None = None  # that was told
        self._num_ranks = 0
        self._token = secrets.token_hex(8)  # what the job's checkpoints in memory are found by
        self._keeping: set[str] = set()  # hosts that may have some, and no agent to take them away
        self._cleaners: list[threading.Thread] = []  # of hosts whose agents are gone

    def run(self) -> int:
        """The exit status of the job."""
        began, job = time.monotonic(), self._job
        if self._folder.note is not None:
            self._console.say(self._folder.note)
        about = {"keras_par": VERSION, "python": platform.python_version()}
        self._folder.describe(command=list(job.command), engine=job.engine, hosts={}, started=time.time(), **about)
        with contextlib.closing(self._folder):
            try:
                status = self._all()
            finally:
                kept = host_memory.path_of(self._token, "*")
                execute(dict.fromkeys(self._keeping, f"rm -rf {kept}"), job.ssh)
                for cleaner in self._cleaners:
                    cleaner.join()
            if status == 0:
                self._console.say(verdict.finished(self._num_ranks, time.monotonic() - began, self._folder.path))
            text = f"the job ended with status {status}"
            self._folder.event("end", text, status=status, trained_share=round(self._account.trained_share(), 4))
        if self._folder.complaint:
            self._console.say(self._folder.complaint)
        return status

    def _all(self) -> int:
        """Runs one attempt after another; the status of the last."""
        status, interrupts = NO_WORLD_STATUS, self._job.interrupts
        while True:
            try:
                places = self._job.worlds.next(is_over=lambda: bool(interrupts))
                make_room(len(places))
                plan = self._with_memory(self._job.plan(places))
            except (ClusterError, EngineError) as error:
                if interrupts:
                    return 128 + interrupts[0]
                title = "the job does not go on" if self._account.has_begun else "the job did not start"
                self._console.panel(title, [str(error).removeprefix("keras-par: ")])
                self._folder.event("crash", str(error))
                return status
            outcome = self._one(plan)
            status = outcome.status
            if interrupts or not self._goes_on(outcome):
                return status

    def _with_memory(self, plan: Plan) -> Plan:
        """Lets the ranks keep checkpoints in memory, if the job may go on from them, and never as another job."""
        token = self._token if self._job.max_restarts else ""
        return replace(plan, environment=plan.environment | {host_memory.JOB: token})

    @property
    def _may_restart(self) -> bool:
        """True if another attempt follows a failure."""
        return self._num_restarts < self._job.max_restarts

    def _one(self, plan: Plan) -> Outcome:
        """Runs one attempt."""
        self._num_ranks = len(plan.places)
        self._console.expect(self._num_ranks)
        if plan.warning and plan.warning != self._warning:
            self._console.say(plan.warning)
            self._warning = plan.warning
        worlds, watch = self._job.worlds, None
        self._folder.describe(num_ranks=self._num_ranks)
        self._account.begin()
        began = time.time()
        with contextlib.ExitStack() as at_end:
            if isinstance(worlds, ChangingWorlds):
                watch = at_end.enter_context(contextlib.closing(Watch(worlds, plan.places, self._job.ssh)))
            outcome = Supervisor(plan, self._job, watch, may_go_on=self._may_restart).run()
        hosts = list(dict.fromkeys(place.host for place in plan.places))
        text = f"{self._num_ranks} rank(s) on {len(hosts)} host(s), until: {outcome.why}"
        self._folder.event("world", text, num_ranks=self._num_ranks, hosts=hosts, began=began, why=outcome.why)
        self._clean(outcome)
        if self._job.max_restarts and outcome.status:
            self._keeping.update(hosts)
        elif outcome.status == 0:
            self._keeping.difference_update(hosts)
        return outcome

    def _clean(self, outcome: Outcome) -> None:
        """Ends what no agent is left to end on hosts that can be reached, while the job goes on."""
        commands = {host: end for host, session in outcome.lost.items() if (end := end_of_daemon(session)) is not None}
        if commands:
            self._cleaners.append(threading.Thread(target=execute, args=(commands, self._job.ssh)))
            self._cleaners[-1].start()

    def _goes_on(self, outcome: Outcome) -> bool:
        """True if another attempt follows, which is told; what the next world must know is passed on."""
        if outcome.is_change:
            text = f"all ranks have stopped after the same step, to go on with others: {outcome.why}"
            return self._go_on("change", text)
        if outcome.status == 0 or not self._may_restart:
            return False
        for host in [*obstacles(list(outcome.lost), self._job.ssh), *filter(None, [outcome.refused])]:
            self._job.worlds.lose(host)
        if outcome.killed is not None and outcome.killed == self._killed and not self._account.has_advanced:
            self._job.worlds.blame(outcome.killed)
        self._killed = outcome.killed
        self._num_restarts += 1
        text = f"restart {self._num_restarts} of {self._job.max_restarts}, after status {outcome.status}"
        return self._go_on("restart", text)

    def _go_on(self, kind: str, text: str) -> bool:
        self._folder.attempt += 1
        self._console.say(text)
        self._folder.event(kind, text)
        return True


@contextlib.contextmanager
def noted_signals(until_exit: bool = False) -> Iterator[list[int]]:
    """A list that grows with each signal by which the user or the system wants the job to end.

    Python gives signals to its main thread alone; in another the list stays empty.

    Args:
        until_exit: True if the process only exits afterwards. It ignores the signals from then on: Python would give
            it their status instead of the job's.
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
            signal.signal(each, signal.SIG_IGN if until_exit else handler)
