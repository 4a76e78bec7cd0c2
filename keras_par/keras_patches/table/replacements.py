"""Everything in Keras and TensorFlow that is replaced, by what, and why: the one place that replaces anything at start.

A line's wrapper takes what it replaces and returns what takes its place; a name has one wrapper.
`docs/keras_patches.md` is made from this table.
"""

from typing import NamedTuple


class Patch(NamedTuple):
    """One replacement.

    Args:
        target: "module:name".
        by: what replaces it, "room.module:name" within keras_patches/.
        reason: why.
        instead: True if `by` takes the place itself, and knows nothing of what was there.
        everywhere: True if other modules have imported the function, and get the replacement, too.
        since: the first version of Keras that has the name.
        until: the first version that has it no more, empty for none.
    """

    target: str
    by: str
    reason: str
    instead: bool = False
    everywhere: bool = False
    since: str = "3.14"
    until: str = ""


TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
STRATEGIES = "keras.src.distribution.distribution_lib"
VARIABLE = "keras.src.backend.tensorflow.core:Variable"
OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"
TF_OPTIMIZER = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
SCALED = "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer"
MODEL = "keras.src.models.model:Model"
SAVING = "keras.src.saving.saving_api"
TF_VARIABLE = "tensorflow.python.ops.resource_variable_ops:ResourceVariable"
ARCHIVE = "keras.src.export.saved_model_export_archive:SavedModelExportArchive"

STRATEGY = (
    Patch(
        f"{STRATEGIES}:global_state", "models.distribution_api:STORE", "to keep the strategy past clear_session", True
    ),
    Patch(
        f"{STRATEGIES}:DataParallel.get_data_layout",
        "variables.layouts:data_layout",
        "to leave data whole outside of steps",
    ),
    Patch(f"{STRATEGIES}:ModelParallel.get_data_layout", "variables.layouts:data_layout", "the same"),
    Patch(
        f"{STRATEGIES}:distribution_lib",
        "models.distribution_api",
        "to count ranks as devices, and to divide tensors",
        True,
    ),
)
VARIABLES = (
    Patch(
        f"{VARIABLE}._initialize_with_initializer",
        "variables.sharded_variable:initialize_with_initializer",
        "to make shards without the whole",
    ),
    Patch(f"{VARIABLE}._initialize", "variables.sharded_variable:initialize", "to divide a variable that has a layout"),
    Patch(
        "keras.src.layers.layer:Layer.__new__",
        "step.layer_origins:noted",
        "to know which line of the user's made a layer",
    ),
)
OPTIMIZERS = (
    Patch(f"{OPTIMIZER}.apply", "update.optimizer:apply", "to weight gradients by rows"),
    Patch(f"{SCALED}.apply", "update.optimizer:apply", "the same"),
    Patch(f"{SCALED}.check_finite", "update.optimizer:check_finite", "to skip updates together"),
    Patch(
        f"{OPTIMIZER}._backend_apply_gradients",
        "update.optimizer:apply_gradients",
        "to sum gradients over ranks between accumulating and clipping",
    ),
    Patch(f"{OPTIMIZER}._clip_gradients", "update.optimizer:clip_gradients", "to clip by whole gradients' norms"),
    Patch(f"{TF_OPTIMIZER}._backend_update_step", "update.variable_update:update_step", "to update shards by shards"),
    Patch(
        f"{TF_OPTIMIZER}._overwrite_model_variables_with_average_value",
        "update.variable_update:overwrite_with_average",
        "the same",
    ),
    Patch(
        f"{TF_OPTIMIZER}.add_variable_from_reference",
        "update.optimizer_slots:add_variable_from_reference",
        "to divide slots as their variables",
    ),
    Patch(f"{TF_OPTIMIZER}._var_key", "update.optimizer_slots:var_key", "to find the slots of shards"),
)
GRADIENTS = (
    Patch(
        "tensorflow:GradientTape.gradient", "update.gradients:tape_gradient", "to sum gradients where a step takes them"
    ),
    Patch("tensorflow:GradientTape.jacobian", "update.gradients:tape_jacobian", "the same"),
    Patch("tensorflow:gradients", "update.gradients:graph_gradients", "to sum gradients where a step takes them"),
    Patch(
        "keras.src.backend.tensorflow.core:remat",
        "update.recompute:remat",
        "to recompute layers with their keyword arguments, shards, seeds and state",
        True,
    ),
    Patch(
        "keras.src.ops.operation:Operation.rematerialized_call",
        "update.recompute:of_symbols",
        "to recompute layers by the sizes of their outputs",
        since="3.15",
    ),
    Patch("keras.src.layers.layer:Layer.rematerialized_call", "update.recompute:of_symbols", "the same", until="3.15"),
    *(
        Patch(f"{TF_VARIABLE}.{name}", f"step.replay:{by}", "to recompute layers from the state that they had")
        for name, by in (
            ("assign", "assigned"),
            ("assign_add", "assigned"),
            ("assign_sub", "assigned"),
            ("_read_variable_op", "read"),
            ("sparse_read", "read_rows"),
        )
    ),
)
LAYERS = (
    Patch(
        "keras.src.backend.tensorflow.numpy:take",
        "step.embedding_lookups:take",
        "to read only the rows that embeddings look up",
    ),
    Patch("keras.src.losses.loss:Loss.__call__", "step.batch_loss:call", "to compute losses of whole batches"),
    Patch(
        "keras.src.losses.loss:reduce_weighted_values",
        "step.loss:reduce_weighted_values",
        "to divide by weights and masks of all ranks",
    ),
    Patch("keras.src.layers.layer:Layer.__call__", "variables.layer_outputs:noted", "to note how outputs are divided"),
    Patch("keras.src.layers.layer:Layer.add_loss", "step.loss:add_loss", "to know sums over rows"),
    Patch(
        "keras.src.layers.layer:Layer._get_regularization_losses",
        "step.loss:regularization_losses",
        "to count a regularizer once where losses are sums",
    ),
    Patch(
        "keras.src.metrics.reduction_metrics:Mean.update_state", "step.metrics:mean_update_state", "to weight losses"
    ),
    Patch(
        "keras.src.metrics.reduction_metrics:MeanMetricWrapper.update_state",
        "step.metrics:wrapper_update_state",
        "to give metrics along the batch all rows",
    ),
    Patch(
        "keras.src.layers.normalization.batch_normalization:BatchNormalization._moments",
        "step.batch_normalization:moments",
        "to synchronize it",
    ),
)
NUMBERS = (
    Patch(
        "keras.src.backend.tensorflow.core:shape",
        "rows.batch_rows:marked_shape",
        "to know which numbers count rows",
        everywhere=True,
    ),
    *(
        Patch(f"tensorflow:{name}", "rows.batch_rows:noted_constant", "to know which constants have the batch's rows")
        for name in ("shape", "zeros", "ones", "fill", "zeros_like", "ones_like")
    ),
    *(
        Patch(f"tensorflow:random.{name}", "rows.random_rows:drawn", "to draw a rank's rows", everywhere=True)
        for name in (
            *(f"stateless_{kind}" for kind in ("normal", "uniform", "truncated_normal", "gamma", "binomial")),
            *("stateless_poisson", "stateless_categorical", "normal", "uniform", "truncated_normal", "gamma"),
            *("poisson", "categorical", "shuffle", "Generator.normal", "Generator.uniform"),
            *("Generator.truncated_normal", "Generator.uniform_full_int"),
        )
    ),
    *(
        Patch(f"tensorflow:nn.{name}", "rows.random_rows:dropout", "to draw a rank's rows of masks", everywhere=True)
        for name in ("dropout", "experimental.stateless_dropout")
    ),
    Patch(
        "tensorflow.python.ops.random_ops_util:get_key_counter_alg",
        "rows.random_rows:moved_counter",
        "to draw no other rank's rows",
    ),
)
STEPS = (
    Patch(
        "keras.src.backend.tensorflow.trainer:TFEpochIterator",
        "trainer.epoch_iterator:ShardedEpochIterator",
        "to cut global batches into the ranks' rows",
        True,
    ),
    Patch("keras.src.trainers.trainer:Trainer.compile", "trainer.fit:compile_model", "to bind a model to the strategy"),
    Patch(
        "keras.src.trainers.trainer:Trainer._get_metrics_result_or_logs",
        "trainer.fit:metrics_result",
        "to sum metric states over ranks",
    ),
    Patch(
        "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile",
        "trainer.fit:resolve_jit",
        "to leave XLA off where it cannot be",
    ),
    *(
        Patch(f"{TRAINER}.{name}", "trainer.fit:together", "to run it on all ranks together")
        for name in ("fit", "evaluate", "predict")
    ),
    *(
        Patch(f"{TRAINER}.{name}", "trainer.fit:batch_together", "the same")
        for name in ("train_on_batch", "test_on_batch", "predict_on_batch")
    ),
    Patch(f"{TRAINER}.train_step", "trainer.fit:stock_step", "to know Keras's own step from a user's"),
    Patch(f"{TRAINER}.test_step", "trainer.fit:stock_step", "the same"),
    Patch(f"{TRAINER}._make_function", "trainer.step_function:make_function", "to tell a step its rows"),
    Patch(
        f"{TRAINER}.make_predict_function", "trainer.predict_function:make_predict_function", "to gather predictions"
    ),
)
FILES = (
    Patch("tensorflow:data.Dataset.cache", "inputs.shared_files:cache", "to give each rank a file of its own"),
    Patch(
        "keras.src.utils.file_utils:get_file",
        "inputs.shared_files:get_file",
        "to download on one rank",
        everywhere=True,
    ),
    Patch(
        "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5",
        "files.atomic_save:making_folders",
        "to have whole files on all ranks",
    ),
    Patch(f"{ARCHIVE}.write_out", "files.atomic_save:making_folders", "the same"),
    Patch(
        f"{ARCHIVE}._filter_and_track_resources", "files.atomic_save:in_order", "to list variables alike on all ranks"
    ),
    Patch(
        "keras.src.saving.saving_lib:H5IOStore._get_h5_file",
        "files.atomic_save:opened_beside",
        "to have whole files where others save by Keras's store, as KerasHub does",
    ),
    Patch(f"{MODEL}.export", "files.model_files:saved_together", "to save a divided model by all ranks"),
    Patch("keras.src.saving.saving_lib:save_model", "files.atomic_save:written_beside", "to have whole files"),
    Patch("keras.src.saving.saving_lib:save_weights_only", "files.atomic_save:written_beside", "the same"),
    Patch(
        "keras.src.saving.saving_lib:load_weights_only",
        "files.model_files:accumulated_once",
        "to count accumulated gradients once",
    ),
    Patch(
        "keras.src.saving.saving_lib:is_memory_sufficient",
        "files.model_files:memory_is_sufficient",
        "to keep files of divided models out of memory",
    ),
)
CALLBACKS = (
    Patch(
        "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_begin",
        "trainer.keras_callbacks:restore_together",
        "to restore on all ranks",
    ),
    *(
        Patch(target, "trainer.keras_callbacks:nothing", "to write, send and print on one rank")
        for target in (
            "keras.src.callbacks.remote_monitor:RemoteMonitor.on_epoch_end",
            "keras.src.utils.file_utils:makedirs",
            "keras.src.utils.file_utils:copy",
            "keras.src.utils.file_utils:rmtree",
        )
    ),
    Patch(
        "keras.src.callbacks.tensorboard:TensorBoard._start_profiler",
        "trainer.keras_callbacks:profiled_apart",
        "to profile every rank",
    ),
    Patch(
        "keras.src.utils.io_utils:print_msg", "trainer.keras_callbacks:printed_once", "the same; of a file, its path"
    ),
    Patch("keras.src.utils.file_utils:File", "trainer.keras_callbacks:into_nothing", "the same"),
    Patch("tensorflow:summary.create_file_writer", "trainer.keras_callbacks:no_writer", "the same", everywhere=True),
    Patch(
        f"{SAVING}:save_model",
        "trainer.keras_callbacks:saves_once",
        "to save a divided model by all ranks, others on one",
        everywhere=True,
    ),
    Patch(f"{SAVING}:save_weights", "trainer.keras_callbacks:saves_once", "the same", everywhere=True),
    Patch(f"{MODEL}.summary", "models.summary:summary", "to print on one rank"),
)
PATCHES = (
    *STRATEGY,
    *VARIABLES,
    *OPTIMIZERS,
    *GRADIENTS,
    *LAYERS,
    *NUMBERS,
    *STEPS,
    *FILES,
    *CALLBACKS,
)
