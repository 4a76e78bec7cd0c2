"""`kp.AutoParallel`: a strategy that is found when the first model of a script is trained."""

import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from keras_par.comm import world
from keras_par.distribution.model_parallel import ModelParallel
from keras_par.distribution.runtime import init
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.models.layout_propagation import divide_by
from keras_par.plan.machine import Machine
from keras_par.plan.options import Search
from keras_par.plan.strategy_file import Strategy
from keras_par.searching.meshes import AXES, DATA
from keras_par.searching.model_trace import look_at_built
from keras_par.searching.search import Asked, Plan, found_for
from keras_par.sharding.variable_views import sharded

logger = logging.getLogger("keras_par")


class AutoParallel(Plan, ModelParallel):
    """Searches when a model is first trained or evaluated how to divide it, divides it, and goes on.

    Example:
        ```python
        strategy = kp.AutoParallel(batch_size=64, machine="cpu-cluster")
        keras.distribution.set_distribution(strategy)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])  # as it is
        model.compile("adam", "mse")
        model.fit(np.ones((100, 8)), np.ones((100, 1)), batch_size=64)  # searched and divided here
        print(strategy.explain())
        "batch 2 x model 1" in strategy.explain()  # -> True
        ```

    The model is built whole on each rank, with the values that one process would give it. Rank 0 searches, and all
    ranks take their parts of the values. A model that does not fit into a rank's memory whole is for `kp.search`.
    Models that are made after that are divided by the same layouts where these fit, others over the same mesh. A model
    that is not compiled, or whose optimizer has state already, stays whole.

    Args:
        batch_size: rows of a global batch.
        search: "dynamic", "recursive", "propagation" or "exact", as `kp.search` has it, with the next five.
        memory: of a rank, as "8GB" or in bytes; an equal part of the host's unless given.
        mesh: the ranks by rows and by the other axes, as `(2, 4)`; any unless given.
        machine: what it is trained on, a file or a name; the one that was measured here unless given.
        input_shape: sizes of the inputs' dims that the model leaves open besides the rows, in their order.
        axes: how many a mesh may have, 2 or 3.
        **options: as `kp.ModelParallel` has them: `auto_shard_dataset`, `reduction`, `fusion_mb`, `compression`,
            `broadcast_variables`, `remainder`, `custom_loss`, `reduce_by`, `propagate`, `sync_batch_norm`, `recompute`,
            `zero`, `zero_min_kb` and `zero_ranks`.

    Raises:
        ValueError: at the first call, as `kp.search` does; and if the model is not built.

    Costs two all-gathers of some kilobytes when it is created, and what `kp.search` costs at the first call of a model.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        search: Search = "dynamic",
        memory: str | float | None = None,
        mesh: Sequence[int] | None = None,
        machine: str | os.PathLike | Machine | None = None,
        input_shape: Sequence[int] = (),
        axes: int = 2,
        **options: Any,
    ):
        init()
        self._asked, self._sizes = Asked(batch_size, search, memory, mesh, machine, axes=axes), tuple(input_shape)
        self._seen: weakref.WeakSet[keras.Model] = weakref.WeakSet()
        self.plan, self.reasons = Strategy("plan"), "Nothing was searched yet: fit a model."
        whole = keras.distribution.LayoutMap(device_mesh((world.current().size, 1)))
        super().__init__(layout_map=whole, batch_dim_name=DATA, **options)

    def keras_par_divide(self, model: keras.Model, binding: Binding) -> None:
        """Searches and divides a model the first time that it is used; from then on the mesh stays as it is."""
        if model in self._seen or sharded(model.variables):
            return
        self._seen.add(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None or optimizer.built:
            if optimizer is not None and world.current().rank == 0:
                logger.warning(
                    "keras-par: '%s' stays whole, because its optimizer has state already: set the strategy before the "
                    "model is trained",
                    model.name,
                )
            self._asked = replace(self._asked, mesh=self._asked.mesh or (world.current().size, 1))
            return
        self.plan, self.reasons = found_for(self._asked, lambda: look_at_built(model, self._sizes))
        sizes = tuple(self.plan.mesh.values()) or (world.current().size, 1)
        self._asked = replace(self._asked, mesh=sizes)
        again = (*self.keras_par_options.recompute, *self.plan.options.get("recompute", ()))
        zero = max(self.keras_par_options.zero, self.plan.options.get("zero", 0))
        self.keras_par_options = binding.options = replace(self.keras_par_options, recompute=again, zero=zero)
        if self.plan.entries:
            self._divide(model, binding, sizes)

    def _divide(self, model: keras.Model, binding: Binding, sizes: tuple[int, ...]) -> None:
        """Divides a model's variables as the plan has it."""
        layouts = keras.distribution.LayoutMap(device_mesh(sizes))
        for entry in self.plan.entries:
            layouts[entry.pattern] = entry.axes
        keras.distribution.ModelParallel.__init__(
            self, layout_map=layouts, batch_dim_name=DATA, auto_shard_dataset=self.auto_shard_dataset
        )
        told = [(variable, layouts[variable.path]) for variable in model.variables]
        divide_by(binding, [(variable, layout.axes) for variable, layout in told if layout is not None])


def device_mesh(sizes: tuple[int, ...]) -> keras.distribution.DeviceMesh:
    """The ranks by rows and by the other axes."""
    return keras.distribution.DeviceMesh(sizes, list(AXES[: len(sizes)]))
