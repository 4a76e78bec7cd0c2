"""The model-parallel strategy: ranks divide a model's variables as a layout map says, and the rows of each batch."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_par.distribution.runtime import init_for
from keras_par.distribution.seeds import share_random_state
from keras_par.keras_patches.variables.layouts import mesh_of
from keras_par.plan.options import Compression, CustomLoss, Options, ReduceBy, Reduction, Remainder, Zero


class ModelParallel(keras.distribution.ModelParallel):
    """Trains a model too large for one rank, with the result that one process would have on the same global batches.

    Example:
        ```python
        kp.init()  # before the mesh, which is of all ranks
        mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"))
        layout_map = keras.distribution.LayoutMap(mesh)
        layout_map[".*up/kernel"] = (None, "model")  # by columns
        strategy = kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
        with strategy.scope():
            up = keras.layers.Dense(64, "relu", name="up")
            model = keras.Sequential([keras.Input((8,)), up, keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((100, 8)), np.ones((100, 1)), batch_size=64)
        kp.describe(model).variables[0].local_shape  # -> (8, 32)
        ```

    Ranks fill the mesh row by row. A variable that a pattern of the layout map matches as a whole is divided as it
    says, and so is the optimizer's state for it. Operations compute on shards where they can (see
    docs/model-parallel.md), else variables and tensors are made whole first: the result is the same, what it costs is
    not. Creating it calls `kp.init()`.

    Args:
        layout_map: as Keras has it; its mesh holds all ranks, each once.
        batch_dim_name: the axis along which ranks have other rows; the first one unless given.
        auto_shard_dataset: False if what `fit` is given is this rank's rows already, the same along the other axes.
        reduction: "mean" trains on the mean over the global batch; "sum" on that times the number of ranks.
        fusion_mb: size in megabytes up to which gradients share one all-reduce.
        compression: None, "fp16" or "bf16": how gradients are sent to ranks with other rows.
        broadcast_variables: True gives all ranks rank 0's initial weights, optimizer and metric state.
        remainder: what `fit` does with rows that the batch axis does not divide, see `kp.DataParallel`.
        custom_loss: "auto", "mean" or "sum": what the losses of a `train_step` of your own are, see `kp.DataParallel`.
        reduce_by: the way of sums over all ranks, see `kp.DataParallel`.
        sync_batch_norm: False lets `BatchNormalization` normalize by a rank's own rows, see `kp.DataParallel`.
        recompute: patterns of layers to be computed again in the backward pass, see `kp.DataParallel`.
        zero: 1, 2 or 3 divides more among the ranks with other rows, beside what the layout divides, see
            `kp.DataParallel`.
        zero_min_kb: size in kilobytes of a rank's shard below which that is not divided further.
        zero_ranks: how many neighbours along the batch axis divide one replica, see `kp.DataParallel`.
        propagate: True divides what follows, too: variables of which operations would take a part only, such as the
            bias of a kernel by columns and the kernel behind it, and results of products by rows. Variables that a
            pattern is for stay as it says. This takes one trace and one broadcast of them before the first step.

    Raises:
        ValueError: an option has no such value, or the mesh does not hold each rank once. Later, when a variable is
            made whose layout does not fit its shape, and before the first step, if a pattern matches nothing.

    Costs two all-gathers of some kilobytes when it is created. See docs/model-parallel.md for what a layout costs in
    each step, and docs/exactness.md for the rest; `kp.describe(model).collectives` lists all of it.
    """

    def __init__(
        self,
        *,
        layout_map: Any = None,
        batch_dim_name: str | None = None,
        auto_shard_dataset: bool = True,
        reduction: Reduction = Options.reduction,
        fusion_mb: float = Options.fusion_mb,
        compression: Compression = Options.compression,
        broadcast_variables: bool = Options.broadcast_variables,
        remainder: Remainder = Options.remainder,
        custom_loss: CustomLoss = Options.custom_loss,
        reduce_by: ReduceBy = Options.reduce_by,
        propagate: bool = Options.propagate,
        sync_batch_norm: bool = Options.sync_batch_norm,
        recompute: Sequence[str] = Options.recompute,
        zero: Zero = Options.zero,
        zero_min_kb: float = Options.zero_min_kb,
        zero_ranks: int | str | None = Options.zero_ranks,
    ):
        self.keras_par_options = Options(
            reduction=reduction,
            fusion_mb=fusion_mb,
            compression=compression,
            broadcast_variables=broadcast_variables,
            remainder=remainder,
            custom_loss=custom_loss,
            reduce_by=reduce_by,
            propagate=propagate,
            sync_batch_norm=sync_batch_norm,
            recompute=recompute,
            zero=zero,
            zero_min_kb=zero_min_kb,
            zero_ranks=zero_ranks,
        )
        init_for(self.keras_par_options)
        super().__init__(layout_map=layout_map, batch_dim_name=batch_dim_name, auto_shard_dataset=auto_shard_dataset)
        mesh_of(self)
        share_random_state("kp.ModelParallel()")
