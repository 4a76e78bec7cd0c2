"""Compares what the ranks are about to train, so that two different models are told apart before step 1."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

Entry = list  # [name, shape, dtype], as JSON carries it


def canonical_names(paths: Sequence[str]) -> list[str]:
    """Variable paths with Keras's automatic numbers replaced by the order in which they first appear.

    "dense_7/kernel", "dense_9/kernel" and "dense/kernel", "dense_1/kernel" become the same, because the numbers
    only count what the process built before.
    """
    seen: dict[str, dict[str, int]] = {}

    def rename(part: str) -> str:
        stem, _, number = part.rpartition("_") if re.search(r"_\d+$", part) else (part, "", "")
        order = seen.setdefault(stem, {})
        return f"{stem}#{order.setdefault(number, len(order))}"

    return ["/".join(rename(part) for part in path.split("/")) for path in paths]


def first_difference(fingerprints: Sequence[Sequence[Entry]]) -> str | None:
    """One phrase naming the first entry in which some rank differs from rank 0, or None if all agree.

    Args:
        fingerprints: one list of [name, shape, dtype] for each rank, in rank order.
    """
    for position, entries in enumerate(zip_longest(*fingerprints)):
        others = [rank for rank, entry in enumerate(entries) if entry != entries[0]]
        if others:
            ranks = ", ".join(map(str, others))
            plural = "s" if len(others) > 1 else ""
            return (
                f"variable {position} is {describe(entries[0])} on rank 0 "
                f"but {describe(entries[others[0]])} on rank{plural} {ranks}"
            )
    return None


def first_unequal(answers: Sequence[Mapping[str, Any]], skipped: Collection[str] = ()) -> tuple[str, int] | None:
    """The first key whose value is not rank 0's on some rank, and the first such rank; None if all agree.

    Args:
        answers: one for each rank, in rank order; a key that is missing counts as None.
        skipped: keys whose values may differ.
    """
    for key in dict.fromkeys(key for answer in answers for key in answer if key not in skipped):
        values = [answer.get(key) for answer in answers]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            return key, other
    return None


def describe(entry: Entry | None) -> str:
    if entry is None:
        return "missing"
    name, shape, dtype = entry
    return f"'{name.replace('#0', '').replace('#', '_')}' {tuple(shape)} {dtype}"
