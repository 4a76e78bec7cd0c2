"""Draws the pictures of the docs as SVG, so that they say what the text says: `python docs/pictures/draw.py`."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
INK, PAPER, LINE = "#1f2937", "#ffffff", "#6b7280"
RANKS = ("#bfdbfe", "#fde68a", "#bbf7d0", "#fecaca")  # a colour for what belongs to each rank
WHOLE = "#e5e7eb"  # what all ranks hold


@dataclass
class Picture:
    """Shapes on a sheet of a width and a height."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, text: str = "", fill: str = PAPER) -> None:
        """A box, with lines of text in its middle."""
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.shapes.append(f'<rect {place} rx="4" fill="{fill}" stroke="{LINE}"/>')
        self.text(x + width / 2, y + height / 2, text)

    def text(self, x: float, y: float, text: str, size: int = 13, anchor: str = "middle") -> None:
        """Lines of text around a point."""
        lines = text.split("\n") if text else []
        for place, line in enumerate(lines):
            at = y + (place - (len(lines) - 1) / 2) * (size + 3) + size * 0.35
            self.shapes.append(
                f'<text x="{x}" y="{at:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(line)}</text>'
            )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """From one point to another."""
        line = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        self.shapes.append(f'<line {line} stroke="{LINE}" stroke-width="1.5" marker-end="url(#head)"/>')

    def svg(self) -> str:
        """As a file has it."""
        head = f'<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/>'
        marker = f'<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{head}</marker>'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"',
                f'  font-family="system-ui, sans-serif" fill="{INK}">',
                f"<title>{escape(self.title)}</title>",
                f"<defs>{marker}</defs>",
                f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>',
                *self.shapes,
                "</svg>",
                "",
            ]
        )


def step() -> Picture:
    """A step of data parallel."""
    picture = Picture(800, 250, "A step of two ranks")
    picture.box(20, 75, 100, 50, "rows of rank 0", RANKS[0])
    picture.box(20, 125, 100, 50, "rows of rank 1", RANKS[1])
    picture.text(70, 55, "a global batch")
    for rank, y in enumerate((30, 160)):
        colour, middle = RANKS[rank], y + 30
        picture.arrow(120, 100 + 50 * rank, 180, middle)
        picture.box(180, y, 130, 60, f"rank {rank}\nforward, backward", colour)
        picture.arrow(310, middle, 370, middle)
        picture.box(370, y, 90, 60, "its gradients", colour)
        picture.arrow(460, middle, 500, 105 + 40 * rank)
        picture.arrow(610, 105 + 40 * rank, 650, middle)
        picture.box(650, y, 130, 60, "the same update\nof all weights", WHOLE)
    picture.box(500, 85, 110, 80, "all-reduce:\nthe sum,\non both ranks", WHOLE)
    return picture


def layout() -> Picture:
    """A block of two dense layers, divided by columns and by rows."""
    picture = Picture(760, 290, "A block of two Dense layers, divided over two ranks")
    picture.box(20, 105, 70, 80, "x\n(b, h)", WHOLE)
    for rank, y in enumerate((40, 165)):
        colour = RANKS[rank]
        picture.arrow(90, 130 + 30 * rank, 140, y + 45)
        picture.box(140, y, 110, 90, f"up/kernel\ncolumns\nof rank {rank}", colour)
        picture.arrow(250, y + 45, 300, y + 45)
        picture.box(300, y, 100, 90, "relu(x W)\n(b, 4h / 2)", colour)
        picture.arrow(400, y + 45, 450, y + 45)
        picture.box(450, y, 110, 90, f"down/kernel\nrows\nof rank {rank}", colour)
        picture.arrow(560, y + 45, 610, 130 + 30 * rank)
    picture.box(610, 105, 130, 80, "all-reduce:\nthe sum of both\n(b, h)", WHOLE)
    picture.text(195, 22, '(None, "model")')
    picture.text(505, 22, '("model", None)')
    picture.text(380, 275, "one sum forward, one backward")
    return picture


def zero() -> Picture:
    """What a rank holds in each stage of ZeRO."""
    picture = Picture(760, 300, "What one of four ranks holds of a model with Adam")
    for place, what in enumerate(("weights", "gradients", "state of Adam")):
        picture.text((190, 330, 525)[place], 25, what)
    for stage, formula in enumerate(("4 P", "2 P + 2 P / N", "P + 3 P / N", "4 P / N")):
        y = 45 + 62 * stage
        picture.text(60, y + 22, f"zero={stage}")
        for x, width, is_divided in ((130, 120, stage > 2), (270, 120, stage > 1), (410, 230, stage > 0)):
            picture.box(x, y, width, 44, "" if is_divided else "whole", PAPER if is_divided else WHOLE)
            if is_divided:
                picture.box(x, y, width / 4, 44, "1/4", RANKS[0])
        picture.text(700, y + 22, formula)
    return picture


PICTURES = {"step": step, "layout": layout, "zero": zero}


def main() -> None:
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
