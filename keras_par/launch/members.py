"""The ranks of a running job as the launcher knows them, and orders to them."""

import time
from dataclasses import dataclass, field
from typing import Any

from keras_par.agent.states import Exit, State
from keras_par.agent.wire import Channel


@dataclass
class Member:
    """What the launcher knows of one rank."""

    channel: Channel
    host: str
    state: State
    end: Exit | None = None
    heard: float = field(default_factory=time.monotonic)  # when its agent last said something
    ahead: float = 0.0  # seconds by which its host's clock is ahead of this one's


@dataclass
class Members:
    """The ranks whose agents have connected, by their numbers."""

    of_rank: dict[int, Member] = field(default_factory=dict)

    @property
    def running(self) -> dict[int, Member]:
        """Those that have not ended."""
        return {rank: member for rank, member in self.of_rank.items() if member.end is None}

    @property
    def ended(self) -> dict[int, Exit]:
        """How the others ended."""
        return {rank: member.end for rank, member in sorted(self.of_rank.items()) if member.end is not None}

    def order(self, what: str, content: Any = True, ranks: tuple[int, ...] | None = None) -> None:
        """Sends an order to the running ranks, or to some of them."""
        for rank, member in self.running.items():
            if ranks is None or rank in ranks:
                member.channel.send({what: content})

    def part(self) -> None:
        """Ends the connections to all agents; one that is out of reach hears of it when it is back."""
        for member in self.of_rank.values():
            member.channel.hang_up()
