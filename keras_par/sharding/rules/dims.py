"""Which dims the arguments of operations mean."""


def dim_of(axis: int, ndim: int) -> int:
    """The dim, from 0, that an argument means for a tensor of `ndim` dims; raises ValueError if there is none."""
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"keras-par: axis {axis} is out of bounds of a divided tensor, which has {ndim} dim(s) here: give one from "
            f"{-ndim} to {ndim - 1}."
        )
    return axis % ndim
