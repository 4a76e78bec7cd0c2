"""Gets a model from a function in a file of the user's."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import keras


class ModelFileError(ValueError):
    """The file or its function gives no model; one sentence."""


def build_from(place: str) -> keras.Model:
    """The model that FILE:FUNCTION returns.

    Raises:
        ModelFileError: there is no such file or function, or it returns something else.
    """
    file, colon, name = place.rpartition(":")
    path = Path(file)
    if not colon or not name:
        raise ModelFileError(f"keras-par: '{place}' names no file and function: write it as path/to/model.py:build.")
    if not path.is_file():
        raise ModelFileError(f"keras-par: there is no file '{file}': correct the path in '{place}'.")
    function = getattr(module_of(path), name, None)
    if not callable(function):
        raise ModelFileError(f"keras-par: '{file}' has no function '{name}': name the one that returns the model.")
    model = function()
    if not isinstance(model, keras.Model):
        raise ModelFileError(
            f"keras-par: '{name}' in '{file}' returned {type(model).__name__}: let it return a keras.Model."
        )
    return model


def module_of(path: Path) -> Any:
    """The file as a module; what is beside it can be imported, as where it is run as a script."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
