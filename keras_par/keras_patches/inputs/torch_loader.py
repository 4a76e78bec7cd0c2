"""A torch DataLoader as an input, and torch's generators, from which its order and its workers' seeds come."""

import hashlib
import sys
from typing import Any

from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs.input import Input
from keras_par.keras_patches.inputs.own_shares import Sharding, mark


class TorchLoaderInput(Input):
    """A torch DataLoader of global batches."""

    adapter_type = TorchDataLoaderAdapter
    advice = "let its data set, sampler and workers draw from torch's generator, or seed others alike"

    @staticmethod
    def takes(data: Any) -> bool:
        """Found out without importing torch."""
        kinds = [kind for kind in type(data).__mro__ if kind.__name__ == "DataLoader"]
        return any(kind.__module__.startswith("torch.utils.data") for kind in kinds)

    @staticmethod
    def shard(data: Any, sharding: Sharding) -> Any:
        """Batches of a map-style loader, dealt out whole. Its sampler must be seeded alike on all ranks.

        Raises:
            ValueError: the loader does not batch rows by their numbers.
        """
        if data.batch_sampler is None or not hasattr(data.dataset, "__len__"):
            raise ValueError(
                "keras-par: data.shard needs a DataLoader that makes batches of rows by their numbers (a map-style "
                "data set and a batch_size): shard an iterable-style data set within itself, by kp.rank() and "
                "kp.size(), under DataParallel(auto_shard_dataset=False)."
            )
        sharding.say_remainder(len(data.batch_sampler))
        kept = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
        options = {name: getattr(data, name) for name in (*kept, "persistent_workers")}
        return mark(type(data)(data.dataset, batch_sampler=DealtBatches(data.batch_sampler, sharding), **options))

    @property
    def _is_common(self) -> bool:
        """True if all ranks draw the same order, of which a rank may take its batches only."""
        return not self.is_sharded or self.is_dealt

    @property
    def generators(self) -> str | None:  # type: ignore[override]
        if not self._is_common:
            return None
        states = [each.get_state().numpy().tobytes() for each in generators_of(self.adapter._dataloader)]
        return hashlib.sha256(b"".join(states)).hexdigest()[:32]

    def begin_as_rank_0(self, communicator: Communicator) -> None:
        """Costs one all-gather of the states of rank 0's generators, some 5 kB each."""
        import torch

        if not self._is_common:
            return
        generators = generators_of(self.adapter._dataloader)
        own = [each.get_state().tolist() for each in generators] if communicator.rank == 0 else None
        states = communicator.all_gather_object(own, "kp.torch")[0]
        for each, state in zip(generators, states, strict=True):
            each.set_state(torch.tensor(state, dtype=torch.uint8))

    @property
    def num_to_replay(self) -> int | None:  # type: ignore[override]
        """A loader draws what its iteration needs when it begins, but for samplers and generators of the user's own."""
        loader = self.adapter._dataloader
        own = ("BatchSampler", "RandomSampler", "SequentialSampler")
        is_torchs = all(
            type(sampler).__name__ in own and getattr(sampler, "generator", None) is None
            for sampler in (loader.sampler, loader.batch_sampler)
        )
        return 1 if is_torchs and loader.generator is None else None


class DealtBatches:
    """Some of the batches of row numbers that a torch batch sampler draws."""

    def __init__(self, batches: Any, sharding: Sharding):
        self._batches, self._sharding = batches, sharding

    def __len__(self) -> int:
        return self._sharding.size(len(self._batches))

    def __iter__(self):
        drawn = list(self._batches)  # row numbers only; "wrap" needs the first ones again
        for number in self._sharding.numbers(len(drawn)):
            yield drawn[number]


def generators_of(loader: Any) -> list[Any]:
    """torch's global generator, and those that a DataLoader and its samplers were given."""
    import torch

    batches = getattr(loader.batch_sampler, "_batches", loader.batch_sampler)  # those that kp.data.shard deals out
    samplers = [loader, loader.sampler, batches, getattr(batches, "sampler", None)]
    given = [getattr(each, "generator", None) for each in samplers]
    return [torch.default_generator, *{id(each): each for each in given if each is not None}.values()]


def global_state() -> list[int] | None:
    """The state of torch's global generator, as JSON can carry it; None if the script has not imported torch."""
    state = getattr(sys.modules.get("torch"), "get_rng_state", None)
    return None if state is None else state().tolist()


def set_global_state(state: list[int]) -> None:
    import torch

    torch.set_rng_state(torch.tensor(state, dtype=torch.uint8))
