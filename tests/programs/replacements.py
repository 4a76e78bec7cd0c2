"""Prints which functions and classes of Keras and TensorFlow are others: installed, taken out, and installed again.

With an argument, one of them is replaced besides the table.
"""

import json
import sys
import types

import keras
import tensorflow as tf  # noqa: F401

PARTS = (type, types.FunctionType, types.BuiltinFunctionType, property, staticmethod, classmethod)


def owners() -> list:
    """Modules of Keras and TensorFlow, and their classes."""
    modules = [each for name, each in list(sys.modules.items()) if name.split(".")[0] in ("keras", "tensorflow")]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    return [*modules, *classes]


def parts() -> dict:
    """What is in them, by the owner's identity and the name."""
    return {
        (id(owner), name): (owner, value)
        for owner in owners()
        for name, value in list(vars(owner).items())
        if isinstance(value, PARTS) or (owner.__name__.startswith("keras.src") and isinstance(value, types.ModuleType))
    }


def others(before: dict) -> set[str]:
    """The names of what is not there any more, or another object."""
    now = parts()
    return {
        f"{owner.__name__}.{name}"
        for (number, name), (owner, value) in before.items()
        if vars(owner).get(name) is not value
    } | {f"{owner.__name__}.{name}" for (_, name), (owner, value) in now.items() if getattr(value, "_keras_par", None)}


def main() -> None:
    import keras_par as kp
    from keras_par.keras_patches import install
    from keras_par.keras_patches.variables import operations

    assert callable(kp.init)  # imports what installing imports
    before = parts()
    install.install()
    operations.install()
    if len(sys.argv) > 1:
        keras.layers.Dense.call = lambda self, inputs: inputs
    first = others(before)
    install.uninstall()
    left = others(before)
    install.install()
    operations.install()
    again = others(before)
    print(json.dumps({"first": sorted(first), "left": sorted(left), "again": sorted(again)}))


if __name__ == "__main__":
    main()
