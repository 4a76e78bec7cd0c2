"""The meshes that a search tries: ranks by rows of the batch, and by one or two other axes."""

from collections.abc import Iterator, Sequence

DATA, MODEL, MODEL_2 = "batch", "model", "model_2"
AXES = (DATA, MODEL, MODEL_2)
NUM_AXES = (2, 3)


def named(sizes: Sequence[int]) -> dict[str, int]:
    """A mesh of these sizes."""
    return dict(zip(AXES, sizes, strict=False))


def meshes(num_ranks: int, num_axes: int = 2) -> list[dict[str, int]]:
    """All ways to lay ranks out over as many axes at most; those that need fewer have fewer."""
    return [
        named((by_rows, by_model, rest) if rest > 1 else (by_rows, by_model))
        for by_rows, by_model, rest in factorizations(num_ranks, 3)
        if rest == 1 or (num_axes == 3 and by_model > 1)
    ]


def factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many."""
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in factorizations(number // first, count - 1))


def mesh_of(sizes: Sequence[int] | None) -> dict[str, int] | None:
    """The mesh that is asked for, None for none.

    Raises:
        ValueError: it has other than two or three sizes.
    """
    if sizes is not None and len(sizes) not in NUM_AXES:
        raise ValueError(
            f"keras-par: mesh={tuple(sizes)!r} has not two or three sizes: give ranks by rows and by the other axes."
        )
    return None if sizes is None else named(sizes)


def require_axes(num_axes: int) -> None:
    """Raises ValueError if meshes cannot have so many axes."""
    if num_axes not in NUM_AXES:
        raise ValueError(f"keras-par: axes={num_axes!r} cannot be searched: give 2 or 3.")
