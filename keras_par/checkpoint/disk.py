"""Keeps the newest checkpoints in the folder that all ranks see."""

from pathlib import Path

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

    def path_for(self, manifest: Manifest, relative: str) -> Path:
        """Below the one folder of all."""
        return self._folder / relative

    def complete(self, manifest: Manifest) -> str | None:
        """Writes the manifest, and removes what is older than the newest that stay. No collective is used."""
        complaint = None
        if self._rank:
            return complaint
        try:
            manifests.write(self._folder, manifest)
            if self._keep is not None:
                for old in folders.complete(self._folder, self._prefix)[: -self._keep]:
                    folders.remove(self._folder, old)
        except OSError as error:
            complaint = (
                f"the manifest of checkpoint '{manifest.name}' cannot be written ({error}): make room, or give "
                "another folder."
            )
        return complaint
