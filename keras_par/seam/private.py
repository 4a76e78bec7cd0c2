"""Every private name of Keras and TensorFlow this package uses, with the reason, checked before it replaces any."""

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_par.plan.backend import sentence

OLDEST = (3, 14)
NEWEST_TESTED = (3, 15)

# (module, name within it, why it is needed)
PRIVATE_NAMES = (
    ("keras.src.backend.tensorflow.core", "Variable._initialize", "to note under which strategy a variable was made"),
    ("keras.src.backend.tensorflow.distribution_lib", "list_devices", "to list one device a rank"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.fit", "to run fit on all ranks together"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.evaluate", "the same"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.predict", "the same"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.train_on_batch", "the same"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.test_on_batch", "the same"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.predict_on_batch", "the same"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer._make_function", "to tell a step its rows"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer._autoconvert_optionals", "to call a step directly"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer.make_predict_function", "to gather predictions"),
    ("keras.src.backend.tensorflow.trainer", "TFEpochIterator", "to cut global batches into the ranks' rows"),
    ("keras.src.trainers.epoch_iterator", "EpochIterator", "the same"),
    ("keras.src.trainers.trainer", "Trainer.compile", "to bind a model to the strategy"),
    ("keras.src.trainers.trainer", "Trainer._get_metrics_result_or_logs", "to sum metric states over ranks"),
    ("keras.src.trainers.compile_utils", "CompileMetrics", "to know the container of the metrics of compile"),
    ("keras.src.trainers.trainer", "Trainer._resolve_auto_jit_compile", "to leave XLA off where it cannot be"),
    ("keras.src.trainers.trainer", "Trainer._symbolic_build", "to build a model before its weights are compared"),
    ("keras.src.trainers.trainer", "Trainer._compute_loss", "to build losses from sparse batches"),
    ("keras.src.trainers.data_adapters", "array_data_adapter.ArrayDataAdapter", "to cut arrays before copying rows"),
    ("keras.src.trainers.data_adapters", "array_slicing.convert_to_sliceable", "the same"),
    ("keras.src.trainers.data_adapters", "tf_dataset_adapter.TFDatasetAdapter", "to know the kind of input"),
    ("keras.src.trainers.data_adapters", "torch_data_loader_adapter.TorchDataLoaderAdapter", "the same"),
    ("keras.src.trainers.data_adapters", "py_dataset_adapter.PyDatasetAdapter", "to shuffle alike on all ranks"),
    ("keras.src.trainers.data_adapters", "py_dataset_adapter.PyDatasetAdapter._finite_generator", "the same"),
    ("keras.src.trainers.data_adapters", "py_dataset_adapter.PyDatasetAdapter._standardize_batch", "the same"),
    ("keras.src.trainers.data_adapters", "py_dataset_adapter.OrderedEnqueuer._run", "the same"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", "to reduce inside the update"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer.scale_loss", "to weight a loss by its rows"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer._clip_gradients", "runs once an update, before clipping"),
    (
        "keras.src.optimizers.base_optimizer",
        "BaseOptimizer._overwrite_variables_directly_with_gradients",
        "to keep the ranges of float8 equal",
    ),
    ("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.apply", "to reduce before the finite check"),
    ("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.scale_loss", "to weight a loss by its rows"),
    ("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.check_finite", "to skip updates together"),
    ("keras.src.losses.loss", "reduce_weighted_values", "to divide by weights and masks of all ranks"),
    ("keras.src.losses.loss", "apply_mask", "the same"),
    ("keras.src.layers.normalization.batch_normalization", "BatchNormalization._moments", "to synchronize it"),
    ("keras.src", "backend.compute_output_spec", "to build a model from the types of its inputs"),
    ("keras.src.utils.tracking", "DotNotTrackScope", "to replace the loss tracker by one that keeps the newest loss"),
    ("keras.src.backend.tensorflow", "numpy.take", "to read only the rows that embeddings look up"),
    ("keras.src.backend.tensorflow", "core.shape", "to know which numbers of a shape count the batch's rows"),
    ("keras.src.random.seed_generator", "GLOBAL_SEED_GENERATOR", "to begin with rank 0's seed for unseeded draws"),
    ("tensorflow.python.ops", "gen_stateless_random_ops_v2.stateless_random_normal_v2", "to draw a rank's rows alone"),
    ("tensorflow.python.ops", "gen_stateless_random_ops_v2.stateless_random_uniform_v2", "the same"),
    ("tensorflow.python.ops", "gen_stateless_random_ops_v2.stateless_random_uniform_int_v2", "the same"),
    ("tensorflow.python.ops", "gen_stateless_random_ops_v2.stateless_random_uniform_full_int_v2", "the same"),
    ("tensorflow.python.ops", "gen_stateless_random_ops_v2.stateless_truncated_normal_v2", "the same"),
    ("tensorflow.python.ops", "gen_stateless_random_ops_v2.stateless_random_gamma_v3", "to cut a rank's rows"),
    ("tensorflow.python.ops", "gen_stateless_random_ops.stateless_multinomial", "the same"),
    ("tensorflow.python.ops", "gen_stateless_random_ops.stateless_random_binomial", "the same"),
    ("tensorflow.python.ops", "gen_stateless_random_ops.stateless_random_poisson", "the same"),
    ("tensorflow.python.ops", "gen_random_ops.random_uniform", "the same, as for the others beside it"),
    ("tensorflow.python.ops", "stateful_random_ops.Generator._prepare_key_counter", "to move generators on alike"),
    ("tensorflow.python.ops", "array_ops.shape_internal", "to know of which tensor a constant is the shape"),
    ("tensorflow.python.ops", "array_ops._constant_if_small", "to know which constants have the batch's rows"),
    ("tensorflow.python.ops", "array_ops.ones_like_impl", "the same"),
    ("tensorflow.python.ops", "array_ops.zeros_like_impl", "the same"),
    ("tensorflow.python.ops", "gen_array_ops.fill", "the same"),
    ("tensorflow.python.framework", "tensor_util.constant_value_as_shape", "to know sizes while tracing"),
    ("tensorflow.python.ops", "shape_util.shape_tensor", "to know what the numbers of a shape were"),
    ("keras.src.distribution.distribution_lib", "DataParallel", "to recognize the stock strategy"),
    ("keras.src.distribution.distribution_lib", "DataParallel.get_data_layout", "to leave data whole outside of steps"),
    ("keras.src.distribution.distribution_lib", "ModelParallel.get_data_layout", "the same"),
    ("keras.src.distribution.distribution_lib", "global_state", "to keep the strategy past clear_session"),
    ("keras.src.callbacks.model_checkpoint", "ModelCheckpoint._save_model", "to save on one rank"),
    ("keras.src.callbacks.backup_and_restore", "BackupAndRestore._save_model", "the same"),
    ("keras.src.callbacks.tensorboard", "TensorBoard._train_writer", "to write on one rank"),
    ("keras.src.callbacks.tensorboard", "TensorBoard._val_writer", "the same"),
    ("keras.src.callbacks.tensorboard", "TensorBoard._start_trace", "to profile one rank"),
    ("keras.src.saving", "saving_lib.save_model", "to write files of divided models on all ranks together"),
    ("keras.src.saving", "saving_lib.save_weights_only", "the same"),
    ("keras.src.saving", "saving_lib.is_memory_sufficient", "to keep files of divided models out of memory"),
    ("keras.src.legacy.saving", "legacy_h5_format.save_model_to_hdf5", "to write files of models beside their paths"),
    ("keras.src.export", "saved_model_export_archive.SavedModelExportArchive.write_out", "the same"),
    (
        "keras.src.export",
        "saved_model_export_archive.SavedModelExportArchive._filter_and_track_resources",
        "to list variables alike on all ranks",
    ),
    ("keras.src.utils", "file_utils.is_remote_path", "the same, where there are folders"),
    ("keras.src.utils", "io_utils.ask_to_proceed_with_overwrite", "to ask on one rank"),
    ("keras.src.utils", "file_utils.File", "callbacks write by it"),
    ("keras.src.utils", "file_utils.makedirs", "the same"),
    ("keras.src.utils", "file_utils.copy", "the same"),
    ("keras.src.utils", "file_utils.remove", "the same"),
    ("keras.src.utils", "file_utils.rmtree", "the same"),
    ("keras.src.utils", "io_utils.print_msg", "callbacks print by it"),
    ("keras.src.utils", "file_utils.get_file", "to let one rank of a host download"),
    ("keras.src.backend", "config.keras_home", "to find where it downloads to"),
)

# (what makes an instance, the attributes its __init__ must set, why they are needed)
PRIVATE_ATTRIBUTES = (
    (
        lambda: keras.Sequential(name="probe"),
        ("_loss_tracker", "_compile_loss", "_compile_metrics", "_jit_compile", "_initial_epoch"),
        "to track the newest loss, to build losses and metrics, to keep collectives out of XLA, and to resume together",
    ),
    (
        lambda: keras.layers.Layer(name="probe"),
        ("_flatten_layers", "_non_trainable_variables"),
        "to average state that has no gradients",
    ),
    (
        lambda: keras.callbacks.ModelCheckpoint("probe.keras"),
        ("_batches_seen_since_last_saving", "_last_batch_seen"),
        "to go on with what it has counted",
    ),
    (lambda: keras.callbacks.SwapEMAWeights(), ("_ema_weights_in_model",), "the same"),
    (lambda: keras.callbacks.TensorBoard("probe"), ("_global_train_batch", "_global_test_batch"), "the same"),
    (
        lambda: find("keras.src.trainers.data_adapters", "array_data_adapter.ArrayDataAdapter")(np.zeros([1, 1])),
        ("_inputs", "_num_samples", "_shuffle"),
        "to cut arrays before copying rows",
    ),
    (
        lambda: find("keras.src.trainers.epoch_iterator", "EpochIterator")(np.zeros([1, 1])),
        (
            "_enumerate_iterator",
            "_epoch_iterator",
            "_current_iterator",
            "_get_iterator",
            "_interrupted_warning",
            "_num_batches",
            "_steps_seen",
        ),
        "to end data of unknown length on all ranks together, and to begin in the middle of an epoch",
    ),
)


def check() -> None:
    """Refuses a Keras whose version or private names are not the ones this room knows.

    Raises:
        RuntimeError: Keras runs on another backend than TensorFlow, its version is outside the supported range,
            or a name it should have is missing.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(sentence(keras.backend.backend()))
    supported = f"Keras >= {OLDEST[0]}.{OLDEST[1]} and < 4 (tested up to {NEWEST_TESTED[0]}.{NEWEST_TESTED[1]})"
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if not OLDEST <= version < (4, 0):
        raise RuntimeError(
            f"keras-par: Keras {keras.__version__} is installed, but keras-par supports {supported}: "
            "run 'pip install \"keras>=3.14,<4\"'."
        )
    missing = next(missing_names(), None)
    if missing:
        raise RuntimeError(
            f"keras-par: Keras {keras.__version__} has no {missing}, which keras-par relies on; "
            f"it supports {supported}: install a Keras of that range."
        )


def find(module: str, name: str) -> Any:
    """What `name` (with dots) is in `module`; ImportError or AttributeError if there is no such thing."""
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def missing_names() -> Iterator[str]:
    """The private names that this Keras lacks."""
    for module, name, _ in PRIVATE_NAMES:
        try:
            find(module, name)
        except (ImportError, AttributeError):
            yield f"{module}.{name}"
    for make, names, _ in PRIVATE_ATTRIBUTES:
        instance = make()
        yield from (f"{type(instance).__name__}.{name}" for name in names if not hasattr(instance, name))
