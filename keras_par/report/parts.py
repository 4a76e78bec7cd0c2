"""What a section of the page consists of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from keras_par.report.svg import Chart


@dataclass(frozen=True)
class Bar:
    """A cell that shows shares of the longest bar of its column."""

    parts: list[tuple[str, float]]  # (name of a colour, percent)


@dataclass(frozen=True)
class Table:
    """Columns with their rows; the columns in `words` hold text, all others numbers or bars."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Bar]]
    words: frozenset[str] = frozenset({"rank", "host"})


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    id: str
    title: str
    lead: str
    charts: list[Chart] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)  # of the table's bars
    table: Table | None = None
    missing: str = ""  # a sentence in place of charts and table
