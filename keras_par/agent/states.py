"""What an agent tells the launcher about its rank: where it is, when that is due, and how it ended."""

import signal
from dataclasses import dataclass, replace

WAITING_TO_START = "starting"
REPLACED = "has become another program (exec)"
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


@dataclass(frozen=True)
class State:
    """What a rank is judged by, as it was seen last; seconds are counted back from then."""

    rank: int
    has_joined: bool = False  # kp.init() has begun
    phase: str = WAITING_TO_START
    phase_seconds: float = 0.0
    call: str | None = None
    collectives: tuple[str, ...] = ()  # those it waits in
    epoch: int = 0
    step: int = 0
    steps: int = 0
    quiet: float = 0.0  # seconds without progress
    is_stopped: bool = False  # by a signal
    python_seconds: float = 0.0  # since its Python threads last ran
    has_closed: bool = False  # what it inherited, and so its connections maybe
    is_writing: bool = False  # more output than is taken
    has_failed: bool = False  # it has told an error, and has begun no step since
    has_ended: bool = False  # its script; its process may stay
    is_replaced: bool = False  # its process has become another program
    threads: str = ""  # that Python waits for, since the script has ended

    @property
    def is_over(self) -> bool:
        """True if its script comes to no collective any more."""
        return self.has_ended or self.is_replaced

    def why_over(self) -> str:
        """What keeps its process, in words."""
        if self.is_replaced:
            return REPLACED
        return f"has come to the end of its script {self.quiet:.0f} s ago, and {self.kept_by()}"

    def kept_by(self) -> str:
        """What its process waits for since its script has ended, in words."""
        return f"its process waits for {self.threads}" if self.threads else "a function of atexit does not return"

    def place(self) -> str:
        """Where in training the rank is, in words."""
        if self.call is None:
            return "outside of fit" if self.has_joined else "before kp.init()"
        where = f"at step {self.step}" if self.step else "before the first step"
        return f"{where} of epoch {self.epoch + 1}" if self.call == "fit" else f"{where} of {self.call}"


@dataclass(frozen=True)
class Exit:
    """How a rank's process ended."""

    rank: int
    host: str
    status: int  # its exit status, or minus the signal that ended it
    time: float  # seconds since 1970, on its host
    has_vanished: bool = False  # with its agent, which could not say how
    out_of_memory: bool = False  # the kernel has ended a process of this host for want of memory
    was_told: bool = False  # the launcher ended it
    failed: float | None = None  # when its error arose, seconds since 1970
    is_consequence: bool = False  # of another rank's failure
    on_all_ranks: bool = False  # every rank raised the same error
    error: str | None = None  # the exception, as one line
    user_line: str | None = None  # the last line of user code in its traceback
    last_words: str | None = None  # the last line it printed
    stack: str | None = None  # where a fault such as SIGSEGV was, or what kept it when it was ended
    kept_by: str | None = None  # what it waited for when its script had ended and it was ended by the launcher
    is_replaced: bool = False  # its process had become another program when it was ended by the launcher
    place: str = ""  # where in training it was
    rss: int = 0  # bytes of memory at its last sample
    steps: int = 0  # of training, that it had begun
    log: str | None = None  # the path of its stderr

    def by_clock_ahead(self, seconds: float) -> "Exit":
        """The same by a clock that is behind its host's by so much."""
        failed = None if self.failed is None else self.failed - seconds
        return replace(self, time=self.time - seconds, failed=failed)

    @property
    def is_failure(self) -> bool:
        return self.status != 0

    @property
    def was_late(self) -> bool:
        """True if it had failed by itself, and was ended because it did not end by itself."""
        has_failed = self.failed is not None and not self.is_consequence
        return self.was_told and (has_failed or self.is_replaced)

    @property
    def was_by_itself(self) -> bool:
        """True if nobody else ended it, and it was seen how."""
        return not self.has_vanished and (self.was_late or not self.was_told)

    @property
    def shell_status(self) -> int:
        """The exit status a shell would show; 1, as an error has it, if the launcher's signal came between."""
        if self.was_late:
            return 1
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def is_fault(self) -> bool:
        """True if compiled code went wrong."""
        return -self.status in FAULTS

    @property
    def is_interrupt(self) -> bool:
        """True if KeyboardInterrupt ended it, as it does where the user ends the job."""
        return self.status in (-signal.SIGINT, 128 + signal.SIGINT)

    def how(self) -> str:
        """How it ended, in words."""
        if self.has_vanished:
            return "vanished together with the agent that watched it, as when a host dies"
        if self.was_late and self.is_replaced:
            return f"{REPLACED}, and was ended by the launcher"
        if self.was_late:
            why = f": {self.kept_by}" if self.kept_by else ""
            return f"failed, and was ended by the launcher because it did not end by itself{why}"
        if self.status >= 0:
            return f"exited with status {self.status}"
        if self.out_of_memory:
            return "was ended by the kernel because memory ran out (SIGKILL)"
        return f"was ended by signal {-self.status} ({signal_name(-self.status)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Beats:
    """When a state is due: each so many seconds, and at once when a rank joins the job, is stopped, or goes on.

    Args:
        seconds: from one to the next.
    """

    def __init__(self, seconds: float):
        self._seconds, self._last = seconds, 0.0
        self._told: tuple[bool, bool] | None = None

    def hasten(self, seconds: float) -> None:
        """Makes the next ones come so often, if they came more rarely."""
        self._seconds = min(self._seconds, seconds)

    def is_due(self, state: State, now: float) -> bool:
        """True if the launcher is to be told this state now, which is then taken for told.

        Args:
            state: of the rank.
            now: by `time.monotonic()`.
        """
        kind = (state.has_joined, state.is_stopped)
        if kind == self._told and now - self._last < 0.95 * self._seconds:
            return False
        self._told, self._last = kind, now
        return True


def brief(state: State) -> dict:
    """A state as JSON can carry it, without defaults."""
    content = {name: value for name, value in vars(state).items() if name != "rank" and value != DEFAULTS[name]}
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in content.items()}


def state_of(rank: int, message: dict) -> State:
    """The state that `brief` made a message of."""
    return State(rank, **message | {"collectives": tuple(message.get("collectives", ()))})


DEFAULTS = vars(State(-1))
