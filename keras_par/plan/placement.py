"""Where the parts of a variable lie: its value, the sum of its gradients, and the optimizer's state for it."""

from dataclasses import dataclass

from keras_par.plan.layout import Axes


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
    def is_summed_backward(self) -> bool:
        """True if ranks with other rows hold other parts: to read it gathers them, which sums its gradient backward."""
        return self.data_axis is not None and self.data_axis in self.stored


def alike(axes: Axes, data_axis: str | None) -> Placement:
    """Value, gradient and state divided in one way."""
    return Placement(axes, axes, axes, data_axis)


WHOLE = Placement()
