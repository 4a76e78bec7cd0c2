"""What tests of Ray share: where clusters keep their files, which variables they get, and what a script has told."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher import Ended

VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": None}


@contextlib.contextmanager
def folder_of_ray() -> Iterator[Path]:
    """Where Ray keeps its files, by a name that is short enough for sockets; it is gone at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="kp-ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def found(ended: Ended) -> dict:
    """What a script has told, which is its last line."""
    assert ended.status == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])
