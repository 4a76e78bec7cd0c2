"""Writes what hosts keep in memory to the folder that all ranks see, before a job goes on after a failure."""

import contextlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from keras_par.base import host_memory
from keras_par.base.regular_file import opened
from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import whole
from keras_par.checkpoint.manifest import CheckpointError
from keras_par.checkpoint.memory import folder_for
from keras_par.comm.communicator import Communicator, gather_or_raise


@dataclass(frozen=True)
class Held:
    """What a host has of one checkpoint.

    Args:
        folder: where it is on that host.
        name: of the checkpoint.
        serial: grows with each checkpoint of the job.
        sums: the checksums of its files, which tell it from another of that name.
        ranks: whose files are there.
    """

    folder: str
    name: str
    serial: int
    sums: list[str]
    ranks: list[int]


def rescue(folder: Path, prefix: str, communicator: Communicator) -> None:
    """Writes the newest checkpoint in the memory of the hosts to the folder, if the folder has none as new.

    After that nothing of earlier attempts is left in memory. Costs two all-gathers of a few bytes, and four more if
    there is one; none where nobody starts the job again.

    Raises:
        ValueError: on every rank, if a rank cannot write it.
    """
    own = folder_for(folder, prefix)
    if own is None:
        return
    earlier = [] if communicator.local_rank else list(host_memory.generations(own, host_memory.attempt()))
    held = [each for path in earlier for each in held_in(path)]
    newest = newest_on_disk(folder, prefix) if communicator.rank == 0 else 0
    answers = gather_or_raise(communicator, "kp.rescue.look", [newest, [asdict(each) for each in held]], None)
    found = choice([[Held(**each) for each in told] for _, told in answers], answers[0][0])
    if found is not None:
        take(*found, held, folder, communicator)
    for path in earlier:
        shutil.rmtree(path, ignore_errors=True)


def take(
    chosen: Held, source_of: Mapping[int, int], held: Sequence[Held], folder: Path, communicator: Communicator
) -> None:
    """Writes a checkpoint in memory to the folder.

    Args:
        chosen: the checkpoint.
        source_of: for each of its files the rank that writes it.
        held: what this host has.
        folder: for it.
        communicator: of the job.
    """
    mine = next((each for each in held if each.sums == chosen.sums), None)
    files = [file for file, source in source_of.items() if source == communicator.rank]
    gather_or_raise(communicator, "kp.rescue.files", None, copied(mine, folder, files) if mine else None)
    is_first = source_of[0] == communicator.rank
    gather_or_raise(communicator, "kp.rescue.complete", None, completed(mine, folder) if mine and is_first else None)
    if communicator.rank == 0:
        print(f"keras-par: checkpoint {chosen.name} was in memory and is in '{folder}' now", flush=True)


def held_in(folder: Path) -> list[Held]:
    """What this host has of a checkpoint, if it has its manifest: the files that fit their checksums."""
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(CheckpointError):
            manifest = manifests.read(path)
            ranks = [rank for rank, file in enumerate(manifest.files) if manifests.fits(folder / file.path, file)]
            sums = [file.sha256 for file in manifest.files]
            found.append(Held(str(folder), manifest.name, manifest.serial, sums, ranks))
    return found


def newest_on_disk(folder: Path, prefix: str) -> int:
    """The serial of the newest checkpoint in the folder, 0 if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged ones `folders.newest_whole` warns
        return max((manifest.serial for manifest in folders.complete(folder, prefix)), default=0)


def choice(everywhere: Sequence[Sequence[Held]], newest: int) -> tuple[Held, dict[int, int]] | None:
    """The newest checkpoint of which the hosts have all files together; for each file the rank that has it.

    Args:
        everywhere: what each rank's host has, told by one rank of each.
        newest: the serial that it must be beyond.
    """
    for chosen in sorted((each for held in everywhere for each in held), key=lambda each: -each.serial):
        same = [(rank, each) for rank, held in enumerate(everywhere) for each in held if each.sums == chosen.sums]
        source_of = {file: rank for rank, each in reversed(same) for file in each.ranks}
        if chosen.serial > newest and len(source_of) == len(chosen.sums):
            return chosen, source_of
    return None


def copied(held: Held, folder: Path, ranks: Sequence[int]) -> str | None:
    """Copies the files of some ranks; why it cannot, in a sentence."""
    try:
        for rank in ranks:
            relative = manifests.file_of(held.name, rank)
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            with opened(Path(held.folder) / relative) as source, whole(folder / relative) as target:
                shutil.copyfileobj(source, target)
    except OSError as error:
        return cannot_write(held, folder, error)
    return None


def completed(held: Held, folder: Path) -> str | None:
    """Writes the manifest; why it cannot, in a sentence."""
    try:
        manifests.write(folder, manifests.read(manifests.path_of(Path(held.folder), held.name)))
    except (OSError, CheckpointError) as error:
        return cannot_write(held, folder, error)
    return None


def cannot_write(held: Held, folder: Path, error: Exception) -> str:
    return (
        f"checkpoint '{held.name}', which is in memory, cannot be written to '{folder}' ({error}): make room, or give "
        "another folder."
    )
