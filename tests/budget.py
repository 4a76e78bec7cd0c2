"""What a run may take: so many times what a training in plain Keras takes in the same run, as machines differ."""

import statistics
import time

import pytest

EVERY_SECONDS = 60.0  # from one yardstick to the next


def train() -> float:
    """Seconds that a small training takes in this process, most of it to trace its steps."""
    import keras

    from tests.cases import arrays, compiled, rows

    begin = time.perf_counter()
    model = compiled(keras.optimizers.Adam(1e-2), metrics=["accuracy"])
    model.fit(**arrays(), validation_data=rows(37, 9), verbose=0)
    return time.perf_counter() - begin


class Budget:
    """A plugin that fails a run which takes too long, and says how long it took.

    Args:
        limit: yardsticks that the run may take, None for as many as it likes.
    """

    def __init__(self, limit: int | None):
        self._limit, self._begin, self._timed = limit, time.monotonic(), -EVERY_SECONDS
        self.yardsticks: list[float] = []  # seconds each

    def time(self, plain) -> None:
        """Times a yardstick in a pool of plain Keras, unless that was done just now."""
        if time.monotonic() - self._timed > EVERY_SECONDS:
            self.yardsticks += plain.run(train)
            self._timed = time.monotonic()

    def taken(self) -> float:
        """Yardsticks that the run took until now."""
        return (time.monotonic() - self._begin) / statistics.median(self.yardsticks)

    def is_exceeded(self) -> bool:
        return bool(self.yardsticks and self._limit and self.taken() > self._limit)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if self.is_exceeded():
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.yardsticks:
            yardstick = f"plain Keras takes {statistics.median(self.yardsticks):.2f} s for a training"
            limit = f" of {self._limit} that it may take" if self._limit else ""
            verdict = "TOO LONG: " if self.is_exceeded() else ""
            terminalreporter.write_line(
                f"{verdict}{yardstick} (median of {len(self.yardsticks)}); this run took {self.taken():.0f} such{limit}"
            )
