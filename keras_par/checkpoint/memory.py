"""Keeps the newest checkpoint in the memory of two hosts, so that a rank or a host that is lost costs few steps."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_par.base import host_memory
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import whole
from keras_par.checkpoint.manifest import File, Manifest
from keras_par.comm.communicator import Communicator
from keras_par.comm.horovod import may_have_groups
from keras_par.comm.segments import host

CHUNK_BYTES = 2**24  # of each rank's file that are sent at once


class Memory:
    """The part of a job's checkpoints that this host keeps: its own ranks' files, and those of its partner's ranks.

    Hosts are partners in twos, in the order of their ranks; of an odd number the last three are partners. Where the
    number of ranks is a prime, all hosts are. Costs an all-gather of the hosts' names, and some for the groups.

    Args:
        folder: of this host, for one folder of checkpoints on the disk.
        attempt: how often the job was started before; what an earlier attempt has left is not written over.
        communicator: of the job.
    """

    is_memory = True

    def __init__(self, folder: Path, attempt: str, communicator: Communicator):
        self._folder, self._attempt, self._rank = folder, attempt, communicator.rank
        self._hosts = communicator.all_gather_object(host(), "kp.checkpoint.hosts")
        self._own = [rank for rank, name in enumerate(self._hosts) if name == self._hosts[self._rank]]
        groups = partners(self._hosts)
        self._ranks = next(ranks for ranks in groups if self._rank in ranks)
        self._partners = communicator.group(groups)

    def path_for(self, manifest: Manifest, relative: str) -> Path:
        """Of this rank's file; makes the folder for it."""
        path = self._folder_of(manifest) / relative
        with contextlib.suppress(OSError):  # whose reason comes again when the file is written
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def complete(self, manifest: Manifest) -> str | None:
        """Gives partners each other's files, writes the manifest on each host, and removes what is older.

        Costs for each CHUNK_BYTES of the largest file an all-gather over the partners.
        """
        folder = self._folder_of(manifest)
        complaint = self._exchange_files(folder, manifest.files)
        if complaint is not None or self._rank != self._own[0]:
            return complaint
        try:
            manifests.write(folder, manifest)
        except OSError as error:
            return cannot_keep(folder, error)
        for other in self._folder.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return None

    def _folder_of(self, manifest: Manifest) -> Path:
        return self._folder / f"{self._attempt}.{manifest.serial}"

    def _exchange_files(self, folder: Path, files: Sequence[File]) -> str | None:
        """Sends this rank's file to its partners, and writes theirs; why that cannot be done, in a sentence.

        Every rank takes part to the end, whatever happens to it, so that none waits.
        """
        foreign = [] if len(self._ranks) == 1 or self._rank != self._first_here() else self._foreign()
        lengths = {rank: files[rank].num_bytes for rank in self._ranks}
        complaint: str | None = None
        with contextlib.ExitStack() as stack:
            targets = {}
            try:
                source = stack.enter_context((folder / files[self._rank].path).open("rb"))
                for rank in foreign:
                    path = folder / files[rank].path
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    targets[rank] = stack.enter_context(whole(path))
            except OSError as error:
                complaint = cannot_keep(folder, error)
            for begin in range(0, max(lengths.values()) if len(self._ranks) > 1 else 0, CHUNK_BYTES):
                own = max(0, min(CHUNK_BYTES, lengths[self._rank] - begin))
                data = source.read(own) if complaint is None else bytes(own)
                gathered = self._partners.all_gather(tf.io.decode_raw(data, tf.uint8), "kp.checkpoint.partners")
                start, everything = 0, gathered.numpy().data
                for rank, length in lengths.items():
                    end = start + max(0, min(CHUNK_BYTES, length - begin))
                    if rank in targets and complaint is None:
                        try:
                            targets[rank].write(everything[start:end])
                        except OSError as error:
                            complaint = cannot_keep(folder, error)
                    start = end
        return complaint

    def _first_here(self) -> int:
        """The rank of this host that writes what comes from partners."""
        return next(rank for rank in self._ranks if rank in self._own)

    def _foreign(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self._own]


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
    return (
        f"the checkpoint in memory '{folder}' cannot be written ({error.strerror}): make room there, or leave out "
        "memory_every."
    )
