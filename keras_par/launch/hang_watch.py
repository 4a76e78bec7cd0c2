"""Notices that ranks make no progress, asks for their stacks, and says whose fault it is."""

import time

from keras_par.launch.connections import Connections
from keras_par.launch.console import Console
from keras_par.launch.culprit import Hang, find_hang
from keras_par.launch.members import Members
from keras_par.launch.run_folder import RunFolder

STACK_SECONDS = 3.0  # ranks have to answer


class HangWatch:
    """Looks at the ranks of a job again and again.

    Args:
        members: the ranks.
        hang_after: seconds without progress that are a hang.
        folder: of the run.
        console: where a hang is shown.
    """

    def __init__(self, members: Members, hang_after: float, folder: RunFolder, console: Console):
        self._members, self._hang_after = members, hang_after
        self._folder, self._console = folder, console
        self._connections = Connections(members)
        self._aborts = False
        self._is_asking = False
        self._hang: Hang | None = None  # whose stacks are awaited
        self._told: Hang | None = None  # and not over yet
        self._stacks: dict[int, str] = {}
        self._asked: tuple[int, ...] = ()  # ranks whose stacks are awaited
        self._deadline = 0.0

    def note_stacks(self, rank: int, text: str) -> None:
        """Takes in a rank's stacks."""
        self._stacks[rank] = text

    def note_unanswered(self, rank: int, hosts: list[str]) -> None:
        """Takes in which hosts do not answer that of a rank."""
        self._connections.note(self._members.of_rank[rank].host, hosts)

    def look(self, aborts: bool) -> bool:
        """True once a hang has been told.

        Args:
            aborts: True if it ends the job, which is only said here; the first time, what was told is told again.
        """
        if aborts and not self._aborts:
            self._told = None
        self._aborts = aborts
        if self._is_asking:
            have_told = all(rank in self._stacks for rank in self._asked) and self._connections.are_known
            if time.monotonic() < self._deadline and not have_told:
                return False
            return self._tell_if_it_lasts()
        hang = self._find()
        if hang is None and self._told is not None:
            self._recover(self._told)
        elif hang is not None and (self._told is None or self._told.culprits != hang.culprits):
            self._ask(hang)
        return False

    def _find(self) -> Hang | None:
        states = [member.state for _, member in sorted(self._members.running.items())]
        return find_hang(states, self._members.ended, self._hang_after)

    def _tell_if_it_lasts(self) -> bool:
        self._is_asking = False
        if self._find() is None:
            return False
        self._tell()
        self._told = self._hang
        return True

    def _ask(self, hang: Hang) -> None:
        self._hang, self._stacks = hang, {}
        wanted = hang.culprits if hang.witness is None else (*hang.culprits, hang.witness)
        running = self._members.running
        self._asked = tuple(rank for rank in wanted if rank in running and not running[rank].state.is_stopped)
        self._deadline = time.monotonic() + STACK_SECONDS
        self._is_asking = True
        self._members.order("stacks", ranks=self._asked)
        self._connections.ask()

    def _tell(self) -> None:
        assert self._hang is not None
        shown = self._hang.culprits if self._hang.witness is None else (*self._hang.culprits, self._hang.witness)
        stacks = {rank: self._stacks.get(rank) or "  it gives none" for rank in shown}
        text = self._hang.text + self._connections.places(self._hang.culprits) + self._connections.broken()
        self._folder.event("hang", text, self._hang.culprits[0], stacks=stacks)
        then = "The job is ended." if self._aborts else "The job goes on; '--on-hang abort' would end it."
        title = f"hang: {culprits(self._hang)}"
        self._console.panel(title, [capitalized(text), then], stacks)

    def _recover(self, told: Hang) -> None:
        text = f"the job makes progress again, after {culprits(told)} held it up"
        self._console.say(text)
        self._folder.event("recovered", text, told.culprits[0])
        self._told = None


def culprits(hang: Hang) -> str:
    return f"rank{'s' if len(hang.culprits) > 1 else ''} {', '.join(map(str, hang.culprits))}"


def capitalized(text: str) -> str:
    """A sentence."""
    return f"{text[:1].upper()}{text[1:]}."
