"""Where the parts of a variable lie: its value, the sum of its gradients, and the optimizer's state for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from keras_par.plan.layout import Axes, length_of


@dataclass(frozen=True)
class Placement:
    """How a variable is divided over a mesh; nothing is divided by an empty layout.

    Args:
        stored: for each dim the mesh axis that divides the value, or None.
        gradient: the same of the gradient that the optimizer gets.
        slots: the same of the optimizer's state.
        data_axis: the axis along which ranks have other rows, None where no strategy says so.
    """

    stored: Axes = ()
    gradient: Axes = ()
    slots: Axes = ()
    data_axis: str | None = None

    @property
    def part_dim(self) -> int | None:
        """The dim of which a rank updates a part, though it stores as much as ranks with other rows; None if none."""
        if self.data_axis not in self.gradient or self.data_axis in self.stored:
            return None
        return self.gradient.index(self.data_axis)

    @property
    def is_summed_backward(self) -> bool:
        """True if ranks with other rows hold other parts: to read it gathers them, which sums its gradient backward."""
        return self.data_axis is not None and self.data_axis in self.stored


def alike(axes: Axes, data_axis: str | None) -> Placement:
    """Value, gradient and state divided in one way."""
    return Placement(axes, axes, axes, data_axis)


def updated_in_parts(shape: Sequence[int], stored: Axes, data_axis: str, num_parts: int) -> Placement | None:
    """A value stored so, of which each rank with other rows updates a part, as the first stage of ZeRO has it.

    The dim is the one whose largest part is the smallest, the first of several. None if no dim has as many elements.

    Args:
        shape: of the variable.
        stored: the axes that divide its value.
        data_axis: along which ranks have other rows.
        num_parts: how many these are.
    """
    free = [dim for dim, size in enumerate(shape) if size >= num_parts and not (stored and stored[dim])]
    if not free:
        return None
    dim = min(free, key=lambda dim: (Fraction(length_of(shape[dim], num_parts, 0), shape[dim]), dim))
    axes = tuple(data_axis if each == dim else axis for each, axis in enumerate(stored or (None,) * len(shape)))
    return Placement(stored, axes, axes, data_axis)


WHOLE = Placement()
