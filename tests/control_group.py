"""A control group of the kernel's, whose processes may use so much memory; needs root."""

import os
from pathlib import Path

from tests.launcher import GONE_SECONDS
from tests.patience import comes_to_be


class memory_limit:  # noqa: N801
    """Processes that come into it may use so many bytes, besides what they have already."""

    def __init__(self, num_bytes: int):
        first = Path("/sys/fs/cgroup/memory")
        self._limit = "memory.limit_in_bytes" if first.is_dir() else "memory.max"
        self._group = (first if first.is_dir() else first.parent) / f"kp-test-{os.getpid()}"
        self._num_bytes = num_bytes

    def __enter__(self) -> Path:
        self._group.mkdir()
        (self._group / self._limit).write_text(str(self._num_bytes))
        return self._group

    def __exit__(self, *error) -> None:
        comes_to_be(lambda: not (self._group / "cgroup.procs").read_text(), GONE_SECONDS)
        self._group.rmdir()
