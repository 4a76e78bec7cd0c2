"""Draws the pictures of the docs as SVG, so that they say what the text says: `python docs/pictures/draw.py`."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH = 420  # a phone's, on which the text still has its size
RANKS = ("rank0", "rank1")  # classes of what belongs to each rank
WHOLE, PAPER = "whole", "paper"  # what all ranks hold, and what is empty
# The second line is for those whose system is dark: a picture in a page cannot see what the page's switch says.
COLOURS = """
text{fill:#1f2937} .line{stroke:#6b7280} #tip{fill:#6b7280}
.paper{fill:#fff} .whole{fill:#e5e7eb} .rank0{fill:#bfdbfe} .rank1{fill:#fde68a}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb} .line{stroke:#9ca3af} #tip{fill:#9ca3af}
.paper{fill:#1e2129} .whole{fill:#374151} .rank0{fill:#1e4079} .rank1{fill:#6b4e0b}}"""


@dataclass
class Picture:
    """Shapes on a sheet of a height."""

    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, text: str = "", kind: str = PAPER) -> None:
        """A box, with lines of text in its middle."""
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.shapes.append(f'<rect {place} rx="4" class="{kind} line"/>')
        self.text(x + width / 2, y + height / 2, text)

    def text(self, x: float, y: float, text: str) -> None:
        """Lines of text around a point."""
        lines = text.split("\n") if text else []
        for place, line in enumerate(lines):
            at = y + (place - (len(lines) - 1) / 2) * 16 + 4.5
            self.shapes.append(f'<text x="{x}" y="{at:.1f}">{escape(line)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """From one point to another."""
        line = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        self.shapes.append(f'<line {line} class="line" stroke-width="1.5" marker-end="url(#head)"/>')

    def svg(self) -> str:
        """As a file has it."""
        head = '<path id="tip" d="M0,0 L8,4 L0,8 z"/>'
        marker = f'<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{head}</marker>'
        return "\n".join(
            [
                f'<svg xmlns="{NAMESPACE}" width="{WIDTH}" viewBox="0 0 {WIDTH} {self.height}" role="img"',
                '  font-family="system-ui, sans-serif" font-size="13" text-anchor="middle">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{COLOURS}</style>",
                f"<defs>{marker}</defs>",
                f'<rect width="{WIDTH}" height="{self.height}" rx="8" class="{PAPER}"/>',
                *self.shapes,
                "</svg>",
                "",
            ]
        )


def step() -> Picture:
    """A step of data parallel."""
    picture = Picture(450, "A step of two ranks")
    picture.text(210, 18, "a global batch")
    for rank, kind in enumerate(RANKS):
        left, middle = 20 + 210 * rank, 105 + 210 * rank
        picture.box(60 + 150 * rank, 32, 150, 40, f"rows of rank {rank}", kind)
        picture.arrow(135 + 150 * rank, 72, middle, 108)
        picture.box(left, 108, 170, 52, f"rank {rank}\nforward, backward", kind)
        picture.arrow(middle, 160, middle, 192)
        picture.box(left, 192, 170, 40, "its gradients", kind)
        picture.arrow(middle, 232, 170 + 80 * rank, 272)
        picture.arrow(170 + 80 * rank, 334, middle, 374)
        picture.box(left, 374, 170, 52, "the same update\nof all weights", WHOLE)
    picture.box(110, 272, 200, 62, "all-reduce:\nthe sum, on both ranks", WHOLE)
    return picture


def layout() -> Picture:
    """A block of two dense layers, divided by columns and by rows."""
    picture = Picture(490, "A block of two Dense layers, divided over two ranks")
    picture.box(150, 14, 120, 46, "x\n(b, h)", WHOLE)
    for rank, kind in enumerate(RANKS):
        left, middle = 20 + 210 * rank, 105 + 210 * rank
        picture.arrow(180 + 60 * rank, 60, middle, 92)
        picture.box(left, 92, 170, 66, f'up/kernel\ncolumns of rank {rank}\n(None, "model")', kind)
        picture.arrow(middle, 158, middle, 186)
        picture.box(left, 186, 170, 52, "relu(x W)\n(b, 4h / 2)", kind)
        picture.arrow(middle, 238, middle, 266)
        picture.box(left, 266, 170, 66, f'down/kernel\nrows of rank {rank}\n("model", None)', kind)
        picture.arrow(middle, 332, 170 + 80 * rank, 372)
    picture.box(110, 372, 200, 66, "all-reduce:\nthe sum of both\n(b, h)", WHOLE)
    picture.text(210, 464, "one sum forward, one backward")
    return picture


def zero() -> Picture:
    """What a rank holds in each stage of ZeRO."""
    picture = Picture(300, "What one of four ranks holds of a model with Adam")
    for middle, what in ((101, "weights"), (181, "gradients"), (272, "state of Adam")):
        picture.text(middle, 25, what)
    for stage, formula in enumerate(("4 P", "2 P + 2 P / N", "P + 3 P / N", "4 P / N")):
        y = 45 + 62 * stage
        picture.text(32, y + 22, f"zero={stage}")
        for x, width, is_divided in ((66, 70, stage > 2), (146, 70, stage > 1), (226, 92, stage > 0)):
            picture.box(x, y, width, 44, "" if is_divided else "whole", PAPER if is_divided else WHOLE)
            if is_divided:
                picture.box(x, y, width / 4, 44, "", RANKS[0])
                picture.text(x + width * 5 / 8, y + 22, "1/4")
        picture.text(369, y + 22, formula)
    return picture


def logo(colour: str) -> str:
    """A K of which two ranks hold a half each."""
    bars = '<path d="M4 3h5v18H4z"/><path d="M10 12 16 3h5l-6 9z"/><path d="M10 12h5l6 9h-5z" opacity=".55"/>'
    return f'<svg xmlns="{NAMESPACE}" viewBox="0 0 24 24" fill="{colour}"><title>keras-par</title>{bars}</svg>\n'


def pictures() -> dict[str, str]:
    """The content of each file."""
    found = {name: draw().svg() for name, draw in (("step", step), ("layout", layout), ("zero", zero))}
    return found | {"logo": logo("#fff"), "icon": logo("#4051b5")}


if __name__ == "__main__":
    for name, content in pictures().items():
        (FOLDER / f"{name}.svg").write_text(content)
