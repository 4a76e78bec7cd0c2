"""The search `recursive`: the ranks are halved again and again, and the heaviest operations choose first.

As D-Rec does it (Wang et al., 2021): each halving goes to the axis of rows or to another, whichever is fastest. For a
mesh, variables take the layout that costs least beside the others', until none changes; from several starts, as some
layouts are only better together.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from keras_par.plan.layout import Axes
from keras_par.searching.maker import Maker
from keras_par.searching.standing import Standing

SWEEPS = 8
WIDTHS = range(2, 9)  # of neighbours that change together


def halvings(num_ranks: int, cost: Callable[..., float], num_axes: int = 2) -> list[tuple[int, ...]]:
    """The meshes of all ranks, by rows and by the other axes, that halving looks at, and those beside the fastest.

    Args:
        num_ranks: of the job.
        cost: seconds of a mesh of such sizes, infinite where it cannot be.
        num_axes: of the meshes.
    """
    mesh: tuple[int, ...] = (1,) * num_axes
    tried = [mesh]
    for factor in factors(num_ranks):
        tried = [grown(mesh, axis, factor) for axis in range(num_axes)]
        mesh = min(tried, key=lambda each: cost(*each))
    while beside := [each for each in neighbours(mesh) if each not in tried]:
        tried += beside
        mesh = min((mesh, *beside), key=lambda each: cost(*each))
    return tried


def grown(mesh: tuple[int, ...], axis: int, factor: int) -> tuple[int, ...]:
    """A mesh with a multiple of ranks along an axis."""
    return (*mesh[:axis], mesh[axis] * factor, *mesh[axis + 1 :])


def neighbours(mesh: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The meshes of as many ranks where one factor goes to another axis."""
    found = []
    for giver, taker in itertools.permutations(range(len(mesh)), 2):
        for factor in sorted(set(factors(mesh[giver]))):
            less = (*mesh[:giver], mesh[giver] // factor, *mesh[giver + 1 :])
            found.append(grown(less, taker, factor))
    return found


def factors(number: int) -> list[int]:
    """Its primes, the largest first."""
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return sorted(found, reverse=True)


def solve(maker: Maker, capacity: float = math.inf) -> list[int] | None:
    """States of all nodes that fit into a memory, None if none were found.

    Comes from several starts to where neither another state of one variable nor of two neighbours is better; then the
    best of these takes over what neighbours have in the others.
    """
    order = in_order_of_reading(maker)
    single, pairs = [(node,) for node in maker.free_nodes], list(itertools.pairwise(order))
    found = [standing for start in starts(maker) if (standing := standing_at(maker, start, capacity)) is not None]
    for standing in found:
        descend(standing, single)
        descend(standing, pairs)
    if not found:
        return None
    best = min(found, key=lambda each: each.score)
    others = [{node: each.choice[node] for node in order} for each in found]
    for _ in range(SWEEPS):
        is_better = [cross(best, other, order) for other in others]
        if not any(is_better):
            break
        descend(best, single)
    return best.choice if best.score[0] == 0 else None


def standing_at(maker: Maker, variables: dict[int, int], capacity: float) -> Standing | None:
    """What follows from states of the variables, None if layers that repeat would differ."""
    choice = maker.complete(variables)
    return None if choice is None else Standing(maker, choice, capacity)


def descend(standing: Standing, groups: Sequence[tuple[int, ...]]) -> None:
    """Looks at each group of nodes until none changes any more."""
    looked = [-1] * len(groups)  # what had changed when nothing better was found for each
    for _ in range(SWEEPS):
        before = standing.num_changes
        for number, group in enumerate(groups):
            if looked[number] != standing.num_changes and not improve(standing, group):
                looked[number] = standing.num_changes
        if standing.num_changes == before:
            break


def improve(standing: Standing, group: tuple[int, ...]) -> bool:
    """Gives nodes the states that are best together beside the others'; True if these are others."""
    states = (range(len(standing.maker.problem.states[node])) for node in group)
    return any([standing.better(dict(zip(group, places, strict=True))) for places in itertools.product(*states)])


def cross(standing: Standing, other: Mapping[int, int], order: Sequence[int]) -> bool:
    """Takes over what a few neighbours have in other states wherever that is better; True if it is somewhere."""
    windows = (order[first : first + width] for first in range(len(order)) for width in WIDTHS)
    return any([standing.better({node: other[node] for node in window}) for window in windows])


def starts(maker: Maker) -> list[dict[int, int]]:
    """All variables whole, divided along the first dim that can be, or along the last; and these stored in parts."""
    stored = maker.setting.data_axis

    def alike(states: Sequence[Axes], is_divided: bool, is_stored: bool) -> list[int]:
        kinds = [(any(axis not in (None, stored) for axis in axes), stored in axes) for axes in states]
        wanted = ((is_divided, is_stored), (is_divided, False), (False, is_stored))
        return next(([n for n, kind in enumerate(kinds) if kind == each] for each in wanted if each in kinds), [0])

    once = dict.fromkeys(maker.again.values(), 0)
    found = [
        once | {n: alike(maker.problem.states[n], is_divided, is_stored)[place] for n in maker.variable_nodes}
        for is_stored in (False, True)
        for is_divided, place in ((False, 0), (True, 0), (True, -1))
    ]
    return [state for number, state in enumerate(found) if state not in found[:number]]


def in_order_of_reading(maker: Maker) -> list[int]:
    """The nodes of variables as operations read them one after another, and the other free ones."""
    numbers = (number for operation in maker.trace.operations for number in operation.operands if number >= 0)
    read = (maker.node_of[maker.classes[number]] for number in numbers if maker.trace.tensors[number].path)
    return [*dict.fromkeys(read), *maker.again.values()]


def in_order(maker: Maker, nodes: Sequence[int], capacity: float = math.inf) -> list[int] | None:
    """As `solve`, from whole variables, with one look at each node, in this order."""
    standing = standing_at(maker, dict.fromkeys(maker.free_nodes, 0), capacity)
    if standing is None:
        return None
    for node in nodes:
        improve(standing, (node,))
    return standing.choice if standing.score[0] == 0 else None
