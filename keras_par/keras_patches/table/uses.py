"""Private names of Keras and TensorFlow that are used as they are, and finds those that newer versions have moved."""

import pkgutil
from typing import Any, NamedTuple

import keras

from keras_par.keras_patches.table.replacements import OPTIMIZER, STRATEGIES


class Move(NamedTuple):
    """A module or a class that is elsewhere in newer versions of Keras.

    Args:
        before: its name in this table, "module" or "module:class".
        now: its name since.
        since: the first version that has it there.
    """

    before: str
    now: str
    since: str = "3.16"


MOVES = (
    *(
        Move(f"keras.src.backend.tensorflow.{room}", f"keras.src.backend.tensorflow.ops.{room}")
        for room in ("core", "linalg", "math", "nn", "numpy")
    ),
    Move("keras.src.trainers.trainer:Trainer", "keras.src.trainers.trainer:BaseTrainer"),
    Move("keras.src.backend.tensorflow.trainer:TensorFlowTrainer", "keras.src.backend.tensorflow.trainer:Trainer"),
    Move(
        "keras.src.export.saved_model_export_archive:SavedModelExportArchive",
        "keras.src.export.saved_model_export_archive:BaseSavedModelExportArchive",
    ),
)


class Use(NamedTuple):
    """A private name that is used as it is.

    Args:
        target: "module:name".
        reason: why.
    """

    target: str
    reason: str


ADAPTERS = "keras.src.trainers.data_adapters"
COMMON = "keras.src.backend.common"

USES = (
    Use(f"{STRATEGIES}:distribution", "to know the strategy that is active"),
    Use(f"{STRATEGIES}:set_distribution", "to hide it from data adapters"),
    Use("keras.src.backend:distribution_lib", "to leave to Keras what has nothing to do with ranks"),
    Use(f"{STRATEGIES}:DeviceMesh", "to know meshes"),
    Use(f"{STRATEGIES}:TensorLayout", "to say that data is not divided"),
    Use(f"{COMMON}.global_state:get_global_attribute", "to know which layer is under way"),
    Use(f"{COMMON}.name_scope:current_path", "the same"),
    Use(f"{COMMON}.global_state:set_global_attribute", "to give a model the names of one that was only looked at"),
    Use(f"{COMMON}.stateless_scope:in_stateless_scope", "to know where variables are not made"),
    Use(f"{COMMON}.symbolic_scope:in_symbolic_scope", "to know where models are built from symbols"),
    Use(f"{COMMON}.masking:get_keras_mask", "to bring the masks of outputs together with them"),
    Use(f"{COMMON}.masking:set_keras_mask", "the same"),
    Use("keras.src.backend:compute_output_spec", "to build a model from the types of its inputs"),
    Use(f"{COMMON}.remat:RematMode", "to recompute the layers that a strategy names"),
    Use(f"{COMMON}.variables:standardize_shape", "to know a variable's shape before it is made"),
    Use("keras.src.backend.config:keras_home", "to find where get_file downloads to"),
    *(
        Use(f"keras.src.backend.tensorflow.{room}", "to give its functions rules for sharded tensors")
        for room in ("core", "linalg", "math", "nn", "numpy", "random", "rnn")
    ),
    Use("keras.src.backend.tensorflow.trainer:TensorFlowTrainer._autoconvert_optionals", "to call a step directly"),
    Use("keras.src.callbacks.callback_list:CallbackList", "to know which callback a collective is asked for by"),
    Use("keras.src.losses.loss:apply_mask", "to divide by weights and masks of all ranks"),
    Use("keras.src.losses.loss:standardize_reduction", "the same"),
    Use("keras.src.optimizers.base_optimizer:BaseOptimizer.add_variable_from_reference", "to divide slots"),
    *(
        Use(f"{OPTIMIZER}.{name}", "to sum gradients over ranks between accumulating and clipping")
        for name in (
            "_apply_weight_decay",
            "_backend_increment_gradient_accumulators",
            "_backend_reset_gradient_accumulators",
            "_get_variable_index",
            "_update_model_variables_moving_average",
        )
    ),
    Use("keras.src.random.seed_generator:GLOBAL_SEED_GENERATOR", "to begin with rank 0's seed for unseeded draws"),
    Use("keras.src.trainers.compile_utils:CompileMetrics", "to know the container of the metrics of compile"),
    Use("keras.src.trainers.compile_utils:MetricsList", "the same"),
    Use("keras.src.trainers.epoch_iterator:EpochIterator", "to cut global batches into the ranks' rows"),
    Use("keras.src.trainers.trainer:Trainer._symbolic_build", "to build a model before its weights are compared"),
    Use("keras.src.trainers.trainer:Trainer._compute_loss", "to build losses from sparse batches"),
    Use(f"{ADAPTERS}.generator_data_adapter:GeneratorDataAdapter", "to know the kind of input"),
    Use(f"{ADAPTERS}.array_data_adapter:ArrayDataAdapter", "to cut arrays before copying rows"),
    Use(f"{ADAPTERS}.array_slicing:convert_to_sliceable", "the same"),
    Use(f"{ADAPTERS}.tf_dataset_adapter:TFDatasetAdapter", "to know the kind of input"),
    Use(f"{ADAPTERS}.torch_data_loader_adapter:TorchDataLoaderAdapter", "the same"),
    Use(f"{ADAPTERS}.py_dataset_adapter:PyDatasetAdapter", "to shuffle alike on all ranks"),
    Use(f"{ADAPTERS}.py_dataset_adapter:PyDatasetAdapter._finite_generator", "the same"),
    Use(f"{ADAPTERS}.py_dataset_adapter:PyDatasetAdapter._standardize_batch", "the same"),
    Use(f"{ADAPTERS}.py_dataset_adapter:OrderedEnqueuer", "the same"),
    Use(f"{ADAPTERS}.py_dataset_adapter:OrderedEnqueuer._run", "the same"),
    Use("keras.src.tree:map_structure", "to walk arguments as Keras does"),
    Use("keras.src.utils.file_utils:is_remote_path", "to write beside a path where there are folders"),
    Use("keras.src.utils.tracking:DotNotTrackScope", "to replace the loss tracker by one that keeps the newest loss"),
    Use("tensorflow:__internal__.types.Tensor", "so that a sharded tensor passes for a tensor"),
    Use("tensorflow.python.eager.context:context", "to start TensorFlow's own collectives, and to end them"),
    Use(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function",
        "to let functions begin anew whose first trace was given up",
    ),
    Use("tensorflow.python.eager.record:should_record_backprop", "to share gathered values while no tape records"),
    Use("tensorflow.python.eager.record:could_possibly_record", "to recompute layers only where gradients are taken"),
    Use("tensorflow.python.eager.record:record_operation", "to give recomputed layers a gradient of their own"),
)


def find(target: str) -> Any:
    """What this Keras has under a name of the table.

    Args:
        target: "module:name", or a module, as the table has it.

    Raises:
        ImportError, AttributeError: this Keras has no such name.
    """
    return pkgutil.resolve_name(located(target))


def located(target: str) -> str:
    """The name in this Keras of what the table calls `target`."""
    for move in MOVES:
        is_there = target == move.before or target.startswith((f"{move.before}.", f"{move.before}:"))
        if is_there and has(move.since):
            return move.now + target.removeprefix(move.before)
    return target


def has(since: str, until: str = "") -> bool:
    """True if this Keras is of version `since` or newer, and older than `until`."""
    known = version(keras.__version__)
    return version(since) <= known and not (until and known >= version(until))


def version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in [*text.split("."), "0"][:2])
