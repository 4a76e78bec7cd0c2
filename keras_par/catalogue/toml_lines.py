"""Finds the line on which a TOML file sets a key, which Python's own reader of TOML does not tell."""

import re
import tomllib

# What may hold a bracket, an equals sign or a line's end without meaning it, and those themselves.
TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}=\n]', re.DOTALL
)
Key = tuple[str, ...]


def lines_of_keys(text: str) -> dict[Key, int]:
    """The line, from 1, of each table and of each key, named from the outermost table on.

    Args:
        text: valid TOML. Keys within inline tables are left out; they stand in the lines of the key they are given to.
    """
    found: dict[Key, int] = {}
    table: Key = ()
    begin, line, depth, equals, end = 0, 1, 0, None, None
    for token in [*TOKEN.finditer(text), None]:
        mark = "\n" if token is None else token[0]
        place = len(text) if token is None else token.start()
        if mark in ("[", "{"):
            depth += 1
        elif mark in ("]", "}"):
            depth -= 1
        elif mark == "=" and equals is None:
            equals = place
        elif mark.startswith("#") and depth == 0:
            end = place
        elif mark == "\n" and depth == 0:
            stop = next(p for p in (equals, end, place) if p is not None)
            name = text[begin:stop].strip()
            if equals is not None:
                found.setdefault((*table, *parts(name)), line)
            elif name:
                table = parts(name.strip("[]"))
                found.setdefault(table, line)
            line += text.count("\n", begin, place + 1)
            begin, equals, end = place + 1, None, None
    return found


def parts(key: str) -> Key:
    """The names of which a dotted or quoted key is made."""
    names: list[str] = []
    value = tomllib.loads(f"{key} = 0")
    while isinstance(value, dict):
        [(name, value)] = value.items()
        names.append(name)
    return tuple(names)


def line_of(key: Key, lines: dict[Key, int]) -> int:
    """The line of a key, else of the innermost table around it that has one, else the first."""
    known = next((key[:length] for length in range(len(key), 0, -1) if key[:length] in lines), None)
    return 1 if known is None else lines[known]
