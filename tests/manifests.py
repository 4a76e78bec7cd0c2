"""What the manifests of examples/kubernetes say, and the Job's containers as processes."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment
from tests.test_shell_loop import free_port

FOLDER = REPOSITORY / "examples" / "kubernetes"
MANIFESTS = {
    (path.stem, document["kind"]): document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
JOB, SERVICE = MANIFESTS["job", "Job"], MANIFESTS["job", "Service"]
POD = JOB["spec"]["template"]["spec"]
[RANK] = POD["containers"]
RUNTIME = MANIFESTS["runtime", "TrainingRuntime"]["spec"]
TRAIN_JOB = MANIFESTS["trainjob", "TrainJob"]["spec"]


def variables_of(container: dict) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


class Pods:
    """The Job's two containers as processes, each with the variables of its Pod.

    Args:
        folder: what they find as /checkpoints.
        within: the command that becomes a Pod's on its host, for each; by default they run on this host.
        variables: what the Pods have besides.
    """

    def __init__(self, folder: Path, within: Sequence[list[str]] = (), **variables: str):
        [line] = RANK["args"]
        here = {} if within else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.processes = [
            subprocess.Popen(
                [*(within[index] if within else []), *RANK["command"], line.replace("/checkpoints", str(folder))],
                cwd=FOLDER,
                env=environment(**variables_of(RANK) | here | variables, JOB_COMPLETION_INDEX=str(index)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in range(JOB["spec"]["completions"])
        ]

    def output(self, seconds: float = PATIENCE) -> str:
        """What all have printed, once all have ended."""
        try:
            return "".join(process.communicate(timeout=seconds)[0] for process in self.processes)
        finally:
            for process in self.processes:
                process.kill()

    @property
    def statuses(self) -> list[int]:
        return [process.wait() for process in self.processes]


def trained(pods: Pods) -> list[tuple[str, int]]:
    """Each rank's last loss, and how many epochs it trained, once all have ended well."""
    output = pods.output()
    assert pods.statuses == [0, 0], output
    ends = sorted(re.findall(r"rank (\d) of 2: loss ([\d.]+) after (\d+) epoch", output))
    assert [rank for rank, _, _ in ends] == ["0", "1"], output
    return [(loss, int(epochs)) for _, loss, epochs in ends]
