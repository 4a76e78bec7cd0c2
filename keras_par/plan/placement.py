"""Where the parts of a variable lie: its value, the sum of its gradients, and the optimizer's state for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from keras_par.plan.layout import Axes, length_of


@dataclass(frozen=True)
class Placement:
    """How a variable is divided over a mesh; nothing is divided by an empty layout.

    Args:
        stored: for each dim the mesh axis that divides the value, or None.
        gradient: the same of the gradient that the optimizer gets.
        slots: the same of the optimizer's state.
        accumulator: the same of the sum of some steps' gradients, where an optimizer accumulates them.
        data_axis: the axis along which ranks have other rows, None where no strategy says so.
        is_gathered_on_use: True if operations gather a value that ranks with other rows divide, each time they need it.
    """

    stored: Axes = ()
    gradient: Axes = ()
    slots: Axes = ()
    accumulator: Axes = ()
    data_axis: str | None = None
    is_gathered_on_use: bool = False

    @property
    def divides_state(self) -> bool:
        """True if ranks with other rows divide the optimizer's state for a value that each of them stores."""
        return self.data_axis in self.slots and self.data_axis not in self.stored

    @property
    def part_dim(self) -> int | None:
        """The dim of which a rank updates a part, though it stores as much as ranks with other rows; None if none."""
        if self.data_axis not in self.gradient or self.data_axis in self.stored:
            return None
        return self.gradient.index(self.data_axis)

    @property
    def is_scattered_at_once(self) -> bool:
        """True if each gradient of such a part is scattered as soon as it is there, so that it leaves memory."""
        return self.part_dim is not None and self.data_axis in self.accumulator

    @property
    def is_summed_backward(self) -> bool:
        """True if ranks with other rows hold other parts: to read it gathers them, which sums its gradient backward."""
        return self.data_axis is not None and self.data_axis in self.stored


def alike(axes: Axes, data_axis: str | None) -> Placement:
    """Value, gradient and state divided in one way."""
    return Placement(axes, axes, axes, axes, data_axis)


def in_parts(
    shape: Sequence[int],
    stored: Axes,
    data_axis: str,
    num_parts: int,
    stage: Literal[1, 2, 3],
    by_elements: bool = True,
) -> Placement | None:
    """How a variable lies whose state, and more in later stages of ZeRO, ranks with other rows divide.

    The dim is the one whose largest part is the smallest, the first of several. None if no dim has as many elements.

    Args:
        shape: of the variable.
        stored: the other axes that divide its value.
        data_axis: along which ranks have other rows.
        num_parts: how many these are.
        stage: 1 divides the state; 2 gradients as well, each as soon as it is there; 3 the value, too.
        by_elements: False if the optimizer looks beyond single elements, so that it needs whole gradients in any stage.
    """
    free = [dim for dim, size in enumerate(shape) if size >= num_parts and not (stored and stored[dim])]
    if not free:
        return None
    dim = min(free, key=lambda dim: (Fraction(length_of(shape[dim], num_parts, 0), shape[dim]), dim))
    axes = tuple(data_axis if each == dim else axis for each, axis in enumerate(stored or (None,) * len(shape)))
    if stage == 3:
        return Placement(axes, axes, axes, axes, data_axis, is_gathered_on_use=True)
    if not by_elements:
        return Placement(stored, stored, axes, stored, data_axis)
    return Placement(stored, axes, axes, axes if stage == 2 else stored, data_axis)


WHOLE = Placement()
