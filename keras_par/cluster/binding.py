"""Divides a host's cores among its ranks, so that no two ranks share one where there are enough."""

import os
from collections.abc import Iterable
from pathlib import Path


def cores(allowed: Iterable[int], topology: Path = Path("/sys/devices/system/cpu")) -> list[tuple[int, ...]]:
    """The physical cores among the allowed processors, each as its hardware threads, neighbours side by side."""
    found: dict[tuple[int, int], list[int]] = {}
    for number in sorted(allowed):
        folder = topology / f"cpu{number}" / "topology"
        try:
            place = (int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text()))
        except (OSError, ValueError):
            place = (0, number)
        found.setdefault(place, []).append(number)
    return [tuple(found[place]) for place in sorted(found)]


def share(available: list[tuple[int, ...]], local_rank: int, local_size: int) -> set[int] | None:
    """The processors of one of a host's ranks, None if the host has fewer cores than ranks."""
    each = len(available) // local_size
    if each == 0:
        return None
    own = available[local_rank * each : (local_rank + 1) * each]
    return {thread for core in own for thread in core}


def devices(folder: Path = Path("/dev")) -> int:
    """What a host can give ranks of their own: its NVIDIA GPUs, or where there are none the cores that it may use."""
    gpus = num_gpus(folder)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = gpus if visible is None else min(gpus, len([name for name in visible.split(",") if name]))
    return count or len(cores(os.sched_getaffinity(0)))


def num_gpus(folder: Path = Path("/dev")) -> int:
    """NVIDIA's GPUs of this host, also those that CUDA_VISIBLE_DEVICES hides."""
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in folder.glob("nvidia*"))


def bind(local_rank: int, local_size: int) -> None:
    """Binds this process, and those it will start, to its rank's share of the host's cores."""
    own = share(cores(os.sched_getaffinity(0)), local_rank, local_size)
    if own is not None:
        os.sched_setaffinity(0, own)
