"""Writes one checkpoint at a time while training goes on, and completes it once every rank's file is there."""

import dataclasses
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import write_arrays
from keras_par.checkpoint.frozen import Frozen
from keras_par.checkpoint.manifest import File, Manifest
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.job import rank_heartbeat


class Home(Protocol):
    """Where checkpoints are written."""

    is_memory: bool  # which is gone with its host
    way_out: str  # where a file cannot be written

    def path_for(self, manifest: Manifest, relative: str) -> Path:
        """The path of a rank's file of a checkpoint that begins."""

    def complete(self, manifest: Manifest) -> str | None:
        """Is called on every rank once all files are there; why the checkpoint cannot be completed, in a sentence."""


class Writer:
    """This rank's part in writing a job's checkpoints.

    A thread writes this rank's file; the ranks tell each other on their main threads when all are done.

    Args:
        home: where they are written.
        named_in: the folder in which no two checkpoints may have one name.
        asynchronous: False waits for each file.
        communicator: of the job.
    """

    def __init__(self, home: Home, named_in: Path, asynchronous: bool, communicator: Communicator):
        self._home, self._named_in, self._asynchronous = home, named_in, asynchronous
        self._communicator = communicator
        self._thread: threading.Thread | None = None
        self._manifest: Manifest | None = None
        self._written: File | None = None
        self._complaint: str | None = None
        self.frozen = Frozen()
        self._needs_frozen = False  # whether what is being written leaves arrays to the file of these
        self._taken: dict[str, float] = {}  # when the state was copied, and after how many steps of this process

    @property
    def is_writing(self) -> bool:
        """True from a checkpoint's begin until it is complete; equal on all ranks."""
        return self._manifest is not None

    def begin(
        self,
        manifest: Manifest,
        arrays: Mapping[str, np.ndarray],
        complaint: str | None,
        frozen: Collection[str] = (),
    ) -> None:
        """Begins to write this rank's files. Costs two all-gathers of a few bytes.

        Args:
            manifest: without files.
            arrays: what this rank writes.
            complaint: why there can be no checkpoint, in a sentence, or None.
            frozen: the arrays that training is not meant to change, of which only what has changed is written again.

        Raises:
            ValueError: on every rank, if the ranks are at different steps, or one has a `complaint`.
        """
        is_first = self._communicator.rank == 0
        free = folders.free_name(self._named_in, manifest.name) if is_first else None
        answers = gather_or_raise(self._communicator, "kp.checkpoint.begin", [manifest.name, free], complaint)
        names, (free, *_) = zip(*answers, strict=True)
        if len(set(names)) > 1:
            gather_or_raise(
                self._communicator,
                "kp.checkpoint.apart",
                None,
                f"the ranks are at different steps when a checkpoint is due ({', '.join(names)}): give all ranks the "
                "same callbacks.",
            )
        self._manifest, self._written, self._complaint = dataclasses.replace(manifest, name=free), None, None
        self._needs_frozen = False
        self._taken = {"taken": time.time(), "steps": rank_heartbeat.current().page.steps}
        self._thread = threading.Thread(target=self._write, args=(self._manifest, arrays, frozen), name="kp-checkpoint")
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
        own = [each and vars(each) for each in (self._written, self.frozen.file if self._needs_frozen else None)]
        manifest, self._manifest = self._manifest, None
        files = gather_or_raise(self._communicator, "kp.checkpoint.files", own, self._complaint)
        manifest = dataclasses.replace(
            manifest,
            files=[File(**file) for file, _ in files],
            frozen=[frozen and File(**frozen) for _, frozen in files],
        )
        complaint = self._home.complete(manifest)
        if complaint is None and self._communicator.rank == 0:
            about = {"name": manifest.name, "in_memory": self._home.is_memory, **self._taken}
            rank_heartbeat.current().tell("checkpoint", text=f"{manifest.name} in {self._named_in}", **about)
        gather_or_raise(self._communicator, "kp.checkpoint.complete", None, complaint)

    def give_up(self) -> None:
        """Leaves incomplete what was begun; waits for this rank's thread alone."""
        if self._manifest is not None and self._thread is not None:
            self._thread.join()
        self._manifest = None

    def _write(self, manifest: Manifest, arrays: Mapping[str, np.ndarray], frozen: Collection[str]) -> None:
        rank, held = self._communicator.rank, frozenset[str]()
        relative = manifests.file_of(manifest.name, rank)
        path: Path | str = relative
        try:
            if candidates := {name: array for name, array in arrays.items() if name in frozen}:
                relative_frozen = manifests.frozen_file_of(manifest.name, rank)
                path = self._home.path_for(manifest, relative_frozen)
                held = self.frozen.put(path, relative_frozen, candidates)
            path = self._home.path_for(manifest, relative)
            own = {name: array for name, array in arrays.items() if name not in held}
            self._written, self._needs_frozen = File(relative, *write_arrays(path, own)), bool(held)
        except Exception as error:  # in a thread nobody else would hear of it
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._complaint = f"checkpoint '{path}' cannot be written ({why}): {self._home.way_out}."
