"""Does what a page such as a tutorial tells: writes its files, runs its commands, compares what they print.

A block of code with a title is a file; one of kind `diff` changes it, each part between lines `...` in its place. In a
block of kind `console` a line that begins with `$ ` is a command, and the lines below it are what is printed; `...`
stands for any lines, or any text in a line. Numbers with a point may differ by a hundredth, times by anything. Ranks
print at the same time: lines of theirs that follow each other are taken rank by rank.
"""

import itertools
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE
from tests.ranks.pool import WITH_EXTRAS, environment

FENCE = re.compile(r"^```(?P<kind>\S+)(?P<options>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = r"[-+]?\d+\.\d+(?:e[-+]?\d+)?"
RANK = re.compile(r"\[(\d+)\] ")
TIME = re.compile(rf"\d+ (?:h|min) \d+ (?:min|s)\b|(?:{NUMBER}|\d+) ?(?:ms|s|min|h)\b|\d+:\d\d(?::\d\d)?\b")
NEAR = 0.01


@dataclass(frozen=True)
class File:
    """A file that the page shows.

    Args:
        name: its path in the reader's folder.
        text: of it.
    """

    name: str
    text: str


@dataclass(frozen=True)
class Change:
    """Lines of a file that the page lets its reader change.

    Args:
        name: the file's path in the reader's folder.
        parts: what is there, and what takes its place.
    """

    name: str
    parts: tuple[tuple[str, str], ...]

    def of(self, text: str) -> str:
        """The changed text.

        Raises:
            AssertionError: what is to be changed is not there, or is there twice.
        """
        for old, new in self.parts:
            places = [match.start() for match in re.finditer(rf"^{re.escape(old)}", text, re.MULTILINE)]
            assert len(places) == 1, f"{self.name} has not once\n{old}"
            text = text[: places[0]] + new + text[places[0] + len(old) :]
        return text


@dataclass(frozen=True)
class Command:
    """A command that the page shows, and the lines that it is to print."""

    line: str
    printed: tuple[str, ...]


def steps_of(page: str) -> list[File | Change | Command]:
    """What a reader of the page does, in order."""
    found: list[File | Change | Command] = []
    for fence in FENCE.finditer(page):
        title = re.search(r'title="([^"]+)"', fence["options"])
        if title and fence["kind"] == "diff":
            parts = re.split(r"^\.\.\.\n", fence["text"], flags=re.MULTILINE)
            found.append(Change(title[1], tuple((side(part, "-"), side(part, "+")) for part in parts)))
        elif title:
            found.append(File(title[1], fence["text"]))
        elif fence["kind"] == "console":
            found += commands_of(fence["text"])
    return found


def side(diff: str, sign: str) -> str:
    """The lines of a diff that are there before ("-") or after ("+")."""
    lines = diff.splitlines(keepends=True)
    return "".join(line[1:] or line for line in lines if line[0] in f" {sign}\n")


def commands_of(text: str) -> list[Command]:
    """The commands of a block, each with what it prints; one that ends in a backslash goes on in the next line."""
    found: list[Command] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ()))
        else:
            found[-1] = Command(found[-1].line, (*found[-1].printed, line))
    return found


def follow(page: str, folder: Path, within: Sequence[str] = ()) -> int:
    """Does what a page tells, in a folder; returns the number of commands.

    Args:
        page: its text.
        folder: the reader's.
        within: a command that becomes each command of the page, which follows it.

    Raises:
        AssertionError: a command prints something else, or takes too long.
    """
    commands = 0
    for step in steps_of(page):
        if isinstance(step, Command):
            commands += 1
            require_printed(step, run(step.line, folder, within))
        else:
            write(step, folder / step.name)
    return commands


def write(step: File | Change, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(step.text if isinstance(step, File) else step.of(path.read_text()))


def run(line: str, folder: Path, within: Sequence[str]) -> str:
    """What a command prints, in the order in which a terminal shows it."""
    variables = environment(COLUMNS="100", PYTHONWARNINGS="", **WITH_EXTRAS)  # warnings of a tutorial are shown
    process = subprocess.Popen(
        [*within, "bash", "-c", line],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"{shlex.quote(line)} did not end:\n{process.communicate()[0]}") from None


def require_printed(command: Command, output: str) -> None:
    """Fails unless the output has the lines that are shown, in their order, from the first to the last."""
    if not command.printed:
        return
    shown = "".join(f"{line.rstrip()}\n" for line in by_rank(output.strip("\n").splitlines()))
    found = re.fullmatch("".join(map(pattern_of, command.printed)), shown)
    told = f"$ {command.line}\nis to print\n" + "\n".join(command.printed) + f"\nand prints\n{output}"
    assert found is not None, told
    numbers = [float(each) for line in command.printed for each in re.findall(NUMBER, TIME.sub("", line))]
    for expected, own in zip(numbers, map(float, found.groups()), strict=True):
        assert abs(own - expected) <= NEAR * abs(expected), f"{own} stands in place of {expected}: {told}"


def by_rank(lines: list[str]) -> list[str]:
    """The lines, of which those that ranks have printed one after another are in the order of the ranks."""
    runs = itertools.groupby(lines, key=lambda line: RANK.match(line) is not None)
    return [line for of_ranks, run in runs for line in (sorted(run, key=rank_of) if of_ranks else run)]


def rank_of(line: str) -> int:
    match = RANK.match(line)
    assert match is not None
    return int(match[1])


def pattern_of(line: str) -> str:
    """What a line that is shown matches; numbers with a point are groups."""
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    parts = re.split(rf"({TIME.pattern}|{NUMBER}|\.\.\.)", line.rstrip())
    return "".join(of_token(part) if place % 2 else re.escape(part) for place, part in enumerate(parts)) + r"\n"


def of_token(token: str) -> str:
    if token == "...":
        return ".*?"
    return f"(?:{TIME.pattern})" if TIME.fullmatch(token) else f"({NUMBER})"
