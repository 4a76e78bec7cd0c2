"""Writes one checkpoint at a time while training goes on, and completes it once every rank's file is on the disk."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import write_arrays
from keras_par.checkpoint.manifest import File, Manifest
from keras_par.comm.agreement import exchange
from keras_par.comm.communicator import Communicator
from keras_par.job import heartbeat


class Writer:
    """This rank's part in writing a job's checkpoints.

    A thread writes this rank's file; the ranks tell each other on their main threads when all are done.

    Args:
        folder: of the checkpoints.
        prefix: of their names.
        keep: how many of the newest stay, None for all.
        asynchronous: False waits for each file.
    """

    def __init__(self, folder: Path, prefix: str, keep: int | None, asynchronous: bool, communicator: Communicator):
        self._folder, self._prefix, self._keep, self._asynchronous = folder, prefix, keep, asynchronous
        self._communicator = communicator
        self._thread: threading.Thread | None = None
        self._manifest: Manifest | None = None
        self._written: File | None = None
        self._complaint: str | None = None
        self._taken: dict[str, float] = {}  # when the state was copied, and after how many steps of this process

    @property
    def is_writing(self) -> bool:
        """True from a checkpoint's begin until it is complete; equal on all ranks."""
        return self._manifest is not None

    def begin(self, manifest: Manifest, arrays: Mapping[str, np.ndarray], complaint: str | None) -> None:
        """Begins to write this rank's file; `manifest` lacks the files. Costs two all-gathers of a few bytes.

        Raises:
            ValueError: on every rank, if the ranks are at different steps, or one has a `complaint`.
        """
        is_first = self._communicator.rank == 0
        free = folders.free_name(self._folder, manifest.name) if is_first else None
        answers = exchange(self._communicator, "kp.checkpoint.begin", [manifest.name, free], complaint)
        names, (free, *_) = zip(*answers, strict=True)
        if len(set(names)) > 1:
            exchange(
                self._communicator,
                "kp.checkpoint.apart",
                None,
                f"the ranks are at different steps when a checkpoint is due ({', '.join(names)}): give all ranks the "
                "same callbacks.",
            )
        self._manifest, self._written, self._complaint = dataclasses.replace(manifest, name=free), None, None
        self._taken = {"taken": time.time(), "steps": heartbeat.current().page.steps}
        self._thread = threading.Thread(target=self._write, args=(free, arrays), name="kp-checkpoint")
        self._thread.start()
        if not self._asynchronous:
            self.finish()

    def complete_if_written(self) -> None:
        """Completes a checkpoint that was begun if all ranks' files are there. Costs one all-reduce of a scalar."""
        if self._manifest is None:
            return
        done = self._thread is None or not self._thread.is_alive()
        if self._communicator.all_agree(done, "kp.checkpoint.written"):
            self.finish()

    def finish(self) -> None:
        """Waits until all ranks' files are there and completes the checkpoint. Costs four all-gathers of a few bytes.

        Raises:
            ValueError: on every rank, if a rank could not write its file.
        """
        if self._manifest is None:
            return
        assert self._thread is not None
        self._thread.join()
        own = None if self._written is None else vars(self._written)
        manifest, self._manifest = self._manifest, None
        files = exchange(self._communicator, "kp.checkpoint.files", own, self._complaint)
        complaint = None
        if self._communicator.rank == 0:
            try:
                self._complete(manifest, [File(**file) for file in files])
            except OSError as error:
                complaint = (
                    f"the manifest of checkpoint '{manifest.name}' cannot be written ({error}): make room, or give "
                    "another folder."
                )
        exchange(self._communicator, "kp.checkpoint.complete", None, complaint)

    def _write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        relative = folders.file_of(name, self._communicator.rank)
        try:
            self._written = File(relative, *write_arrays(self._folder / relative, arrays))
        except Exception as error:  # in a thread nobody else would hear of it
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._complaint = (
                f"checkpoint '{self._folder / relative}' cannot be written ({why}): make room, or give another folder."
            )

    def _complete(self, manifest: Manifest, files: list[File]) -> None:
        manifests.write(self._folder, dataclasses.replace(manifest, files=files))
        text = f"{manifest.name} in {self._folder}"
        heartbeat.current().tell("checkpoint", text=text, name=manifest.name, **self._taken)
        if self._keep is not None:
            for old in folders.complete(self._folder, self._prefix)[: -self._keep]:
                folders.remove(self._folder, old)
