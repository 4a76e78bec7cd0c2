"""Keeps the newest checkpoints in the folder that all ranks see, where one job at a time writes those of a prefix."""

import os
from pathlib import Path

from keras_par.base import host_memory
from keras_par.base.lock import DEAD_SECONDS, Lock, Owner, TakenError, take
from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.manifest import Manifest


class Disk:
    """The folder of a job's checkpoints.

    Args:
        folder: that all ranks see.
        prefix: of the checkpoints' names.
        keep: how many of the newest stay, None for all.
        rank: of this process; rank 0 completes them.
    """

    is_memory = False
    way_out = "make room, or give another folder"  # where a file cannot be written

    def __init__(self, folder: Path, prefix: str, keep: int | None, rank: int):
        self._folder, self._prefix, self._keep, self._rank = folder, prefix, keep, rank
        self._lock: Lock | None = None

    def open(self) -> str | None:
        """On rank 0, keeps other jobs out; why it cannot, in a sentence. A job that is dead keeps nobody out."""
        if self._rank or self._lock is not None:
            return None
        job = os.environ.get(host_memory.JOB, "")
        try:
            self._lock = take(self._folder / f"{self._prefix}.lock", job, waits_for)
        except TakenError as owner:
            return self._in_use(owner)
        except OSError as error:
            return f"checkpoints cannot be written to '{self._folder}' ({error.strerror}): give another folder."
        return None

    def close(self) -> None:
        """Lets other jobs in."""
        if self._lock is not None:
            self._lock.give_back()
        self._lock = None

    def _in_use(self, owner: TakenError) -> str:
        return (
            f"another job, {owner}, writes checkpoints '{self._prefix}-*' to '{self._folder}': give this job another "
            "folder, or end the other."
        )

    def path_for(self, manifest: Manifest, relative: str) -> Path:
        """Below the one folder of all."""
        return self._folder / relative

    def complete(self, manifest: Manifest) -> str | None:
        """Writes the manifest, and removes what is older than the newest that stay. No collective is used."""
        complaint = None
        if self._rank:
            return complaint
        try:
            if self._lock is not None:
                self._lock.check()
            manifests.write(self._folder, manifest)
            if self._keep is not None:
                folders.prune(self._folder, self._prefix, self._keep)
        except TakenError as owner:
            complaint = self._in_use(owner)
        except OSError as error:
            complaint = (
                f"the manifest of checkpoint '{manifest.name}' cannot be written ({error}): make room, or give "
                "another folder."
            )
        return complaint


def waits_for(owner: Owner) -> None:
    print(
        f"keras-par: {owner} had the folder of checkpoints: waiting up to {DEAD_SECONDS:g} s to see if it lives",
        flush=True,
    )
