"""Keeps the newest checkpoint in the memory of two hosts, so that a rank or a host that is lost costs few steps."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_par.base import host_memory
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import whole
from keras_par.checkpoint.manifest import File, Manifest
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.comm.horovod import may_have_groups
from keras_par.comm.segments import host

WAY_OUT = "make room there, or leave out memory_every"
CHUNK_BYTES = 2**24  # of each rank's file that are sent at once


class Memory:
    """The part of a job's checkpoints that this host keeps: its own ranks' files, and those of its partner's ranks.

    Hosts are partners in twos, in the order of their ranks; of an odd number the last three are partners. Where the
    number of ranks is a prime, all hosts are. Costs an all-gather of the hosts' names, and some for the groups.

    Args:
        folder: of this host, for one folder of checkpoints on the disk.
        communicator: of the job.
    """

    is_memory = True
    way_out = WAY_OUT  # where a file cannot be written

    def __init__(self, folder: Path, communicator: Communicator):
        self._folder, self._communicator, self._rank = folder, communicator, communicator.rank
        hosts = communicator.all_gather_object(host(), "kp.checkpoint.hosts")
        self._own = [rank for rank, name in enumerate(hosts) if name == hosts[self._rank]]
        groups = partners(hosts)
        self._ranks = next(ranks for ranks in groups if self._rank in ranks)
        self._partners = communicator.group(groups)
        self._newest: Path | None = None  # that all ranks have completed

    def path_for(self, manifest: Manifest, relative: str) -> Path:
        """Of this rank's file; makes the folder for it, in place of those that are older than the newest."""
        path = self._folder_of(manifest) / relative
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)  # only its user may look into it
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._newest is not None and self._rank == self._own[0]:
            for other in self._folder.iterdir():
                if other not in (self._folder_of(manifest), self._newest):
                    shutil.rmtree(other, ignore_errors=True)
        return path

    def complete(self, manifest: Manifest) -> str | None:
        """Gives partners each other's files; once all have them, writes the manifest on each host.

        Costs two all-gathers of a few bytes, and for each CHUNK_BYTES of the largest file one over the partners.

        Raises:
            ValueError: on every rank, if one cannot write its partners' files.
        """
        folder = self._folder_of(manifest)
        complaint = None if len(self._ranks) == 1 else self._exchange_files(folder, manifest.files)
        gather_or_raise(self._communicator, "kp.checkpoint.exchanged", None, complaint)
        self._newest = folder
        if self._rank == self._own[0]:
            try:
                manifests.write(folder, manifest)
            except OSError as error:
                complaint = cannot_keep(folder, error)
        return complaint

    def _folder_of(self, manifest: Manifest) -> Path:
        return self._folder / host_memory.generation(manifest.serial)

    def _exchange_files(self, folder: Path, files: Sequence[File]) -> str | None:
        """Sends this rank's file to its partners, and writes theirs; why that cannot be done, in a sentence.

        Every rank takes part to the end, whatever happens to it, so that none waits.
        """
        is_first_here = self._rank == next(rank for rank in self._ranks if rank in self._own)
        foreign = [rank for rank in self._ranks if is_first_here and rank not in self._own]
        lengths = {rank: files[rank].num_bytes for rank in self._ranks}
        complaint, num_done, own = None, 0, folder / files[self._rank].path
        try:
            with contextlib.ExitStack() as stack:
                source, targets = stack.enter_context(own.open("rb")), {}
                for rank in foreign:
                    (folder / files[rank].path).parent.mkdir(exist_ok=True)
                    targets[rank] = stack.enter_context(whole(folder / files[rank].path))
                for begin in range(0, max(lengths.values()), CHUNK_BYTES):
                    data = source.read(CHUNK_BYTES)
                    num_done += 1
                    pieces = self._exchange_chunk(lengths, begin, data)
                    for rank, target in targets.items():
                        target.write(pieces[rank])
        except OSError as error:
            complaint = cannot_keep(folder, error)
        for begin in range(num_done * CHUNK_BYTES, max(lengths.values()), CHUNK_BYTES):  # which partners wait for
            self._exchange_chunk(lengths, begin, bytes(max(0, min(CHUNK_BYTES, lengths[self._rank] - begin))))
        return complaint

    def _exchange_chunk(self, lengths: Mapping[int, int], begin: int, own: bytes) -> dict[int, bytes]:
        """The partners' bytes from one place of their files on."""
        sizes = [max(0, min(CHUNK_BYTES, length - begin)) for length in lengths.values()]
        gathered = self._partners.all_gather(tf.io.decode_raw(own, tf.uint8), "kp.checkpoint.partners")
        parts = np.split(gathered.numpy(), np.cumsum(sizes)[:-1])
        return {rank: part.tobytes() for rank, part in zip(lengths, parts, strict=True)}


def folder_for(directory: Path, prefix: str) -> Path | None:
    """Where this host keeps in memory what belongs to a folder of checkpoints; None if nobody would go on from it."""
    job = host_memory.folder()
    if job is None:
        return None
    return job / hashlib.sha256(f"{os.path.abspath(directory)}\n{prefix}".encode()).hexdigest()[:16]


def partners(hosts: Sequence[str]) -> list[list[int]]:
    """Groups of ranks that keep each other's files: every rank of a host has a rank of a partner in its group.

    Args:
        hosts: of each rank.
    """
    ranks_of = {name: [rank for rank, each in enumerate(hosts) if each == name] for name in hosts}
    names = list(ranks_of)
    if len(names) == 1:
        return [[rank] for rank in range(len(hosts))]
    if not may_have_groups(len(hosts)):
        return [list(range(len(hosts)))]
    starts = range(0, len(names) - 1, 2)
    circles = [names[start : start + 2] if start + 3 < len(names) else names[start:] for start in starts]
    found = []
    for circle in circles:
        width = min(len(ranks_of[name]) for name in circle)
        columns = range(width)
        found += [sorted(rank for name in circle for rank in ranks_of[name][first::width]) for first in columns]
    return found


def cannot_keep(folder: Path, error: OSError) -> str:
    return f"the checkpoint in memory '{folder}' cannot be written ({error.strerror}): {WAY_OUT}."
