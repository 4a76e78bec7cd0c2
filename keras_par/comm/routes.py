"""Chooses the ways of a job's collectives by where its ranks are: NCCL, shared memory, two levels, or the engine's."""

import logging
import os
from collections.abc import Sequence

from keras_par.comm.communicator import ENGINES, Communicator
from keras_par.comm.horovod import HorovodCommunicator
from keras_par.comm.segments import host, share
from keras_par.comm.shared_memory import SharedMemoryCommunicator
from keras_par.comm.two_levels import TwoLevelCommunicator

VARIABLE = "KERAS_PAR_SHARED_MEMORY"  # "0" does without

logger = logging.getLogger("keras_par")


def shared(communicator: Communicator) -> Communicator:
    """`communicator` with collectives through shared memory, for all ranks, or for those of each host.

    The same that came in where each rank has a GPU for NCCL to sum on, where no rank has another on its host, or one
    wants none; it knows why. Costs what `share` does, and two all-gathers of a sentence; on several hosts what `share`
    does once more, and some messages.
    """
    if communicator.size == 1:
        return communicator
    own = [refusal(communicator), host(), communicator.gpu, communicator.no_nccl]
    refusals, names, gpus, no_nccl = zip(*communicator.all_gather_object(own, "kp.shared.refusal"), strict=True)
    why, engine = next(filter(None, refusals), None), ENGINES[communicator.engine]
    without = why_no_nccl(list(zip(names, gpus, strict=True)), next(filter(None, no_nccl), None))
    if without is None and isinstance(communicator, HorovodCommunicator):
        communicator.use_gpus()
        why = "each rank has a GPU of its own, and NCCL sums there"
    elif any(gpus):
        logger.info("keras-par: collectives go over the host's memory, not from GPU to GPU, because %s", without)
    hosts = ranks_by_host(names)
    if why is None and len(hosts) == communicator.size:
        why = "each rank is on a host of its own"
    if why is not None:
        communicator.no_shared_memory = why
        logger.info("keras-par: collectives go by %s, not through shared memory, because %s", engine, why)
        return communicator
    if len(hosts) > 1:
        return over_hosts(communicator, hosts)
    library, ring, why = share(communicator, hosts)
    communicator.no_shared_memory = why
    if why is not None:
        logger.info("keras-par: collectives go by %s, not through shared memory, because %s", engine, why)
        return communicator
    return SharedMemoryCommunicator(communicator, library, ring)


def over_hosts(communicator: Communicator, hosts: Sequence[Sequence[int]]) -> Communicator:
    """With sums in two levels where all hosts have as many ranks, which share memory; else by the engine alone.

    Groups of ranks on one host share memory in any case.
    """
    communicator.no_shared_memory, engine = "the ranks are on several hosts", ENGINES[communicator.engine]
    grouped = SharedMemoryCommunicator(communicator, None, -1)
    if len(set(map(len, hosts))) > 1:
        logger.info("keras-par: sums over hosts go by %s, because hosts have other numbers of ranks", engine)
        return grouped
    local = grouped.group(hosts)
    why = next(filter(None, communicator.all_gather_object(local.no_shared_memory, "kp.shared.hosts")), None)
    if why is not None:
        grouped.no_shared_memory = why
        logger.info("keras-par: sums over hosts go by %s, because the ranks of one share no memory: %s", engine, why)
        return grouped
    return TwoLevelCommunicator(communicator, local, hosts)


def why_no_nccl(gpus: Sequence[tuple[str, str | None]], missing: str | None) -> str | None:
    """Why NCCL cannot sum on the ranks' GPUs, None if it can.

    Args:
        gpus: the host of each rank, and the GPU that it has there.
        missing: why the engine of a rank does without it in any case.
    """
    if missing is not None:
        return missing
    if any(gpu is None for _, gpu in gpus):
        return "not every rank has a GPU"
    owners: dict[tuple[str, str | None], int] = {}
    for rank, place in enumerate(gpus):
        first = owners.setdefault(place, rank)
        if first != rank:
            return f"ranks {first} and {rank} share GPU {place[1]}, which NCCL does not allow"
    return None


def ranks_by_host(names: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, in the order of the first ones.

    Args:
        names: of the ranks' hosts.
    """
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    return list(found.values())


def refusal(communicator: Communicator) -> str | None:
    """Why this rank would not share memory with any others, None if it would."""
    if os.environ.get(VARIABLE, "1") == "0":
        return f"{VARIABLE}=0 is set on rank {communicator.rank}"
    return None
