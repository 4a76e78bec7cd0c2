"""Finds the hosts of the SLURM allocation that a launcher runs in."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from itertools import chain, repeat

from keras_par.base.environment import number
from keras_par.cluster.hosts import ClusterError, Host

TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)
SECONDS = 30  # how long scontrol may take


def is_in_allocation(environ: Mapping[str, str]) -> bool:
    """True where Open MPI's mpirun reaches other hosts by srun, which needs no ssh."""
    return "SLURM_JOBID" in environ


def tasks_of_step(environ: Mapping[str, str]) -> int:
    """How often srun has started this command at the same time; 1 for a batch script, a shell, and without SLURM.

    Raises:
        RuntimeError: SLURM's variable is no number.
    """
    if "SLURM_PTY_PORT" in environ or "SLURM_PROCID" not in environ:
        return 1
    return number(environ, "SLURM_STEP_NUM_TASKS", 1, None, "srun sets it for each task, so unset it") or 1


def slurm_hosts(environ: Mapping[str, str]) -> list[Host] | None:
    """The hosts of the SLURM allocation that this process is in, with a slot for each task; None outside of one.

    Raises:
        ClusterError: SLURM's variables or `scontrol` do not say which hosts those are.
    """
    nodes = environ.get("SLURM_JOB_NODELIST")
    if nodes is None:
        return None
    text = environ.get("SLURM_TASKS_PER_NODE", "")
    tasks = [TASKS.fullmatch(part) for part in text.split(",")]
    if not all(tasks):
        raise ClusterError(
            f"keras-par: SLURM_TASKS_PER_NODE={text!r} is not a list like '2(x3),1': allocate with --ntasks-per-node, "
            "or name the hosts by -H."
        )
    slots = list(chain.from_iterable(repeat(int(task[1]), int(task[2] or 1)) for task in tasks if task))
    names = expand(nodes, environ)
    if len(names) != len(slots):
        raise ClusterError(
            f"keras-par: SLURM_JOB_NODELIST={nodes!r} has {len(names)} host(s) but SLURM_TASKS_PER_NODE={text!r} has "
            f"{len(slots)}: name the hosts by -H."
        )
    return [Host(name, count) for name, count in zip(names, slots, strict=True) if count]


def expand(nodes: str, environ: Mapping[str, str]) -> list[str]:
    """The host names in SLURM's short form "node[1-3,7]"."""
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if program is None:
        raise ClusterError(
            f"keras-par: scontrol, which names the hosts of SLURM_JOB_NODELIST={nodes!r}, is not on PATH: add the "
            "folder of SLURM's commands to it, or name the hosts by -H."
        )
    command = [program, "show", "hostnames", nodes]
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"keras-par: '{program}' failed ({error}): name the hosts by -H.") from None
    if result.returncode != 0:
        said = (result.stderr.strip().splitlines() or [f"status {result.returncode}"])[-1]
        raise ClusterError(f"keras-par: 'scontrol show hostnames {nodes}' failed ({said}): name the hosts by -H.")
    return result.stdout.split()
