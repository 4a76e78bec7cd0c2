"""What is compared: how each system is started, and in which environment of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.jobs import REPOSITORY, SCRIPTS, all_cores, environment, mpirun
from benchmarks.throughput.turns import Team

PEERS = REPOSITORY / "build" / "peers"
# What is installed in the environments of other systems. torch is pinned as for the tests.
PACKAGES = {"torch": ("torch==2.13.0", "numpy"), "jax": ("jax>=0.7", "keras>=3.14,<4")}
# Ranks are stopped between their turns.
HOROVOD = {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400"}


@dataclass(frozen=True)
class System:
    """One way of training on all ranks' rows.

    Args:
        title: as tables have it.
        start: makes its team for a workload's name and a number of ranks.
        only: the workloads it is for, all if empty.
    """

    title: str
    start: Callable[[str, int], Team]
    only: tuple[str, ...] = ()


def keras_rank(system: str, workload: str, num_ranks: int, *options: str, python: str = sys.executable) -> list[str]:
    module = ["-m", "benchmarks.throughput.keras_rank"]
    return [python, *module, system, workload, "--ranks", str(num_ranks), *options]


def by_mpirun(system: str, **variables: str) -> Callable[[str, int], Team]:
    """Ranks connected by Open MPI, each on a core of its own where there are enough."""

    def start(workload: str, num_ranks: int) -> Team:
        command = [*mpirun(num_ranks), *keras_rank(system, workload, num_ranks)]
        return Team(command, num_ranks, environment(**HOROVOD, **variables))

    return start


def by_launcher(engine: str, system: str, **variables: str) -> Callable[[str, int], Team]:
    """Ranks of `keras-par run` that an engine connects, each on a core of its own."""

    def start(workload: str, num_ranks: int) -> Team:
        launcher = [str(SCRIPTS / "keras-par"), "run", "-np", str(num_ranks), "--engine", engine]
        logs = ["--log-dir", str(REPOSITORY / "build" / f"{engine}-logs"), "--tee", "--hang-after", "86400"]
        command = [*launcher, *logs, *keras_rank(system, workload, num_ranks)[1:]]
        return Team(command, num_ranks, environment(**HOROVOD, **variables))

    return start


def side_by_side(command: Callable[[str, int, int], Sequence[str]], **variables: str) -> Callable[[str, int], Team]:
    """Processes that a launcher does not connect, each bound to a core; `command` is of workload, ranks and rank."""

    def start(workload: str, num_ranks: int) -> Team:
        cores = sorted(os.sched_getaffinity(0))
        lines = []
        for rank in range(num_ranks):
            words = ["taskset", "-c", str(cores[rank % len(cores)]), *command(workload, num_ranks, rank)]
            lines.append(" ".join(words) + " &")
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(num_ranks))
        shell = ["sh", "-c", "\n".join([*lines, "wait"])]
        return Team(shell, num_ranks, environment(BENCHMARK_WORKERS=addresses, **variables))

    return start


def in_one_process(system: str, peer: str | None = None, **variables: str) -> Callable[[str, int], Team]:
    """A process with all cores."""

    def start(workload: str, num_ranks: int) -> Team:
        python = sys.executable if peer is None else python_of(peer)
        command = keras_rank(system, workload, num_ranks, "--threads", str(all_cores()), python=python)
        return Team(command, 1, environment(OMP_NUM_THREADS=str(all_cores()), **variables))

    return start


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def python_of(peer: str) -> str:
    """The interpreter of another system's environment, which is made the first time."""
    folder = PEERS / peer
    python = str(folder / "bin" / "python")
    if not (folder / "ready").exists():
        print(f"Installing {', '.join(PACKAGES[peer])} in {folder.relative_to(REPOSITORY)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES[peer]], check=True)
        (folder / "ready").touch()
    return python


def alone(workload: str, num_ranks: int, rank: int) -> list[str]:
    return keras_rank("independent", workload, num_ranks, "--rank", str(rank))


def workers(workload: str, num_ranks: int, rank: int) -> list[str]:
    return keras_rank("multi-worker", workload, num_ranks, "--rank", str(rank))


def torch_ddp(workload: str, num_ranks: int, rank: int) -> list[str]:
    module = [python_of("torch"), "-m", "benchmarks.throughput.torch_rank", workload]
    return [*module, "--ranks", str(num_ranks), "--rank", str(rank)]


def torch_fsdp(workload: str, num_ranks: int, rank: int) -> list[str]:
    return [*torch_ddp(workload, num_ranks, rank), "--fsdp"]


def jax_ranks(workload: str, num_ranks: int, rank: int) -> list[str]:
    return keras_rank("jax-processes", workload, num_ranks, "--rank", str(rank), python=python_of("jax"))


def jax_devices(workload: str, num_ranks: int, system: str = "jax-devices") -> Team:
    flags = f"--xla_force_host_platform_device_count={num_ranks}"
    # XLA's all-reduce waits in the threads of its pool, which are NPROC or as many as cores: with two for two devices
    # it comes to a deadlock.
    variables = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "NPROC": str(4 * num_ranks)}
    return in_one_process(system, "jax", **variables)(workload, num_ranks)


def jax_megatron(workload: str, num_ranks: int) -> Team:
    return jax_devices(workload, num_ranks, "jax-megatron")


LARGE = ("wide", "gpt")
FAST = {"HOROVOD_CYCLE_TIME": "0.2"}
SYSTEMS = {
    "bound": System("independent processes (bound)", side_by_side(alone)),
    "plain": System("Keras, one process, all cores", in_one_process("plain")),
    "keras-par": System("keras-par, MPI", by_mpirun("keras-par", **FAST)),
    "keras-par-gloo": System("keras-par, Gloo", by_launcher("gloo", "keras-par", **FAST)),
    "keras-par-tensorflow": System("keras-par, TensorFlow", by_launcher("tensorflow", "keras-par")),
    "loop": System("hand-written Horovod loop, MPI", by_mpirun("loop", **FAST)),
    "loop-dense": System("the loop, dense gradients", by_mpirun("loop-dense", **FAST), only=("recommender",)),
    "reduction": System("only the loop's all-reduce", by_mpirun("reduction", **FAST)),
    "keras-par-bf16": System("keras-par, MPI, compression='bf16'", by_mpirun("keras-par-bf16", **FAST)),
    **{f"zero-{n}": System(f"keras-par, MPI, zero={n}", by_mpirun(f"zero-{n}", **FAST), LARGE) for n in (1, 2, 3)},
    "megatron": System("keras-par, MPI, megatron", by_mpirun("megatron", **FAST), only=("gpt",)),
    "ddp": System("PyTorch DDP, Gloo", side_by_side(torch_ddp)),
    "fsdp": System("PyTorch FSDP2, Gloo", side_by_side(torch_fsdp), only=LARGE),
    "jax": System("Keras on JAX, DataParallel, devices", jax_devices),
    "jax-megatron": System("Keras on JAX, ModelParallel, megatron", jax_megatron, only=("gpt",)),
    "jax-processes": System("Keras on JAX, DataParallel, processes", side_by_side(jax_ranks, KERAS_BACKEND="jax")),
    "mirrored": System("tf.distribute, MirroredStrategy", in_one_process("mirrored")),
    "multi-worker": System("tf.distribute, MultiWorkerMirrored", side_by_side(workers)),
}
