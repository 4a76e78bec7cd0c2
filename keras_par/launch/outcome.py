"""How an attempt ended: what the user is told of it, and what the next one must know."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from keras_par.agent.states import Exit
from keras_par.cluster.hosts import Place
from keras_par.launch import verdict
from keras_par.launch.console import Console
from keras_par.launch.culprit import first_failure
from keras_par.launch.engines import Plan
from keras_par.launch.members import Members
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.started import Started


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Args:
        status: its exit status.
        why: in words.
        lost: hosts with agents that are gone, each with the folder of the engine there, if that is known.
        refused: a host that cannot take part, None if all can.
        killed: the host whose rank was ended by a signal first, None if that was not what happened.
        is_change: True if it was ended for another world.
    """

    status: int
    why: str
    lost: Mapping[str, str | None] = field(default_factory=dict)
    refused: str | None = None
    killed: str | None = None
    is_change: bool = False


class Teller:
    """Tells of failures on the terminal and in the run's folder.

    Args:
        plan: how the attempt was started.
        members: its ranks.
        folder: of the run.
        console: where it is shown.
    """

    def __init__(self, plan: Plan, members: Members, folder: RunFolder, console: Console):
        self._plan, self._members, self._folder, self._console = plan, members, folder, console

    def name_failure(self) -> None:
        """Says who has failed first, while others are still there."""
        first, left = first_failure(list(self._members.ended.values())), len(self._members.running)
        if first is not None and left:
            rest = f"{left} other rank{' has' if left == 1 else 's have'} not ended yet"
            self._console.say(f"rank {first.rank} {first.how()}; {rest}, and will be ended")

    def failure(self, first: Exit) -> Outcome:
        """A rank has failed."""
        text = verdict.lines(first, self._members.ended)
        stacks = {first.rank: first.stack} if first.stack else {}
        self._folder.event("crash", " ".join(text), first.rank, stacks=stacks)
        self._console.panel(verdict.title(first, self._members.ended), text, stacks)
        why = f"rank {first.rank} on host {first.host} {first.how()}"
        is_killed = first.status < 0 and not first.was_told
        killed = self._place(first.rank).host if is_killed else None
        return Outcome(first.shell_status, why, self._lost(), killed=killed)

    def engine_failure(self, engine: Started, is_early: bool, output: str, lost: tuple[str, ...]) -> Outcome:
        """What starts the ranks has ended by itself, `is_early` before all had started, or hosts were `lost` then."""
        status, program = engine.poll() or 1, engine.name
        num_ended, num_ranks = len(self._members.ended), len(self._plan.places)
        text = verdict.engine_ended(num_ended, num_ranks, program, status, output)
        self._folder.event("crash", " ".join(text))
        self._console.panel("the job did not start" if is_early else f"{program} has ended", text)
        return Outcome(status if status > 0 else 128 - status, text[0], dict.fromkeys(lost) | self._lost())

    def refusal(self, rank: int, sentence: str, status: int) -> Outcome:
        """A host's ranks and this one's are no job."""
        self._folder.event("crash", sentence)
        self._console.panel("the job did not start", [sentence])
        return Outcome(status, sentence, refused=self._place(rank).host)

    def _lost(self) -> dict[str, str | None]:
        vanished = [rank for rank, end in self._members.ended.items() if end.has_vanished]
        return {self._place(rank).host: self._members.of_rank[rank].session for rank in vanished}

    def _place(self, rank: int) -> Place:
        return self._plan.places[rank]
