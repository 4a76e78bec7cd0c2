"""Tables of fronts, which the search `dynamic` adds up and takes nodes out of.

Each cell of a table has a front: points of seconds and bytes of which none is better in both.
"""

import math
from dataclasses import dataclass, field

import numpy as np

LARGEST = 1 << 22  # points of a sum of two tables


@dataclass
class Limits:
    """Which points are kept.

    Args:
        width: how many a front may have.
        price: what a byte costs, in seconds, where only one is kept; infinite if bytes alone count.
        num_bytes: that a choice may take, above the least that each table takes.
        seconds: that a choice may cost, above the same.
        has_dropped: True once a front had more points than it may.
    """

    width: int = 1
    price: float = 0.0
    num_bytes: float = math.inf
    seconds: float = math.inf
    has_dropped: bool = False


@dataclass
class Fronts:
    """A table of fronts.

    Args:
        nodes: the dims.
        seconds: of shape (*states, points); infinite where there is no point.
        num_bytes: alike.
        origin: from what it was made, to go back.
    """

    nodes: tuple[int, ...]
    seconds: np.ndarray
    num_bytes: np.ndarray
    origin: "Origin" = field(default_factory=lambda: Origin())

    @property
    def width(self) -> int:
        """Points of a cell."""
        return self.seconds.shape[-1]

    def decide(self, choice: dict[int, int], point: int) -> None:
        """Writes down the states of the nodes that were eliminated on the way to a point."""
        waiting = [(self, point)]
        while waiting:
            fronts, place = waiting.pop()
            waiting += fronts.origin.back(fronts, choice, place)


class Origin:
    """Of a table that was given."""

    def back(self, fronts: Fronts, choice: dict[int, int], point: int) -> list[tuple[Fronts, int]]:
        """Writes down the state of a node that was eliminated; the tables that it was made of, with their points."""
        return []


@dataclass
class Sum(Origin):
    """Of the sum of two tables."""

    left: Fronts
    right: Fronts
    points: np.ndarray  # of shape (*states, points): the left's times the points of the right, plus the right's

    def back(self, fronts: Fronts, choice: dict[int, int], point: int) -> list[tuple[Fronts, int]]:
        """Both tables."""
        found = int(self.points[tuple(choice[node] for node in fronts.nodes)][point])
        left, right = divmod(found, self.right.width)
        return [(self.left, left), (self.right, right)]


@dataclass
class Narrowed(Origin):
    """Of fewer points of a table."""

    of: Fronts
    points: np.ndarray

    def back(self, fronts: Fronts, choice: dict[int, int], point: int) -> list[tuple[Fronts, int]]:
        """The table as it was before."""
        return [(self.of, int(self.points[tuple(choice[node] for node in fronts.nodes)][point]))]


@dataclass
class Minimum(Origin):
    """Of the elimination of a node."""

    of: Fronts
    node: int
    points: np.ndarray  # the state times the points of `of`, plus its point

    def back(self, fronts: Fronts, choice: dict[int, int], point: int) -> list[tuple[Fronts, int]]:
        """The node's state, and the table that has it."""
        found = int(self.points[tuple(choice[node] for node in fronts.nodes)][point])
        choice[self.node], before = divmod(found, self.of.width)
        return [(self.of, before)]


def worth_of(seconds: np.ndarray, num_bytes: np.ndarray, price: float) -> np.ndarray:
    """Seconds, with what the bytes cost."""
    return num_bytes if math.isinf(price) else seconds + price * num_bytes if price else seconds


def added(left: Fronts, right: Fronts, limits: Limits) -> Fronts:
    """The sum of two tables."""
    nodes = (*left.nodes, *(node for node in right.nodes if node not in left.nodes))
    while points_of(left, right) > LARGEST and max(left.width, right.width) > 1:
        wider = max(left, right, key=lambda each: each.width)
        half = narrowed(wider, max(wider.width // 2, 1), limits)
        left, right = (half if wider is left else left), (half if wider is right else right)

    def spread(fronts: Fronts, values: np.ndarray, is_left: bool) -> np.ndarray:
        order = [fronts.nodes.index(node) for node in nodes if node in fronts.nodes]
        shape = [values.shape[fronts.nodes.index(node)] if node in fronts.nodes else 1 for node in nodes]
        num_points = values.shape[-1]
        return values.transpose(*order, -1).reshape(*shape, *((num_points, 1) if is_left else (1, num_points)))

    def total(name: str) -> np.ndarray:
        sums = spread(left, getattr(left, name), True) + spread(right, getattr(right, name), False)
        return sums.reshape(*sums.shape[:-2], -1)

    seconds, num_bytes, points = front(total("seconds"), total("num_bytes"), limits)
    return Fronts(nodes, seconds, num_bytes, Sum(left, right, points))


def points_of(left: Fronts, right: Fronts) -> int:
    """How many points the sum of two tables has before any is dropped."""
    sizes = dict(zip(left.nodes, left.seconds.shape, strict=False)) | dict(
        zip(right.nodes, right.seconds.shape, strict=False)
    )
    return math.prod(sizes.values()) * left.width * right.width


def narrowed(fronts: Fronts, width: int, limits: Limits) -> Fronts:
    """A table with fewer points."""
    limits.has_dropped = True
    narrow = Limits(width, limits.price, limits.num_bytes, limits.seconds)
    seconds, num_bytes, points = front(fronts.seconds, fronts.num_bytes, narrow)
    return Fronts(fronts.nodes, seconds, num_bytes, Narrowed(fronts, points))


def eliminated(fronts: Fronts, node: int, limits: Limits) -> Fronts:
    """A table without one of its nodes, whose best states are taken."""
    dim = fronts.nodes.index(node)

    def joined(values: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(values, dim, -2)
        return moved.reshape(*moved.shape[:-2], -1)

    seconds, num_bytes, points = front(joined(fronts.seconds), joined(fronts.num_bytes), limits)
    nodes = (*fronts.nodes[:dim], *fronts.nodes[dim + 1 :])
    return Fronts(nodes, seconds, num_bytes, Minimum(fronts, node, points))


def front(seconds: np.ndarray, num_bytes: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the points along the last dim those that no other beats and that may be kept, and their places before."""
    width = limits.width
    if width == 1 == seconds.shape[-1]:
        return seconds, num_bytes, np.zeros(seconds.shape, int)
    if width == 1:
        points = worth_of(seconds, num_bytes, limits.price).argmin(-1)[..., None]
        return (*(np.take_along_axis(values, points, -1) for values in (seconds, num_bytes)), points)
    is_out = (num_bytes > limits.num_bytes) | (seconds > limits.seconds)
    seconds, num_bytes = np.where(is_out, np.inf, seconds), np.where(is_out, np.inf, num_bytes)
    order = np.lexsort((seconds, num_bytes), axis=-1)  # by bytes, then by seconds
    sorted_seconds = np.take_along_axis(seconds, order, -1)
    before = np.minimum.accumulate(sorted_seconds, -1)
    is_best = sorted_seconds < np.concatenate([np.full((*before.shape[:-1], 1), np.inf), before[..., :-1]], -1)
    rank = np.cumsum(is_best, -1) - 1
    count = rank[..., -1:] + 1
    if count.max(initial=1) > width:  # as many of them, evenly from the first to the last
        limits.has_dropped = True
        steps = np.maximum(count - 1, 1)
        slot = rank * (width - 1) // steps
        previous = np.concatenate([np.full((*slot.shape[:-1], 1), -1), np.where(is_best, slot, -1)[..., :-1]], -1)
        is_best &= (slot > np.maximum.accumulate(previous, -1)) | (count <= width) | (rank == count - 1)
    place = np.argsort(~is_best, axis=-1, kind="stable")[..., :width]
    points = np.take_along_axis(order, place, -1)
    is_real = np.take_along_axis(is_best, place, -1)
    used = max(int(is_real.sum(-1).max(initial=0)), 1)
    points, is_real = points[..., :used], is_real[..., :used]
    return (
        np.where(is_real, np.take_along_axis(seconds, points, -1), np.inf),
        np.where(is_real, np.take_along_axis(num_bytes, points, -1), np.inf),
        points,
    )
