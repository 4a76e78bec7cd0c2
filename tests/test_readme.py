"""What the README shows runs: its script on two ranks, and its links lead somewhere."""

import re
from pathlib import Path

from tests.jobs import start, write_script

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text()

DATA = """
import numpy as np
x, y = np.zeros((256, 8), "float32"), np.zeros(256, "int64")
"""


def test_the_changed_script_runs_on_two_ranks(tmp_path):
    [diff] = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    lines = [line[1:] for line in diff.splitlines() if not line.startswith("-")]
    assert sum(line.startswith("+") for line in diff.splitlines()) <= 10
    job = start("mpirun", 2, write_script(tmp_path, DATA + "\n".join(lines)))
    assert job.status == 0, job.output
    assert "Epoch 10/10" in job.output


def test_links_lead_somewhere():
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
