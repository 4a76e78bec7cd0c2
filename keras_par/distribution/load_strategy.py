"""Makes a strategy of a file: one of the catalogue's by its name, or one of your own by its path."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras

from keras_par.comm import world
from keras_par.distribution.data_parallel import DataParallel
from keras_par.distribution.model_parallel import ModelParallel
from keras_par.distribution.runtime import init
from keras_par.plan.layout import matches, nearest
from keras_par.plan.mesh import resized, sizes_for
from keras_par.plan.strategy_file import Strategy, read_strategy


def load_strategy(
    name_or_path: str | os.PathLike,
    mesh: keras.distribution.DeviceMesh | Mapping[str, int] | Sequence[int] | None = None,
) -> DataParallel | ModelParallel:
    """The strategy that a TOML file describes; see docs/strategies.md for the format and the catalogue.

    Example:
        ```python
        strategy = kp.load_strategy("megatron", mesh={"model": 2})  # the other ranks along the batch axis
        with strategy.scope():
            up, down = keras.layers.Dense(64, "relu", name="up"), keras.layers.Dense(8, name="down")
            model = keras.Sequential([keras.Input((8,)), up, down])
            model.compile("adam", "mse")
        kp.describe(model).variables[0].local_shape  # -> (8, 32)
        ```

    A file with a layout makes a `kp.ModelParallel`, one without a `kp.DataParallel`. Calls `kp.init()`.

    Args:
        name_or_path: a name in the catalogue, such as "gpt2", or the path of a file, which ends in ".toml".
        mesh: instead of the file's mesh: a `keras.distribution.DeviceMesh` with the axes that the layout names; or the
            sizes of the file's axes, by name, as in `{"batch": 2, "model": 2}`, or in the file's order, as in `(2, 2)`.
            One size may be -1, which is all ranks that are left; an axis that a dict leaves out has it too.

    Returns:
        The strategy, to be set by its `scope()` or by `keras.distribution.set_distribution`.

    Raises:
        ValueError: there is no such strategy, its file is wrong, or the mesh does not fit the file or the ranks.

    Costs two all-gathers of some kilobytes if it divides weights, and else no collective.
    """
    file = find(name_or_path)
    strategy = read_strategy(file)
    init()
    if not strategy.entries:
        if mesh is not None and not isinstance(mesh, keras.distribution.DeviceMesh):
            raise ValueError(
                f"keras-par: strategy '{strategy.name}' is data parallel and has no axes, but load_strategy was given "
                f"the mesh {mesh!r}: leave mesh out."
            )
        return DataParallel(mesh, **strategy.options)
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        wanted = strategy.mesh if mesh is None else resized(strategy.name, strategy.mesh, mesh)
        sizes = sizes_for(wanted, world.current().size)
        mesh = keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes))
    return model_parallel(strategy, mesh)


def model_parallel(
    strategy: Strategy, mesh: keras.distribution.DeviceMesh, kind: type[ModelParallel] = ModelParallel
) -> ModelParallel:
    """The strategy over a mesh, as an object of `kind`.

    Raises:
        ValueError: the mesh lacks an axis, or does not hold the ranks.
    """
    named = [strategy.options.get("batch_dim_name"), *(axis for entry in strategy.entries for axis in entry.axes)]
    lacking = next((axis for axis in named if axis is not None and axis not in mesh.axis_names), None)
    if lacking is not None:
        raise ValueError(
            f"keras-par: strategy '{strategy.name}' divides along the axis '{lacking}', but the mesh given to "
            f"load_strategy has the axes {list(mesh.axis_names)}: give it one of that name."
        )
    layout_map = LayoutMap(mesh)
    for entry in strategy.entries:
        layout_map[entry.pattern] = entry.axes
    made = kind(layout_map=layout_map, **strategy.options)
    made.optional_patterns = frozenset(entry.pattern for entry in strategy.entries if entry.is_optional)
    made.replicable_patterns = frozenset(entry.pattern for entry in strategy.entries if entry.is_replicable)
    return made


class LayoutMap(keras.distribution.LayoutMap):
    """Finds what Keras's finds, which would compile very many patterns anew for each variable."""

    def __getitem__(self, key):
        found = [pattern for pattern in self if matches(pattern, key)]
        if not found:
            return None
        return super().__getitem__(found[0] if len(found) == 1 else key)  # Keras says which are too many


def find(name_or_path: str | os.PathLike) -> Path:
    """The file of a strategy.

    Raises:
        ValueError: there is none.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml":
        if path.is_file():
            return path
        raise ValueError(
            f"keras-par: there is no strategy file '{path}': correct the path, or give a name without .toml."
        )
    found = {file.stem: file for file in sorted(catalogue().glob("*.toml"))}
    if str(name_or_path) not in found:
        alike = ", ".join(f"'{name}'" for name in nearest(str(name_or_path), found))
        raise ValueError(
            f"keras-par: there is no strategy '{name_or_path}' in the catalogue; nearest are {alike}: give one of its "
            "names, or the path of a .toml file."
        )
    return found[str(name_or_path)]


def catalogue() -> Path:
    """The folder of the catalogue: within the package where it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "strategies"
    return inside if inside.is_dir() else package.parent / "strategies"
