"""The meshes that a search tries: ranks by rows of the batch, and by one or two other axes."""

import itertools
from collections.abc import Callable, Iterator, Sequence

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


def halvings(num_ranks: int, cost: Callable[..., float], num_axes: int = 2) -> list[tuple[int, ...]]:
    """The meshes of all ranks that the search `recursive` looks at, as D-Rec does (Wang et al., 2021).

    The ranks are halved again and again, each time along the axis where that is fastest; then meshes beside the fastest
    are looked at, in which one factor goes to another axis.

    Args:
        num_ranks: of the job.
        cost: seconds of a mesh of such sizes, infinite where it cannot be.
        num_axes: of the meshes.
    """

    def grown(mesh: tuple[int, ...], axis: int, factor: int) -> tuple[int, ...]:
        return (*mesh[:axis], mesh[axis] * factor, *mesh[axis + 1 :])

    mesh: tuple[int, ...] = (1,) * num_axes
    tried = [mesh]
    for factor in reversed(factors(num_ranks)):
        tried = [grown(mesh, axis, factor) for axis in range(num_axes)]
        mesh = min(tried, key=lambda each: cost(*each))
    while True:
        beside = [
            grown((*mesh[:giver], mesh[giver] // factor, *mesh[giver + 1 :]), taker, factor)
            for giver, taker in itertools.permutations(range(num_axes), 2)
            for factor in sorted(set(factors(mesh[giver])))
        ]
        beside = [each for each in beside if each not in tried]
        if not beside:
            return tried
        tried += beside
        mesh = min((mesh, *beside), key=lambda each: cost(*each))


def factors(number: int) -> list[int]:
    """Its primes, the smallest first."""
    if number == 1:
        return []
    first = next(each for each in range(2, number + 1) if number % each == 0)
    return [first, *factors(number // first)]
