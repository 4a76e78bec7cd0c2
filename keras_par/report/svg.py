"""Turns a matplotlib drawing into SVG for the page, with the page's colours."""

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BROAD = 500  # pixels; what is broader is scrolled on narrow screens
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


def draw(name: str, label: str, size: tuple[int, int], paint: Callable[[Axes], None]) -> Markup:
    """The SVG of what `paint(axes)` draws; the same drawing gives the same text.

    Args:
        name: tells this chart's ids from those of the page's other charts.
        label: read out instead of the picture.
        size: width and height in pixels; on narrow screens a wide chart is scrolled.
    """
    text = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has other fonts
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        paint(axes)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Markup(fit_into_page(text.getvalue(), label, size))


def fit_into_page(text: str, label: str, size: tuple[int, int]) -> str:
    """The picture of an SVG file for a page: in the page's colours, without the file's own style and needless ids."""
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if local_name(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = local_name(element.tag)
        element.attrib = {local_name(name): in_colours_of_page(value) for name, value in element.attrib.items()}
        if element.tag == "g":
            element.attrib.pop("id", None)
        element.tail = None
    width = str(size[0])
    root.attrib = {"viewBox": f"0 0 {width} {size[1]}", "width": width, "role": "img", "aria-label": label}
    if size[0] > BROAD:
        root.attrib["class"] = "broad"
    return f'<div class="chart">{ElementTree.tostring(root, encoding="unicode")}</div>'


def local_name(name: str) -> str:
    """A name without its namespace, which HTML does without."""
    return name.rpartition("}")[2]


def in_colours_of_page(text: str) -> str:
    """A style in which each colour that stands for one of the page's has become that."""
    for name, stand_in in STANDS_FOR.items():
        text = text.replace(stand_in, f"var(--{name})")
    return text
