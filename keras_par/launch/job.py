"""A job: what is run and where, what its user wants of it, and what its attempts share."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from keras_par.cluster.hosts import Place
from keras_par.cluster.reach import AS_SET, Ssh
from keras_par.launch.console import Console
from keras_par.launch.engines import Plan
from keras_par.launch.goodput import Account
from keras_par.launch.next_world import FixedWorlds
from keras_par.launch.run_folder import RunFolder

HANG_SECONDS = 120.0  # without progress that are a hang, unless the user says otherwise


@dataclass
class Job:
    """What a launcher keeps alive.

    Args:
        command: what each rank runs.
        engine: what connects the ranks.
        worlds: where they run.
        plan: makes of the places of a world how it is started.
        folder: of the run.
        console: where things are shown.
        interrupts: the signals that the user has sent, appended to as they come.
        ssh: how to get to other hosts.
        max_restarts: failures after which it is started again.
        merge_stderr: True if a rank's two streams become one.
        forward: True if the ranks' output is shown.
        verbose: True if all of it is shown, as where the user has asked TensorFlow for all that it says.
        hang_after: seconds without progress that are a hang.
        aborts_hang: True if a hang ends the job.
        account: of the steps that are done.
    """

    command: Sequence[str]
    engine: str
    worlds: FixedWorlds
    plan: Callable[[Sequence[Place]], Plan]
    folder: RunFolder
    console: Console
    interrupts: list[int]
    ssh: Ssh = AS_SET
    max_restarts: int = 0
    merge_stderr: bool = False
    forward: bool = True
    verbose: bool = False
    hang_after: float = HANG_SECONDS
    aborts_hang: bool = False
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        self.verbose = self.verbose or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
