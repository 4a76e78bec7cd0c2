"""Traces a training step as one rank of a job would, with collectives that only have the right shapes."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from keras_par.comm import world
from keras_par.comm.counted import Call
from keras_par.comm.planned import PlannedCommunicator
from keras_par.distribution.describe import OPEN_SIZES, Description, describe
from keras_par.distribution.load_strategy import load_strategy
from keras_par.keras_patches.models.binding import bind, bound
from keras_par.keras_patches.trainer.abstract_step import trace_training_step
from keras_par.planning.model_file import build_from
from keras_par.planning.outlook import Outlook, look, outlook
from keras_par.searching.model_trace import prepare


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one rank of a job would hold and send."""

    strategy: str
    num_ranks: int
    rank: int
    batch_size: int  # of the global batch
    description: Description
    outlook: Outlook

    @property
    def collectives(self) -> list[Call]:
        """Of one training step, in the order of tracing."""
        return self.description.collectives["train_step"]

    @property
    def hints(self) -> list[str]:
        """How to fill in what is not known."""
        return [*self.outlook.hints, *([OPEN_SIZES] if self.description.has_open_sizes else [])]

    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON can carry it; `strategy` is what was asked for."""
        head = {name: getattr(self, name) for name in ("strategy", "num_ranks", "rank", "batch_size")}
        return {**self.description.as_json(), **head, **self.outlook.as_json(), "hints": self.hints}

    def __str__(self) -> str:
        head = f"Rank {self.rank} of {self.num_ranks}, strategy {self.strategy}, {self.batch_size} rows a batch"
        return f"{head}\n{self.outlook}\n{self.description}"


def plan(
    strategy: str,
    place: str,
    num_ranks: int,
    rank: int = 0,
    mesh: tuple[int, ...] | None = None,
    batch_size: int = 32,
    sizes: Sequence[int] = (),
    machine: str | None = None,
) -> Plan:
    """What rank `rank` of `num_ranks` would hold and send with a strategy and the model built at FILE:FUNCTION.

    A model that is not compiled is trained by SGD on the mean of its outputs. `sizes` are of the dims of its inputs
    that it leaves open, in their order. `machine` is what time is predicted for, the one measured here unless given.

    Raises:
        ValueError: strategy, mesh, model and numbers do not fit together.
    """
    if num_ranks < 1 or not 0 <= rank < num_ranks:
        raise ValueError(f"keras-par: rank {rank} of {num_ranks} ranks does not exist: count from 0.")
    with job_of(num_ranks, rank):
        loaded = load_strategy(strategy, mesh=mesh)
        seen = look(place, sizes, machine)
        with loaded.scope():
            model = build_from(place)
            prepare(model)
            if bound(model) is None:
                bind(model)
            trace_training_step(model, batch_size, sizes)
        found = describe(model)
        options = loaded.keras_par_options
        expected = outlook(seen, found, loaded.batch_dim_name, num_ranks, batch_size, options)
        return Plan(strategy, num_ranks, rank, batch_size, found, expected)


@contextlib.contextmanager
def job_of(num_ranks: int, rank: int) -> Iterator[None]:
    """Within it this process is a rank of a job that does not exist."""
    world.begin(PlannedCommunicator(range(num_ranks), rank))
    try:
        yield
    finally:
        world.stop()
