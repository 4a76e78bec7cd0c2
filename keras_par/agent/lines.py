"""Cuts a stream of bytes into lines."""


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

    def rest(self) -> str:
        """The begin of a line, as a line of its own; nothing if there is none."""
        text, self._rest = self._rest.decode(errors="replace"), b""
        return f"{text}\n" if text else ""
