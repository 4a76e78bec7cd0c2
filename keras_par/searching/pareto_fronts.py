"""Tables of fronts, which the search `dynamic` adds up and takes nodes out of.

Each cell of a table has a front: points of seconds and bytes of which none is better in both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

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

    def worth(self, seconds: np.ndarray, num_bytes: np.ndarray) -> np.ndarray:
        """Seconds, with what the bytes cost."""
        return num_bytes if math.isinf(self.price) else seconds + self.price * num_bytes if self.price else seconds


# Writes down the state of a node that was eliminated; gives the tables that a point was made of, with their points.
Origin = Callable[[dict[int, int], int], list[tuple["Fronts", int]]]


@dataclass
class Fronts:
    """A table of fronts.

    Args:
        nodes: the dims.
        seconds: of shape (*states, points); infinite where there is no point.
        num_bytes: alike.
        origin: from what a point was made, given the states that are known.
    """

    nodes: tuple[int, ...]
    seconds: np.ndarray
    num_bytes: np.ndarray
    origin: Origin = lambda choice, point: []

    @property
    def width(self) -> int:
        """Points of a cell."""
        return self.seconds.shape[-1]

    def decide(self, choice: dict[int, int], point: int) -> None:
        """Writes down the states of the nodes that were eliminated on the way to a point."""
        waiting = [(self, point)]
        while waiting:
            fronts, place = waiting.pop()
            waiting += fronts.origin(choice, place)


def pruned(
    nodes: tuple[int, ...], seconds: np.ndarray, num_bytes: np.ndarray, limits: Limits, origin: Origin
) -> Fronts:
    """A table with the points that may be kept of those along the last dim, whose `origin` is given."""
    seconds, num_bytes, points = front(seconds, num_bytes, limits)
    return Fronts(
        nodes,
        seconds,
        num_bytes,
        lambda choice, point: origin(choice, int(points[tuple([choice[node] for node in nodes])][point])),
    )


def added(left: Fronts, right: Fronts, limits: Limits) -> Fronts:
    """The sum of two tables."""
    while num_points(left, right) > LARGEST and max(left.width, right.width) > 1:
        if left.width > right.width:
            left = narrowed(left, limits)
        else:
            right = narrowed(right, limits)
    nodes = (*left.nodes, *(node for node in right.nodes if node not in left.nodes))

    def spread(fronts: Fronts, values: np.ndarray, is_left: bool) -> np.ndarray:
        order = [fronts.nodes.index(node) for node in nodes if node in fronts.nodes]
        shape = [values.shape[fronts.nodes.index(node)] if node in fronts.nodes else 1 for node in nodes]
        return values.transpose(*order, -1).reshape(*shape, *((-1, 1) if is_left else (1, -1)))

    def total(of_left: np.ndarray, of_right: np.ndarray) -> np.ndarray:
        sums = spread(left, of_left, True) + spread(right, of_right, False)
        return sums.reshape(*sums.shape[:-2], -1)

    def origin(choice: dict[int, int], point: int) -> list[tuple[Fronts, int]]:
        return [(left, point // right.width), (right, point % right.width)]

    seconds, num_bytes = total(left.seconds, right.seconds), total(left.num_bytes, right.num_bytes)
    return pruned(nodes, seconds, num_bytes, limits, origin)


def num_points(left: Fronts, right: Fronts) -> int:
    """Of the sum of two tables before any is dropped."""
    sizes = {node: size for each in (left, right) for node, size in zip(each.nodes, each.seconds.shape, strict=False)}
    return math.prod(sizes.values()) * left.width * right.width


def narrowed(fronts: Fronts, limits: Limits) -> Fronts:
    """A table with half the points."""
    limits.has_dropped = True
    narrow = Limits(max(fronts.width // 2, 1), limits.price, limits.num_bytes, limits.seconds)
    return pruned(fronts.nodes, fronts.seconds, fronts.num_bytes, narrow, lambda choice, point: [(fronts, point)])


def eliminated(fronts: Fronts, node: int, limits: Limits) -> Fronts:
    """A table without one of its nodes, whose best states are taken."""
    dim = fronts.nodes.index(node)

    def joined(values: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(values, dim, -2)
        return moved.reshape(*moved.shape[:-2], -1)

    def origin(choice: dict[int, int], point: int) -> list[tuple[Fronts, int]]:
        choice[node], before = divmod(point, fronts.width)
        return [(fronts, before)]

    nodes = (*fronts.nodes[:dim], *fronts.nodes[dim + 1 :])
    return pruned(nodes, joined(fronts.seconds), joined(fronts.num_bytes), limits, origin)


def front(seconds: np.ndarray, num_bytes: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the points along the last dim those that no other beats and that may be kept, and their places before."""
    width = limits.width
    if width == 1 == seconds.shape[-1]:
        return seconds, num_bytes, np.zeros(seconds.shape, int)
    if width == 1:
        points = limits.worth(seconds, num_bytes).argmin(-1)[..., None]
        return np.take_along_axis(seconds, points, -1), np.take_along_axis(num_bytes, points, -1), points
    is_out = (num_bytes > limits.num_bytes) | (seconds > limits.seconds)
    seconds, num_bytes = np.where(is_out, np.inf, seconds), np.where(is_out, np.inf, num_bytes)
    order = np.lexsort((seconds, num_bytes), axis=-1)  # by bytes, then by seconds
    in_order = np.take_along_axis(seconds, order, -1)
    least = np.minimum.accumulate(in_order, -1)
    is_best = in_order < np.concatenate([np.full_like(least[..., :1], np.inf), least[..., :-1]], -1)
    count = is_best.sum(-1, keepdims=True)
    used = int(count.max(initial=1))
    slots = np.broadcast_to(np.arange(min(width, used)), (*count.shape[:-1], min(width, used)))
    if used > width:  # as many of them, evenly from the first to the last
        limits.has_dropped = True
        slots = np.where(count > width, slots * (count - 1) // (width - 1), slots)
    places = np.take_along_axis(np.argsort(~is_best, -1, kind="stable"), slots, -1)
    points, is_real = np.take_along_axis(order, places, -1), slots < count
    return (
        np.where(is_real, np.take_along_axis(seconds, points, -1), np.inf),
        np.where(is_real, np.take_along_axis(num_bytes, points, -1), np.inf),
        points,
    )
