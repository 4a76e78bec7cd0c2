"""Cuts a stream of bytes into lines."""

from keras_par.agent.shown import is_bar, settled


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
