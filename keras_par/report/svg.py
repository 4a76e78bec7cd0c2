"""Turns a matplotlib drawing into SVG for the page, in a wide and a narrow size, with the page's colours."""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NARROW = 370  # pixels
NAMES = (
    *("ink", "muted", "grid", "paper", "train", "validation", "faint", "bad", "warn", "note", "good"),
    *("script", "data", "forward-backward", "reduce", "callback"),
    *(f"rank-{number}" for number in range(6)),
)
# matplotlib knows no CSS variables: it draws in a colour that stands for one, which is put in its place afterwards.
STANDS_FOR = {name: f"#0000{number:02x}" for number, name in enumerate(NAMES, start=1)}
STYLE: dict[Any, Any] = {
    **{"svg.fonttype": "none", "text.parse_math": False, "font.size": 12.0, "path.simplify_threshold": 0.3},
    **{"text.color": STANDS_FOR["ink"], "axes.labelcolor": STANDS_FOR["muted"]},
    **{"xtick.color": STANDS_FOR["muted"], "ytick.color": STANDS_FOR["muted"]},
    **{"axes.edgecolor": STANDS_FOR["grid"], "axes.spines.top": False, "axes.spines.right": False},
    **{"axes.titlecolor": STANDS_FOR["muted"], "axes.titlesize": 12.0, "axes.titlelocation": "left"},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": STANDS_FOR["grid"], "grid.linewidth": 0.8},
    **{"xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0},
    **{"lines.linewidth": 1.6, "lines.solid_capstyle": "round", "axes.formatter.useoffset": False},
}


@dataclass(frozen=True)
class Chart:
    """A chart of the page."""

    title: str
    svg: Markup
    legend: list[tuple[str, str]] = field(default_factory=list)  # (text, name of a colour)
    note: str = ""


def colour(name: str) -> str:
    """What to draw in so that it appears in the page's colour of this name, in light and in dark."""
    return STANDS_FOR[name]


def draw(name: str, label: str, size: tuple[int, int], paint: Callable[[Axes, bool], None]) -> Markup:
    """The SVG of what `paint(axes, is_narrow)` draws, twice: in `size` (pixels) and for narrow screens.

    Args:
        name: tells this chart's ids from those of the page's other charts.
        label: read out instead of the picture.
    """
    wide = one_size(f"{name}-wide", label, size, lambda axes: paint(axes, False))
    narrow = one_size(f"{name}-narrow", label, (NARROW, size[1]), lambda axes: paint(axes, True))
    return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')


def one_size(name: str, label: str, size: tuple[int, int], paint: Callable[[Axes], None]) -> str:
    """One drawing of `size` pixels as an <svg> element; the same drawing gives the same text."""
    text = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has other fonts
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        paint(axes)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return fit_into_page(text.getvalue(), label, size)


def fit_into_page(text: str, label: str, size: tuple[int, int]) -> str:
    """The <svg> of a file without the rest, in the page's colours, with fewer digits and without needless ids."""
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[a-zA-Z0-9_.]*">', "<g>", body)
    body = re.sub(r'\b(?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), body)
    body = re.sub(r'style="[^"]*"', lambda found: re.sub(r"#0000[0-9a-f]{2}", of_page, found[0]), body)
    head = f'<svg viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" role="img" aria-label="{escape(label)}">'
    return head + re.sub(r"\n\s*", "\n", body)


def of_page(found: re.Match[str]) -> str:
    """The page's colour that the found one stands for."""
    return next((f"var(--{name})" for name, stand_in in STANDS_FOR.items() if stand_in == found[0]), found[0])
