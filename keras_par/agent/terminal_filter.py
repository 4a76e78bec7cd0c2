"""Cuts a rank's output into lines, and finds what a terminal is better without: overwritten bars, chatter."""

import re

OVERWRITE = re.compile(r"[\r\b]+")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and movements of the cursor
# What TensorFlow's C++ says at level INFO, in its present and its former manner, with the lines that belong to it; and
# that it has looked for a GPU where no driver is installed: CUDA's error 303 says that its library was not found.
CHATTER = re.compile(
    r"I\d{4} \d\d:\d\d:\d\d\.\d+ |I0000 |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I |"
    r"E\d{4} .*failed call to cuInit: .*\(303\)|"
    r"WARNING: All log messages before absl::InitializeLog\(\)|To enable the following instructions:"
)


def is_bar(line: str) -> bool:
    """True for a line that goes back to its begin, as progress bars do."""
    return "\r" in line.rstrip("\r\n") or "\b" in line


def whole_lines(text: str) -> list[str]:
    """The lines without their ends; unlike `str.splitlines`, a carriage return alone ends none."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def settled(line: str) -> str:
    """What a terminal shows in the end of a line that was overwritten."""
    parts = [part for part in OVERWRITE.split(line.rstrip("\r\n")) if CODES.sub("", part).strip()]
    return parts[-1].rstrip() if parts else ""


def without_codes(text: str) -> str:
    return CODES.sub("", text)


def without_chatter(text: str) -> str:
    """The lines that are not TensorFlow's of level INFO, or of a GPU without a driver."""
    return "".join(f"{line}\n" for line in whole_lines(text) if not CHATTER.match(line))


class Lines:
    """What has been read from a stream and not been given out yet."""

    LONGEST = 65536  # bytes

    def __init__(self):
        self._rest = b""
        self.is_awaited = False  # somebody will ask for the rest

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)

    def add(self, data: bytes) -> None:
        """Takes in what was read."""
        self._rest += data

    def whole(self) -> str:
        """The lines that are complete, with their ends."""
        end = len(self._rest) if len(self._rest) > self.LONGEST else self._rest.rfind(b"\n") + 1
        lines, self._rest = self._rest[:end], self._rest[end:]
        return lines.decode(errors="replace")

    def begun(self) -> str:
        """The begin of a line, which stays here; of one that was overwritten, what was written last is kept."""
        text = self._rest.decode(errors="replace")
        if is_bar(text) and (shown := settled(text)):
            self._rest = b"\r" + shown.encode(errors="replace")
        return text

    def rest(self) -> str:
        """The begin of a line, as a line of its own; nothing if there is none."""
        text, self._rest = self._rest.decode(errors="replace"), b""
        return f"{text}\n" if text else ""
