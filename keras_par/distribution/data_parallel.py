"""The data-parallel strategy: every rank holds the whole model and works on its rows of each global batch."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_par.distribution.runtime import init_for
from keras_par.distribution.seeds import share_random_state
from keras_par.keras_patches.variables.layouts import mesh_of_rows
from keras_par.plan.options import Compression, CustomLoss, Options, ReduceBy, Reduction, Remainder, Zero


class DataParallel(keras.distribution.DataParallel):
    """Trains one model on all ranks, with the result that one process would have on the same global batches.

    Example:
        ```python
        strategy = kp.DataParallel()
        with strategy.scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((100, 8)), np.ones((100, 1)), batch_size=64)  # 64 rows over all ranks, then 36
        int(model.optimizer.iterations)  # -> 2
        ```

    Creating it calls `kp.init()`.

    Args:
        device_mesh: as Keras has it; a 1D mesh over all ranks.
        devices: as Keras has it; all ranks.
        auto_shard_dataset: False if what `fit` is given is this rank's rows already.
        reduction: "mean" trains on the mean over the global batch; "sum" on that times the number of ranks.
        fusion_mb: size in megabytes up to which gradients share one all-reduce.
        compression: None, "fp16" or "bf16": how float32 gradients are sent; see `kp.GradientReducer`.
        broadcast_variables: True gives all ranks rank 0's initial weights, optimizer and metric state.
        remainder: what `fit` does with a global batch whose rows the number of ranks does not divide. "exact": ranks
            have unequal numbers of rows, each counted once. "wrap": the batch's first rows are counted twice, "drop":
            its last rows are left out, so that all ranks have as many. Evaluation and prediction are always exact.
            With "drop" a data set other than arrays costs one all-reduce of a scalar more at each step.
        sync_batch_norm: True lets every `BatchNormalization` normalize by the rows of all ranks, as one process does,
            for one small all-reduce forward and one backward a layer. False lets it normalize by a rank's own rows,
            which is faster, unless the layer says `synchronized=True`.
        recompute: patterns of names in `model.layers`, and in those of models within it: such a layer keeps only its
            input, and is computed again in the backward pass. See docs/recomputation.md.
        zero: a stage of ZeRO, which takes a rank less memory; the result is the same. 1 gives each rank a part of every
            variable to update, with its part of the optimizer's state. 2 also lets each gradient go as soon as its
            sum is scattered. 3 stores a part of every variable on each rank, and gathers it for each use, for half as
            many bytes again. 0 has each rank store and update all. See docs/zero.md.
        zero_min_kb: size in kilobytes below which a variable is whole on each rank.
        zero_ranks: how many neighbouring ranks divide one replica of what `zero` divides, "host" for those of a host,
            None for all (HSDP). Between replicas a rank sends its part of the gradients only.
        custom_loss: what the losses are that no loss function of Keras's reduces: those that a `train_step` of your own
            computes, and those that layers add by `add_loss`. "mean": means over the rows of a batch, which count with
            a rank's share of the rows. "sum": sums over rows, which add up over ranks. "auto" finds out which of both
            with the first batch, before anything is trained. See docs/exactness.md.
        reduce_by: the way of a step's collectives over ranks of one host: "auto" takes the host's shared memory if all
            ranks are on it and compute on its processors, and else the engine, which is what connects the ranks;
            "engine" (or "horovod", as it was called) and "shared_memory" insist on one. Eager steps go by the engine in
            any case. `kp.describe` shows the way of each.

    Raises:
        ValueError: an option has no such value, sums cannot go the way that
            `reduce_by` insists on, or the mesh does not cover all ranks. Later, before the first step, if a pattern of
            `recompute` matches no layer.

    Costs one all-reduce for each `fusion_mb` of gradients in an update, and one broadcast for each 16 MiB of state when
    `fit` begins; creating it with `zero=3` two all-gathers of some kilobytes. See docs/exactness.md for what else is
    sent.
    """

    def __init__(
        self,
        device_mesh: Any = None,
        devices: Any = None,
        auto_shard_dataset: bool = True,
        *,
        reduction: Reduction = Options.reduction,
        fusion_mb: float = Options.fusion_mb,
        compression: Compression = Options.compression,
        broadcast_variables: bool = Options.broadcast_variables,
        remainder: Remainder = Options.remainder,
        custom_loss: CustomLoss = Options.custom_loss,
        reduce_by: ReduceBy = Options.reduce_by,
        sync_batch_norm: bool = Options.sync_batch_norm,
        recompute: Sequence[str] = Options.recompute,
        zero: Zero = Options.zero,
        zero_min_kb: float = Options.zero_min_kb,
        zero_ranks: int | str | None = Options.zero_ranks,
    ):
        options = Options(
            reduction=reduction,
            fusion_mb=fusion_mb,
            compression=compression,
            broadcast_variables=broadcast_variables,
            remainder=remainder,
            custom_loss=custom_loss,
            reduce_by=reduce_by,
            sync_batch_norm=sync_batch_norm,
            recompute=recompute,
            zero=zero,
            zero_min_kb=zero_min_kb,
            zero_ranks=zero_ranks,
        )
        init_for(options)
        self.keras_par_options = options
        super().__init__(device_mesh, devices, auto_shard_dataset)
        if zero == 3:
            share_random_state("kp.DataParallel(zero=3)")
        self._layout_map = keras.distribution.LayoutMap(self.device_mesh)  # `zero` alone divides variables
        num_ranks = keras.distribution.get_device_count()
        if self.device_mesh.devices.size != num_ranks:
            raise ValueError(
                f"keras-par: DataParallel's mesh has {self.device_mesh.devices.size} device(s) but the job has "
                f"{num_ranks} rank(s): leave out devices and device_mesh, or list all ranks."
            )
        mesh_of_rows(self)
