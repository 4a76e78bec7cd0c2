"""Names ranks in a sentence, which stays readable if there are thousands of them."""

from collections.abc import Iterable
from itertools import groupby

FEW, MOST_RUNS = 8, 8


def named(numbers: Iterable[int]) -> str:
    """The ranks as "rank 3", "ranks 0, 1 and 2", "ranks 0 to 6 and 8 to 9999" or "ranks 1, 3, ... and 4992 more"."""
    numbers = sorted(numbers)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    parts = [str(number) for number in numbers] if len(numbers) <= FEW else runs(numbers)
    return f"ranks {listed(parts)}"


def listed(parts: list[str]) -> str:
    """A list in words."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def runs(numbers: list[int]) -> list[str]:
    """Numbers that follow each other as one part, and at the end how many are left out."""
    grouped = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    shown = grouped[:MOST_RUNS]
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in shown]
    left = len(numbers) - sum(map(len, shown))
    return [*parts, f"{left} more"] if left else parts
