"""Starts whole jobs as a user does, by mpirun, horovodrun or plain python."""

import json
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment, mpirun, scripts


@dataclass(frozen=True)
class Ended:
    """How a job ended: exit status, and what it printed to both streams, without the launcher's prefixes.

    mpirun may print two ranks' lines as one, so tests look for parts of the output, not for whole lines. Where
    PYTHONUNBUFFERED is set each argument of a `print` is a write of its own, so such a part is one argument.
    """

    status: int
    output: str

    def find(self, pattern: str) -> list:
        """All matches of a regular expression in the output."""
        return re.findall(pattern, self.output)

    def values(self, label: str) -> list:
        """The JSON values that stand behind a label, wherever lines begin and end."""
        after = self.output.split(label)[1:]
        return [json.JSONDecoder().raw_decode(text)[0] for text in after]


LAUNCHERS = {
    "python": lambda size: [],
    "mpirun": mpirun,
    "horovodrun": lambda size: [str(scripts() / "horovodrun"), "-np", str(size)],
    "horovodrun --gloo": lambda size: [str(scripts() / "horovodrun"), "-np", str(size), "--gloo"],
    "keras-par run": lambda size: [str(scripts() / "keras-par"), "run", "-np", str(size)],
}


def start(launcher: str, size: int, *command: str, seconds: float = PATIENCE, **variables: str) -> Ended:
    """Runs `python command` under a launcher in the repository and waits for its end."""
    result = subprocess.run(
        [*LAUNCHERS[launcher](size), sys.executable, *command],
        cwd=REPOSITORY,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    return Ended(result.returncode, re.sub(r"\[\d+(,\d+)?\]<std(out|err)>:", "", result.stdout))


def write_script(folder: Path, text: str) -> str:
    """Saves a script and returns its path."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)
