"""What this host has for ranks: cores, the share of them that is allowed, memory and shared memory."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from keras_par.cluster.binding import cores

CGROUP_FOLDER = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS = Path("/proc/self/cgroup")
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Host:
    """Cores and memory of a host, and what of them this process may use. Memory is in bytes."""

    physical_cores: int
    logical_cores: int
    allowed_cores: int  # physical cores that the process's CPU mask reaches
    cpu_quota: float | None  # processors' worth of time that the cgroup allows, None if it sets no limit
    memory: int
    memory_available: int  # also within the cgroup's limit
    shm: int
    shm_free: int

    @property
    def usable_cores(self) -> int:
        """Cores that ranks can keep busy: those allowed, and no more than the quota pays for."""
        quota = self.allowed_cores if self.cpu_quota is None else int(self.cpu_quota)
        return max(1, min(self.allowed_cores, quota))


def measure() -> Host:
    """The host this process runs on."""
    memory = psutil.virtual_memory()
    limit = memory_limit() or memory.total
    shm, shm_free = shared_memory()
    return Host(
        physical_cores=len(cores(range(os.cpu_count() or 1))),
        logical_cores=os.cpu_count() or 1,
        allowed_cores=len(cores(os.sched_getaffinity(0))),
        cpu_quota=cpu_quota(),
        memory=min(memory.total, limit),
        memory_available=min(memory.available, limit),
        shm=shm,
        shm_free=shm_free,
    )


def shared_memory() -> tuple[int, int]:
    """Size of /dev/shm and what is free of it, in bytes; zero if it is not there."""
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def cpu_quota() -> float | None:
    """The least number of processors that a cgroup of this process allows, None without a limit."""
    quotas = []
    for folder in cgroup_folders("cpu"):
        if text := read(folder / "cpu.max"):
            quota, period = text.split()
        else:
            quota, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
        if quota not in ("", "max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """The least number of bytes that a cgroup of this process allows, None without a limit."""
    texts = [
        read(folder / name) for folder in cgroup_folders("memory") for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min((int(text) for text in texts if text not in ("", "max")), default=None)


def cgroup_folders(controller: str) -> list[Path]:
    """The folders of this process's cgroup and those above it, in version 1 (one tree a controller) or 2 (one tree)."""
    folders = []
    for line in read(CGROUP_OF_PROCESS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUP_FOLDER / controller if controllers else CGROUP_FOLDER
        own = root / path.strip("/")
        folders += [own, *[above for above in own.parents if above.is_relative_to(root)]]
    return folders


def read(path: Path) -> str:
    """The text of a file of the kernel's, empty if it is not there."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
