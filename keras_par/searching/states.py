"""How a variable may lie, which are the states of its node."""

from collections.abc import Sequence

from keras_par.plan.layout import Axes
from keras_par.plan.setting import Setting


def options(shape: Sequence[int], setting: Setting, fixed: Axes | None = None) -> list[Axes]:
    """How a variable may lie: whole, a dim divided by each axis, and also stored in parts along the data axis.

    The last is left out where a stage of ZeRO divides along the data axis.

    Args:
        shape: of the variable.
        setting: where.
        fixed: the one way if it is said already.
    """
    if fixed is not None:
        return [tuple(fixed) or (None,) * len(shape)]
    others = [axis for axis, size in setting.mesh.items() if axis != setting.data_axis and size > 1]
    found: list[Axes] = [(None,) * len(shape)]
    for axis in others:
        found += [
            put(layout, dim, axis)
            for layout in list(found)
            for dim, size in enumerate(shape)
            if layout[dim] is None and size % setting.mesh[axis] == 0
        ]
    num_parts = setting.mesh[setting.data_axis]
    if num_parts > 1 and not setting.zero:
        for layout in list(found):
            free = [d for d, size in enumerate(shape) if layout[d] is None and size % num_parts == 0]
            if free:
                found.append(put(layout, free[0], setting.data_axis))  # the first is joined as it comes
    return found


def put(layout: Axes, dim: int, axis: str) -> Axes:
    """A layout with one more dim divided."""
    return (*layout[:dim], axis, *layout[dim + 1 :])
