"""Lets torch's generators, from which a DataLoader's order and its workers' seeds come, stand alike on all ranks."""

import hashlib
import sys
from typing import Any

from keras_par.comm.communicator import Communicator


def global_state() -> list[int] | None:
    """The state of torch's global generator, as JSON can carry it; None if the script has not imported torch."""
    torch = sys.modules.get("torch")
    state = getattr(torch, "get_rng_state", None)
    return None if state is None else state().tolist()


def set_global_state(state: list[int]) -> None:
    import torch

    torch.set_rng_state(torch.tensor(state, dtype=torch.uint8))


def generators_of(loader: Any) -> list[Any]:
    """torch's global generator, and those that a DataLoader and its samplers were given."""
    import torch

    batches = getattr(loader.batch_sampler, "_batches", loader.batch_sampler)  # those that kp.data.shard deals out
    samplers = [loader, loader.sampler, batches, getattr(batches, "sampler", None)]
    given = [getattr(each, "generator", None) for each in samplers]
    return [torch.default_generator, *{id(each): each for each in given if each is not None}.values()]


def digest_of(loader: Any) -> str:
    """What tells the states of a loader's generators from others."""
    states = [each.get_state().numpy().tobytes() for each in generators_of(loader)]
    return hashlib.sha256(b"".join(states)).hexdigest()[:32]


def begin_as_rank_0(communicator: Communicator, loader: Any) -> None:
    """Gives a loader's generators the states of rank 0's. Costs one all-gather of rank 0's, some 5 kB each."""
    import torch

    generators = generators_of(loader)
    own = [each.get_state().tolist() for each in generators] if communicator.rank == 0 else None
    states = communicator.all_gather_object(own, "kp.torch")[0]
    for each, state in zip(generators, states, strict=True):
        each.set_state(torch.tensor(state, dtype=torch.uint8))
