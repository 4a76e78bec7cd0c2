"""Notices that agents do not speak any more, and asks ssh if their hosts are gone where a job can do without them."""

import math
import time
from collections.abc import Collection, Iterator

from keras_par.agent.wire import SILENCE_SECONDS, Channel
from keras_par.launch.engines import Plan
from keras_par.launch.host_watch import Watch
from keras_par.launch.members import Member, Members

DEAD_SECONDS = 6.0  # of silence, when ranks are being ended, whose agents speak each second: the host is gone
DOUBT_SECONDS = 7.0  # from a beat that has not come, until ssh is asked
START_SECONDS = 15.0  # for agents to start, until ssh is asked if their hosts are there


class Silence:
    """The agents that are heard of no more.

    Args:
        plan: of the attempt.
        members: those that have started.
        watch: of the hosts, None where the job keeps its ranks.
    """

    def __init__(self, plan: Plan, members: Members, watch: Watch | None):
        self._plan, self._members, self._watch = plan, members, watch
        self._began = self._looked = time.monotonic()

    def look(self, ordered: float | None, held: Collection[Channel]) -> Iterator[tuple[int, Member]]:
        """The members whose agents must be gone.

        Args:
            ordered: when all were told to end, None if they were not.
            held: to whom nobody listens, until all are told to end; they may be unable to hear of it.
        """
        before, self._looked = self._looked, time.monotonic()
        was_asleep = self._looked - before > DEAD_SECONDS / 2  # by Ctrl-Z: who spoke meanwhile is not known
        latest = self._looked - SILENCE_SECONDS  # that those who are gone have spoken
        if ordered is not None:
            latest = self._looked - DEAD_SECONDS if self._looked - ordered > DEAD_SECONDS else -math.inf
        for rank, member in list(self._members.running.items()):
            if was_asleep or (ordered is None and member.channel in held):
                member.heard = self._looked
            elif member.heard < latest or (self._watch is not None and self._is_host_lost(rank, member, self._watch)):
                yield rank, member

    def lost_at_start(self) -> tuple[str, ...]:
        """Hosts that have gone before their agents have started, where a job can do without them."""
        if self._watch is None or time.monotonic() - self._began < START_SECONDS:
            return ()
        missing = {place.host for place in self._plan.places if place.rank not in self._members.of_rank}
        return tuple(host for host in missing if self._watch.is_lost(host))

    def _is_host_lost(self, rank: int, member: Member, watch: Watch) -> bool:
        is_silent = self._looked - member.heard > member.beat + DOUBT_SECONDS
        return is_silent and watch.is_lost(self._plan.places[rank].host)
