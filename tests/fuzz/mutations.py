"""Damages texts, JSON and lists of words at random, as users, disks and other programs do."""

import copy
import random
from collections.abc import Sequence
from typing import Any

DIGITS = "9" * 31
WORDS = (
    *("", " ", "0", "-1", "1", "2", "1.5", DIGITS, "9" * 5000, "1e999", "nan", "inf", "true", "null"),
    *("0x" + "f" * 5000, "²", "٣", "\udcff", "\u202e", "é", "a b", "a=b", "..", "../x", "x" * 5000, "-", "--", "="),
    *("[", "{", "(" * 500, "[" * 3000, "'", '"', '"""', "#", "\\", "\n", "\r\n", "\t", ",", ":", ".", "*", "(a"),
    *("a{99999999999}", "(?i", "%s", "$(x)"),
)
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 10**30, 0.5, float("inf"), float("nan"), "", "0", "1", "²", DIGITS, "x" * 5000),
    *("\udcff", [], {}, [[]], [None], {"a": 1}, [0] * 50),
)


def text(draw: random.Random, begin: str, most: int = 3) -> bytes:
    """A text with some damage."""
    content = begin
    for _ in range(draw.randrange(most + 1)):
        content = damaged(draw, content)
    data = bytearray(content.encode(errors="surrogatepass"))
    for _ in range(draw.choice((0, 0, 0, 1, 3))):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.1 else data)


def damaged(draw: random.Random, content: str) -> str:
    """A text with one change: a word more, a piece less or twice, or lines in another order."""
    begin, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    kind = draw.randrange(6)
    if kind == 0:
        return content[:begin] + draw.choice(WORDS) + content[begin:]
    if kind == 1:
        return content[:begin] + draw.choice(WORDS) + content[min(end, begin + 20) :]
    if kind == 2:
        return content[:begin] + content[end:]
    lines = content.split("\n")
    if kind == 3:
        draw.shuffle(lines)
    elif kind == 4:
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    else:
        place = draw.randrange(len(lines))
        key, equals, _ = lines[place].partition("=")
        lines[place] = key + equals + draw.choice(WORDS)
    return "\n".join(lines)


def json_value(draw: random.Random, begin: Any, most: int = 2) -> Any:
    """A value of JSON with some others in it."""
    root = [copy.deepcopy(begin)]
    for _ in range(draw.randrange(most + 1)):
        places = list(places_in(root))
        owner, key = draw.choice(places)
        if isinstance(owner, dict) and draw.random() < 0.3:
            del owner[key]
        else:
            owner[key] = nested(draw.choice((5, 300))) if draw.random() < 0.02 else copy.deepcopy(draw.choice(VALUES))
    return root[0]


def nested(depth: int) -> Any:
    """Lists within lists, not so deep that they could not be written."""
    return [nested(depth - 1)] if depth else 0


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Where a value of JSON has other values: in what, and by which key."""
    found: list[tuple[Any, Any]] = []
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += [(value, key), *places_in(value[key])]
    return found


def words(draw: random.Random, known: Sequence[str], length: int) -> list[str]:
    """Words of a command line, known ones and others."""
    return [
        draw.choice(known) if draw.random() < 0.7 else draw.choice(WORDS) for _ in range(draw.randrange(length + 1))
    ]
