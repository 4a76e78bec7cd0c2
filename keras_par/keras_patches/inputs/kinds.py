"""The kinds of input: which class reads what `fit` is given, or divides what `kp.data.shard` is given."""

from typing import Any

from keras_par.keras_patches.inputs.arrays import ArrayInput, SparseArrayInput
from keras_par.keras_patches.inputs.input import GeneratorInput, Input
from keras_par.keras_patches.inputs.py_dataset import PyDatasetInput
from keras_par.keras_patches.inputs.tf_dataset import TFDatasetInput
from keras_par.keras_patches.inputs.torch_loader import TorchLoaderInput

# `Input` itself reads any other data adapter of Keras's, as those of grain.
KINDS = (GeneratorInput, PyDatasetInput, TorchLoaderInput, TFDatasetInput, ArrayInput, SparseArrayInput, Input)


def input_of(adapter: Any, *arguments: Any) -> Input:
    """The kind that reads a data adapter of Keras's, made of it and the other arguments of `Input`."""
    return next(kind for kind in KINDS if kind.reads(adapter))(adapter, *arguments)


def shard_of_data(data: Any, sharding: Any) -> Any:
    """This rank's share of any data."""
    return next(kind for kind in KINDS if kind.takes(data)).shard(data, sharding)
