"""Reads a strategy from a TOML file, and says in which line it is wrong; writes one."""

import json
import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from keras_par.plan import toml
from keras_par.plan.layout import Axes, compiled
from keras_par.plan.mesh import is_size
from keras_par.plan.options import OF_A_HOST, VALUES, Options, has_value, is_ranks
from keras_par.plan.toml import Key, instead, line_of, lines_of_keys, shown

KEYS = ("name", "description", "mesh", "layout", "options")
ENTRY_KEYS = ("axes", "indivisible", "optional")
UNDIVIDED = "-"
REPLICATE = "replicate"
# The keyword options of kp.DataParallel and kp.ModelParallel, and the values each may have. batch_dim_name may be any
# axis of the mesh, those in UNITS any positive number, those in OF_PATTERNS a list of patterns, those in OF_RANKS a
# number of ranks or those of a host.
OPTIONS: dict[str, tuple] = {"batch_dim_name": (), "auto_shard_dataset": (True, False)} | {
    each.name: tuple(value for value in VALUES.get(each.name, ()) if value is not None) for each in fields(Options)
}
OF_LAYOUTS = ("batch_dim_name", "propagate")  # those of kp.ModelParallel alone
OF_PATTERNS = ("recompute",)
OF_RANKS = ("zero_ranks",)
UNITS = {"fusion_mb": "megabytes", "zero_min_kb": "kilobytes"}


@dataclass(frozen=True)
class Entry:
    """What a strategy says about the variables whose paths a pattern matches as a whole.

    Args:
        pattern: a regular expression.
        axes: for each dim the mesh axis that divides it, or None; () for variables that every rank holds whole.
        is_optional: True if the pattern may match nothing.
        is_replicable: True if every rank holds a variable whole that the axes do not divide evenly.
    """

    pattern: str
    axes: Axes
    is_optional: bool = False
    is_replicable: bool = False


@dataclass(frozen=True)
class Strategy:
    """A strategy as its file has it.

    Args:
        name: the file's own, or what it is called in its folder.
        description: one sentence.
        mesh: the number of ranks along each axis; one may be -1, which is all that are left.
        entries: the layout, in the order of the file; none means data parallel.
        options: for `kp.DataParallel` or `kp.ModelParallel`, by their names there.
    """

    name: str
    description: str = ""
    mesh: dict[str, int] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def read_strategy(path: Path) -> Strategy:
    """The strategy that a file holds.

    Raises:
        ValueError: it cannot be read, is not TOML, or not a strategy; names the file, the line, the key and what was
            meant perhaps.
    """
    try:
        text = toml.read(path)
    except (OSError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"keras-par: strategy file '{path}' cannot be read: {why}: correct it.") from None
    return parse_strategy(text, str(path), path.stem)


def strategy_text(strategy: Strategy) -> str:
    """The file of a strategy, with those of its options that a file can have and that are not None."""
    known = [key for key in OPTIONS if strategy.entries or key not in OF_LAYOUTS]
    kept = {key: value for key, value in strategy.options.items() if key in known and value is not None}
    lines = [f"name = {json.dumps(strategy.name)}", f"description = {json.dumps(strategy.description)}"]
    if strategy.mesh:
        lines += ["", "[mesh]", *(f"{axis} = {size}" for axis, size in strategy.mesh.items())]
    if strategy.entries:
        lines += ["", "[layout]", *map(entry_text, strategy.entries)]
    if kept or not strategy.entries:
        lines += ["", "[options]", *(f"{key} = {json.dumps(value)}" for key, value in kept.items())]
    return "\n".join(lines) + "\n"


def entry_text(entry: Entry) -> str:
    """The line of an entry."""
    said = json.dumps([axis or UNDIVIDED for axis in entry.axes] if entry.axes else REPLICATE)
    more = [*(["optional = true"] * entry.is_optional), *([f'indivisible = "{REPLICATE}"'] * entry.is_replicable)]
    return f"{json.dumps(entry.pattern)} = " + (f"{{ {', '.join([f'axes = {said}', *more])} }}" if more else said)


def parse_strategy(text: str, file: str, name: str) -> Strategy:
    """The strategy in `text`; `file` is what errors call it, `name` its name if it has none of its own.

    Raises:
        ValueError: see `read_strategy`.
    """
    try:
        content = toml.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        what = str(error)[: found.start()] if found else str(error)
        line = found[1] if found and found[1] else text.rstrip().count("\n") + 1
        raise ValueError(f"keras-par: {file}, line {line}: this is not TOML: {what}: correct it.") from error
    return Reader(content, lines_of_keys(text), file).strategy(name)


class Reader:
    """Takes what TOML says for a strategy, piece by piece.

    Args:
        content: of the file.
        lines: where each key stands.
        file: what errors call it.
    """

    def __init__(self, content: dict[str, Any], lines: dict[Key, int], file: str):
        self.content, self.lines, self.file = content, lines, file

    def refuse(self, key: Key, what: str) -> NoReturn:
        """Raises an error about a key."""
        raise ValueError(f"keras-par: {self.file}, line {line_of(key, self.lines)}: {what}.")

    def strategy(self, name: str) -> Strategy:
        """All of it."""
        self.require_known((), self.content, KEYS)
        mesh = self.mesh()
        options = self.options(mesh)
        entries = tuple(self.entry(pattern, said, mesh) for pattern, said in self.table("layout").items())
        if entries and not mesh:
            self.refuse(("layout",), "[layout] needs a [mesh] that says how many ranks each axis has: add one")
        if mesh and not entries:
            self.refuse(("mesh",), "[mesh] divides nothing without a [layout]: add one, or leave [mesh] out")
        return Strategy(self.text("name") or name, self.text("description"), mesh, entries, options)

    def require_known(self, table: Key, keys: Iterable[str], known: tuple[str, ...]) -> None:
        """Refuses keys that are not known."""
        for key in keys:
            if key not in known:
                self.refuse((*table, key), f"key '{key}' is unknown, {instead(key, known)}")

    def text(self, key: str) -> str:
        """The value of a key that has a text."""
        value = self.content.get(key, "")
        if not isinstance(value, str):
            self.refuse((key,), f"'{key}' is {value!r}, which is no text: put it in quotes")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """The content of a table, empty if there is none."""
        value = self.content.get(key, {})
        if not isinstance(value, dict):
            self.refuse((key,), f"'{key}' is {value!r}, which is no table: write [{key}] and its keys below")
        return value

    def mesh(self) -> dict[str, int]:
        """The sizes of the axes."""
        sizes = self.table("mesh")
        for axis, size in sizes.items():
            if not is_size(size):
                self.refuse(
                    ("mesh", axis),
                    f"axis '{axis}' has the size {size!r}: give it a number of ranks, or -1 for the rest",
                )
        rest = [axis for axis, size in sizes.items() if size == -1]
        if len(rest) > 1:
            self.refuse(("mesh", rest[1]), f"axis '{rest[1]}' is the second of size -1: give it a number of ranks")
        return sizes

    def options(self, mesh: dict[str, int]) -> dict[str, Any]:
        """The options, each with a value it may have."""
        options = self.table("options")
        self.require_known(("options",), options, tuple(OPTIONS))
        for key, value in options.items():
            allowed = tuple(mesh) if key == "batch_dim_name" else OPTIONS[key]
            if key in UNITS:
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                    self.refuse(("options", key), f"{key} is {value!r}: give it a number of {UNITS[key]} above 0")
            elif key in OF_RANKS:
                if not is_ranks(value):
                    self.refuse(("options", key), f"{key} is {value!r}: give it a number of ranks, or '{OF_A_HOST}'")
            elif key in OF_PATTERNS:
                self.require_patterns(("options", key), value)
            elif key in OF_LAYOUTS and not mesh:
                what = "names an axis" if key == "batch_dim_name" else "is for a [layout]"
                self.refuse(("options", key), f"{key} {what}, but there is no [mesh]: leave it out")
            elif not has_value(allowed, value):
                self.refuse(("options", key), f"{key} cannot be {shown(value)}, {instead(value, allowed)}")
        return options

    def entry(self, pattern: str, said: Any, mesh: dict[str, int]) -> Entry:
        """What is said of a pattern: axes, "replicate", or a table with either."""
        key = ("layout", pattern)
        self.require_pattern(key, pattern)
        if not isinstance(said, dict):
            return Entry(pattern, self.axes(key, said, mesh))
        self.require_known(key, said, ENTRY_KEYS)
        if "axes" not in said:
            self.refuse(key, f"pattern '{pattern}' has no axes: add axes = [...], or put all of the pattern in quotes")
        for name, allowed in (("indivisible", (REPLICATE,)), ("optional", (True, False))):
            if name in said and not any(said[name] is known or said[name] == known != 1 for known in allowed):
                self.refuse((*key, name), f"{name} cannot be {shown(said[name])}, {instead(said[name], allowed)}")
        axes = self.axes((*key, "axes"), said["axes"], mesh)
        return Entry(pattern, axes, bool(said.get("optional", False)), "indivisible" in said)

    def require_patterns(self, key: Key, said: Any) -> None:
        """Refuses what is no list of patterns."""
        if not isinstance(said, list) or not all(isinstance(pattern, str) for pattern in said):
            self.refuse(key, f"{key[-1]} cannot be {shown(said)}: write patterns of layers' names in a list")
        for pattern in said:
            self.require_pattern(key, pattern)

    def require_pattern(self, key: Key, pattern: str) -> None:
        """Refuses what is no regular expression."""
        try:
            compiled(pattern)
        except ValueError as error:
            self.refuse(key, str(error).removeprefix("keras-par: ").removesuffix("."))

    def axes(self, key: Key, said: Any, mesh: dict[str, int]) -> Axes:
        """The axis of each dim; () for "replicate"."""
        pattern = key[1]
        if said == REPLICATE:
            return ()
        if not isinstance(said, list) or not said:
            what = f"pattern '{pattern}' cannot have {shown(said)}"
            self.refuse(key, f'{what}: write an axis or "{UNDIVIDED}" for each dim in a list, or "{REPLICATE}"')
        known = (*mesh, UNDIVIDED)
        for axis in said:
            if axis not in known:
                self.refuse(key, f"pattern '{pattern}' has the axis {shown(axis)}, {instead(axis, known)}")
        named = [axis for axis in said if axis != UNDIVIDED]
        if not named:
            self.refuse(key, f"pattern '{pattern}' divides no dim: name an axis, or write \"{REPLICATE}\"")
        twice = next((axis for axis in named if named.count(axis) > 1), None)
        if twice is not None:
            self.refuse(key, f"pattern '{pattern}' has the axis '{twice}' twice: it can divide one dim only")
        return tuple(None if axis == UNDIVIDED else axis for axis in said)
