"""docs/troubleshooting.md has every message that the package can give, and no other."""

import functools
import re
from pathlib import Path

import pytest

from tests import messages
from tests.messages import Message

PAGE = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"
SHORTEST = 15  # characters that tell one message from others
GROUPS = (
    "Starting a job",
    "kp.init",
    "Strategies and layouts",
    "Data",
    "A step",
    "Checkpoints and files",
    "Callbacks",
    "The search and plans",
    "The launcher",
    "Doctor and install",
)


@functools.cache
def collected() -> tuple[Message, ...]:
    return tuple(messages.messages())


@functools.cache
def rows() -> dict[str, list[list[str]]]:
    """The cells of each row of the page, by its group."""
    found: dict[str, list[list[str]]] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        found[title] = [cells for cells in lines if cells[0] != "message"]
    return found


def beginnings() -> list[str]:
    """What the page has in its first columns."""
    cells = [cells[0] for group in rows().values() for cells in group]
    return [beginning for cell in cells for beginning in re.findall(r"`([^`]+)`", cell)]


def found_by() -> dict[str, list[Message]]:
    """The messages by the beginning that a reader finds them by: the longest that fits."""
    found: dict[str, list[Message]] = {beginning: [] for beginning in beginnings()}
    for message in collected():
        fitting = [beginning for beginning in found if message.text.startswith(beginning)]
        found.setdefault(max(fitting, key=len, default=""), []).append(message)
    return found


def test_every_message_of_the_code_is_on_the_page():
    assert [f"{each.place}: {each.text}" for each in found_by().get("", [])] == []


def test_every_message_of_the_page_is_in_the_code():
    assert [beginning for beginning, found in found_by().items() if not found] == []


def test_a_beginning_tells_messages_apart():
    assert len(beginnings()) == len(set(beginnings()))
    for beginning, found in found_by().items():
        assert len(beginning) >= SHORTEST or beginning == found[0].text, beginning
        files = {message.place.partition(":")[0] for message in found}
        assert len(files) == 1, f"'{beginning}' is the beginning of messages in {files}: let it go on"


def test_each_group_has_rows_with_a_cause_and_a_cure():
    assert tuple(rows()) == GROUPS
    for group, lines in rows().items():
        assert len(lines) > 3, group
        for cells in lines:
            assert len(cells) in (2, 3) and all(cell.strip() for cell in cells), cells


CASES = {
    "raised": ("raise ValueError(f'keras-par: {name} is wrong: do this.')", "… is wrong: do this."),
    "raised later": ("error = MyError('all of it is wrong')", "all of it is wrong"),
    "warned": ("warnings.warn('keras-par: mind the gap')", "mind the gap"),
    "logged": ("logger.info('keras-par: %d of %s read', n, name)", "… of … read"),
    "said": ("binding.say('this is odd, %s', why)", "this is odd, …"),
    "a variable": ("text = 'it is over'\nsay(text)", "it is over"),
    "a part": ("why = 'the disk is full'\nsay(f'stopped, because {why}')", "stopped, because the disk is full"),
    "one of two": ("say('it is over' if is_over else 'it goes on')", "it goes on"),
    "a complaint": ("complaint = f'{path} is no file'", "… is no file"),
    "a function": ("def text() -> str:\n    return 'it is over'\nsay(text())", "it is over"),
    "a method": ("class A:\n    def complaint(self):\n        return 'it is not batched'", "it is not batched"),
    "a panel": ("lines = ['rank 1 failed']\nlines.append('look there')\nconsole.panel('a', lines)", "look there"),
    "printed": ("print(f'keras-par run: {path} is no file')", "… is no file"),
}


@pytest.mark.parametrize("case", CASES)
def test_messages_are_found_however_they_are_made(case, tmp_path):
    source, text = CASES[case]
    (tmp_path / "module.py").write_text(f'"""keras-par: this is no message."""\n{source}\n')
    found = [message.text for message in messages.messages(tmp_path)]
    assert text in found and "this is no message." not in found


def test_messages_of_kernels_are_found(tmp_path):
    (tmp_path / "ring.h").write_text('wrong_ = "rank " + std::to_string(of) +\n " has left";\nfail("all is lost");')
    assert [message.text for message in messages.messages(tmp_path)] == ["all is lost", "rank … has left"]
