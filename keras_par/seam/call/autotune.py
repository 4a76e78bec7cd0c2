"""Tries bucket sizes in the first steps of training, and goes on with the fastest."""

import contextlib
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
from keras.src.utils import io_utils

from keras_par.catalogue.strategy_file import Strategy, strategy_text
from keras_par.comm.counting import Call
from keras_par.plan.buckets import distinct_limits
from keras_par.plan.tuning import fastest, num_steps, times
from keras_par.seam.models.binding import Binding

MEGABYTE = 2**20
FUSION_MB = (16.0, 4.0, 1.0)  # tried besides the strategy's own
METHOD = "train_step"

clock = time.perf_counter


class Autotuner:
    """A training function whose steps use bucket sizes in turns until the fastest is known, and then that.

    All of these steps train. Each bucket size costs a trace. Rank 0's times decide.

    Args:
        model: whose function it is.
        binding: the model's, whose options become what was found.
        build: makes a training function, which takes the binding's options as they are at its first call.
    """

    def __init__(self, model: keras.Model, binding: Binding, build: Callable[[], Any]):
        self.model, self.binding, self.build = model, binding, build
        self._functions: dict[float, Any] = {}  # by the size of buckets
        self._collectives: dict[float, list[Call]] = {}  # in their graphs
        self._steps: Generator[None, float, None] | None = None

    def __call__(self, iterator):
        if self._steps is None:
            self._steps = self._tune()
            next(self._steps, None)
        fusion_mb = self.binding.options.fusion_mb
        begin = clock()
        logs = self._functions[fusion_mb](iterator)
        if METHOD in self.binding.collectives:  # not where functions run eagerly
            self._collectives.setdefault(fusion_mb, self.binding.collectives[METHOD])
        with contextlib.suppress(StopIteration):  # there is nothing to choose any more
            self._steps.send(clock() - begin)
        return logs

    def _tune(self) -> Generator[None, float, None]:
        """Chooses the size of buckets; the caller takes a step at each `yield`."""
        sizes = self._sizes()
        if len(sizes) > 1:
            self._announce("fusion_mb", sizes)
        else:
            self._say(f"autotune finds all gradients of '{self.model.name}' to fit one bucket of any size it would try")
        fusion_mb = self._chosen("fusion_mb", sizes, (yield from times(sizes, self._use_size)))
        self._use_size(fusion_mb)
        self._functions = {fusion_mb: self._functions[fusion_mb]}  # lets go of the others' graphs
        self._keep()

    def _sizes(self) -> list[float]:
        """The sizes of buckets that group the model's gradients in different ways, first the one in force."""
        values = [variable.value for variable in self.model.trainable_variables]
        num_bytes = [value.dtype.size * value.shape.num_elements() for value in values]
        own = self.binding.options.fusion_mb
        limits = {int(size * MEGABYTE): size for size in (own, *(size for size in FUSION_MB if size < own))}
        return [limits[limit] for limit in distinct_limits(num_bytes, [value.dtype for value in values], list(limits))]

    def _use_size(self, fusion_mb: float) -> None:
        self.binding.options = replace(self.binding.options, fusion_mb=fusion_mb)
        if fusion_mb not in self._functions:
            self._functions[fusion_mb] = self.build()
            self.binding.collectives.pop(METHOD, None)
        elif fusion_mb in self._collectives:
            self.binding.collectives[METHOD] = self._collectives[fusion_mb]

    def _chosen(self, option: str, settings: Sequence[float], own: dict[float, float]) -> float:
        """The fastest of the settings by rank 0's times, which it says. Costs two all-gathers of a few bytes."""
        if not own:
            return settings[0]
        shared = self.binding.communicator.all_gather_object(list(own.values()), "kp.autotune")[0]
        medians = dict(zip(settings, shared, strict=True))
        best = fastest(medians)
        a_step = 1000 / self.model.steps_per_execution
        measured = ", ".join(f"{a_step * seconds:.2f} with {setting:g}" for setting, seconds in medians.items())
        self._say(f"autotune chooses {option}={best:g}: a step takes {measured} ms")
        return best

    def _keep(self) -> None:
        """Puts what was found into the strategy, for models to come, and on rank 0 into its file."""
        options = self.binding.options
        assert options.autotune is not None
        path = Path(options.autotune)
        self.binding.options = options = replace(options, autotune=None)
        self.binding.strategy.keras_par_options = options
        communicator = self.binding.communicator
        if communicator.rank > 0:
            return
        what = f"Tuned for {communicator.size} ranks over {communicator.engine} and the model '{self.model.name}'."
        told = {**asdict(options), "auto_shard_dataset": self.binding.strategy.auto_shard_dataset}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(strategy_text(Strategy(path.stem, what, options=told)), encoding="utf-8")
        except OSError as error:
            warnings.warn(f"keras-par: what autotune found is in force but not in '{path}': {error}.", stacklevel=2)
        else:
            self._say(f"autotune has written '{path}', which autotune='{path}' and kp.load_strategy('{path}') take")

    def _announce(self, option: str, settings: Sequence[float]) -> None:
        steps = num_steps(len(settings)) * self.model.steps_per_execution
        self._say(f"autotune tries {option} {listed(settings)} in the next {steps} steps of '{self.model.name}'")

    def _say(self, what: str) -> None:
        if self.binding.communicator.rank == 0:
            io_utils.print_msg(f"keras-par: {what}.")


def listed(settings: Sequence[float]) -> str:
    return ", ".join(f"{setting:g}" for setting in settings)
