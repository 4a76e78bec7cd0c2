"""Folders of checkpoints that somebody has damaged or forged at random, and all that reads them or removes by them."""

import hashlib
import json
import os
import random
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors.numpy import load_file

from keras_par.checkpoint import callback_states, rescue, snapshot
from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.files import SUFFIX, TEMPORARY, write_arrays
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.load import load_checkpoint
from keras_par.checkpoint.manifest import CheckpointError, File, Manifest

NUM_RANKS, OLDER, NEWER = 2, "CKP-1_5", "CKP-2_5"
LIMIT_SECONDS, GUARD_SECONDS = 5, 60  # of processor time for one input; of anything, on a machine that is busy
ORDER = json.dumps(random.Random(3).getstate())
ODD = (
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 2**40, 2**53, 2**63, 2**70, 10**300, 0.5, float("nan"), float("inf")),
    *("", "same", "sum", "batch", "float64", "string", "resource", "../victim", "/etc/hostname", "rank.1"),
    *("..", "a\nb", "\ud800", "x" * 70_000, [], {}, [[]], [None], ["batch"], [1, 2], {"a": 1}, {"dict": {}}, [-1]),
)
HEADERS: tuple[dict, ...] = (
    *({"dtype": dtype} for dtype in ("F8_E4M3", "F4", "O", "", None, 3, "x" * 70_000, "\n", "U8", "F64")),
    *({"shape": shape} for shape in ([9999999999999], [-1, 8], [2**62, 0], [2**40, 2**40], [], [1] * 5000, None, "4")),
    *({"data_offsets": offsets} for offsets in ([0, 2**63], [8, 0], [-4, 4], [0], [0, 0], [2**70, 2**70 + 4], None)),
)


def small_model() -> keras.Model:
    """One with seeds, moving statistics, and an optimizer that accumulates gradients."""
    layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


class Forger:
    """Makes folders, each anew from two whole checkpoints.

    Args:
        place: an empty folder; what is to be left alone is in it, and the folder of checkpoints.
    """

    def __init__(self, place: Path):
        self.place, self.folder, self.model = place, place / "ckpt", small_model()
        self._whole, grid = place / "whole", in_a_row(NUM_RANKS)
        frozen_files: list[File | None] = [None] * NUM_RANKS
        for serial, name in enumerate((OLDER, NEWER), 1):
            files = []
            for rank in range(NUM_RANKS):
                folders.rank_folder(self._whole, rank).mkdir(parents=True, exist_ok=True)
                state = json.dumps(callback_states.encoded({"best": [1.5, np.ones(2)]}, parts := []))
                arrays = snapshot.take(self.model, grid, rank) | {
                    callback_states.PREFIX + "Best": np.frombuffer(state.encode(), np.uint8),
                    callback_states.PREFIX + "Best/0": parts[0],
                }
                frozen = {each: arrays.pop(each) for each in list(arrays) if each.endswith("/kernel#0")}
                if frozen and name == OLDER:
                    relative = manifests.frozen_file_of(name, rank)
                    frozen_files[rank] = File(relative, *write_arrays(self._whole / relative, frozen))
                relative = manifests.file_of(name, rank)
                files.append(File(relative, *write_arrays(self._whole / relative, arrays)))
            about = {"mesh": grid, "epoch": serial, "step": 0, "position": ["10", 0, 5, 16, serial, ORDER], "seed": 7}
            about |= {
                "monitored": ["val_loss", 0.5],
                "versions": {"keras": "3"},
                "files": files,
                "frozen": frozen_files,
            }
            variables = snapshot.variables_of(self.model)
            manifests.write(self._whole, Manifest(name=name, serial=serial, variables=variables, **about))
        self._victims = [place / "victim", *(place / f"elsewhere/{name}{SUFFIX}" for name in (OLDER, NEWER))]
        (place / "elsewhere").mkdir()
        for victim in self._victims:
            victim.write_bytes(b"of somebody else")
        self._marks = self._seen()

    def _seen(self) -> list[tuple[bytes, int]]:
        return [(victim.read_bytes(), victim.stat().st_mtime_ns) for victim in self._victims]

    def input(self, seed: int) -> None:
        """Looks at all that reads a folder; it raises nothing but the package's error, touches nothing, is quick.

        Raises:
            AssertionError: it is not so.
        """
        chance = random.Random(seed)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._whole, self.folder)
        chance.choices((self._forge_manifest, self._forge_arrays, self._forge_entry), (6, 3, 1))[0](chance)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, GUARD_SECONDS)
        try:
            self._look(is_loaded=seed % 4 == 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.process_time() - began
        assert seconds < LIMIT_SECONDS, f"{seconds} s"
        assert self._seen() == self._marks, "a file elsewhere was touched"

    def _look(self, is_loaded: bool) -> None:
        told: list[str] = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            attempt(told, lambda: read_all(self.folder))
            if is_loaded:
                attempt(told, lambda: load_checkpoint(self.folder, self.model))
                attempt(told, lambda: load_checkpoint(self.folder / NEWER, self.model))
            attempt(told, lambda: rescue.held_in(self.folder))
            attempt(told, self._prune)
        told += [str(each.message) for each in warned]
        for sentence in told:
            assert sentence.startswith("keras-par: ") and "\n" not in sentence and len(sentence) < 2000, sentence
            sentence.encode()

    def _prune(self) -> None:
        """As training does with `keep=1`, on a rank fewer."""
        found = folders.complete(self.folder, "CKP", unfit := [])
        frozen = None if unfit else folders.frozen_files(found)
        for rank in (0, *folders.ranks_without_process(self.folder, 1)):
            if folders.rank_folder(self.folder, rank).is_dir():
                folders.remove_leftovers(self.folder, "CKP", rank, {OLDER, NEWER}, frozen)
        files = [File(manifests.file_of("CKP-3_5", 0), 0, "")]
        manifest = Manifest("CKP-3_5", 3, in_a_row(1), 3, 0, None, 7, None, [], {}, files)
        complaint = Disk(self.folder, "CKP", 1, 0).complete(manifest)
        if complaint is not None:
            raise CheckpointError(f"keras-par: {complaint}")

    def _forge_manifest(self, chance: random.Random) -> None:
        path = self.folder / f"{NEWER}.json"
        document = json.loads(path.read_bytes())
        for _ in range(chance.choice((1, 1, 2, 4))):
            document = changed(document, chance)
        write_forged(path, document, is_signed=chance.random() < 0.85)
        if chance.random() < 0.15:
            path.write_bytes(bitten(path.read_bytes(), chance))

    def _forge_arrays(self, chance: random.Random) -> None:
        """Changes a rank's file, and says in the manifest what it is now."""
        path, rank = self.folder / f"{NEWER}.json", chance.randrange(NUM_RANKS)
        file = self.folder / manifests.file_of(NEWER, rank)
        if chance.random() < 0.4:
            file.write_bytes(bitten(file.read_bytes(), chance))
        else:
            arrays = dict(load_file(file))
            name = chance.choice(list(arrays))
            arrays |= {name: chance.choice(list(arrays.values()))}
            if chance.random() < 0.3:
                del arrays[name]
            write_arrays(file, arrays)
            if chance.random() < 0.4:
                content = file.read_bytes()
                end = 8 + int.from_bytes(content[:8], "little")
                header = json.loads(content[8:end])
                header[chance.choice(list(header))] |= chance.choice(HEADERS)
                text = chance.choice(("[" * 3000, "{", "-" * 9000)) if chance.random() < 0.2 else json.dumps(header)
                length = chance.choice((0, 2**40, 2**63)) if chance.random() < 0.1 else len(text)
                file.write_bytes(length.to_bytes(8, "little") + text.encode() + content[end:])
        document, content = json.loads(path.read_bytes()), file.read_bytes()
        about = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        document["checkpoint"]["files"][rank] |= about
        write_forged(path, document, is_signed=True)

    def _forge_entry(self, chance: random.Random) -> None:
        """Puts something else where a file or folder is."""
        files = [manifests.file_of(NEWER, 1), manifests.file_of(OLDER, 0), manifests.file_of(NEWER, 0) + TEMPORARY]
        names = [f"{NEWER}.json", "rank.1", manifests.frozen_file_of(OLDER, 0), *files]
        path = self.folder / chance.choice(names)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        elsewhere = (*self._victims, self.place / "elsewhere", Path("/dev/zero"), self.folder, path)
        kind = chance.choice(("link", "link", "pipe", "folder", "holes"))
        if kind == "link":
            path.symlink_to(chance.choice(elsewhere))
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            with path.open("wb") as file:
                file.truncate(2**40)


def attempt(told: list[str], act: Callable[[], Any]) -> None:
    """Calls `act`, which may raise the package's error."""
    try:
        act()
    except CheckpointError as error:
        told.append(str(error))


def read_all(folder: Path) -> None:
    """Reads what Resume would."""
    reader = folders.newest_whole(folder, "CKP")
    assert reader is not None and reader.manifest.name in (OLDER, NEWER)
    try:
        for variable in reader.manifest.variables:
            for place in range(1 if variable.across_ranks == "same" else reader.manifest.mesh.num_places):
                whole = tuple(slice(0, size) for size in variable.shape)
                reader.part_of(variable, place, whole, np.dtype(variable.dtype))
        kept = np.random.get_state(), random.getstate()
        try:
            snapshot.restore_random_state(reader, 0)
        finally:
            np.random.set_state(kept[0])
            random.setstate(kept[1])
        for rank in range(reader.manifest.world_size):
            try:
                callback_states.read(reader, rank, "Best")
            except Exception as error:  # of which `callback_states.restore` makes a sentence
                assert not isinstance(error, MemoryError), error
    finally:
        reader.close()


def write_forged(path: Path, document: Any, is_signed: bool) -> None:
    """Writes a manifest, with its right checksum if there is room for one."""
    if is_signed and isinstance(document, dict) and "checkpoint" in document:
        document["checksum"] = manifests.checksum(document["checkpoint"])
    path.write_text(json.dumps(document))


def changed(document: Any, chance: random.Random) -> Any:
    """A document with one place of it changed: another value, one less, one more, one moved or nested."""
    places: list[tuple[Any, Any]] = []
    nodes = [document]
    while nodes and len(places) < 3000:
        node = nodes.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        places += [(node, key) for key in keys]
        nodes += [node[key] for key in keys]
    if not places:
        return document
    # Half of all places are those of variables, which are alike.
    node, key = chance.choice(places if chance.random() < 0.5 else places[:40])
    kind = chance.choice(("odd", "odd", "odd", "less", "more", "moved", "nested", "number"))
    other = chance.choice(places)
    if kind == "less":
        del node[key]
    elif kind == "more" and isinstance(node, dict):
        node[chance.choice(("shape", "world_size", "layout", "mesh", "more"))] = chance.choice(ODD)
    elif kind == "more":
        node.append(json.loads(json.dumps(node[key])))
    elif kind == "moved" and key in other[0] if isinstance(other[0], dict) else False:
        node[key] = json.loads(json.dumps(other[0][key]))
    elif kind == "nested":
        node[key] = nested(node[key], chance.choice((1, 50, 200)), chance)
    elif kind == "number" and isinstance(node[key], int):
        node[key] = node[key] + chance.choice((-1, 1, 10**4))
    else:
        node[key] = json.loads(json.dumps(chance.choice(ODD)))
    return document


def nested(value: Any, depth: int, chance: random.Random) -> Any:
    for _ in range(depth):
        value = chance.choice(([value], {"a": value}))
    return value


def bitten(content: bytes, chance: random.Random) -> bytes:
    """Bytes of which some are changed, lost, doubled or put in."""
    found = bytearray(content)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(found) + 1)
        stop = place + chance.choice((1, 3, 40, 4000))
        more = (
            b"",
            bytes(chance.randrange(256) for _ in range(3)),
            b"[" * 20_000,
            b"9" * 5000,
            bytes(found[place:stop]) * 2,
        )
        found[place:stop] = chance.choice(more)
    return bytes(found)
