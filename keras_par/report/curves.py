"""What the charts with curves have in common: thinning, gaps, marks of restarts."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from keras_par.report.svg import colour

Point = tuple[float, float]
Curve = list[list[Point]]  # in pieces, one an attempt
POINTS = 12_000  # of all curves of a chart
FEW_POINTS = 40  # and fewer are drawn as dots, too, since one alone would make no line
WIDE, HALF = (940, 300), (450, 250)


def thin(points: list[Point], limit: int) -> list[Point]:
    """At most about `limit` of `points`, the last among them."""
    stride = -(-len(points) // limit)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def plot(axes: Axes, pieces: Curve, limit: int, **style) -> None:
    """Draws a curve with gaps between its pieces, with about `limit` points and with dots if there are few."""
    gap = (math.nan, math.nan)
    points = [point for piece in pieces for point in [*thin(piece, max(limit // len(pieces), 2)), gap]]
    dots = {"marker": "o", "markersize": 3.5} if len(points) <= FEW_POINTS else {}
    axes.plot([x for x, _ in points], [y for _, y in points], **(style | dots))


def mark_restarts(axes: Axes, places: Sequence[float]) -> None:
    """Draws a dotted line at each restart."""
    for place in places:
        axes.axvline(place, color=colour("muted"), linewidth=1, linestyle=(0, (1, 3)))
        if len(places) <= 6:
            style: dict[str, Any] = {
                "va": "top",
                "fontsize": 11,
                "color": colour("muted"),
                "clip_on": True,
                "in_layout": False,
            }
            axes.text(place, 1.0, " restart", transform=axes.get_xaxis_transform(), **style)
