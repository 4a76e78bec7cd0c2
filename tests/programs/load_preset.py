"""Reads a language model that one rank cannot hold: load_preset.py FOLDER zero|layouts|copies preset|file|safetensors.

The test limits the memory of all ranks once each has written `ready.<rank>`, until they have written `loaded.<rank>`.
"""

import sys
import time
from pathlib import Path

import keras
import keras_hub
import numpy as np

import keras_par as kp

TOKENS = {"token_ids": np.arange(32).reshape(4, 8) % 50, "padding_mask": np.ones((4, 8), "int32")}


def model(width: int, depth: int, what: str) -> keras_hub.models.Backbone:
    """A Llama 3. For safetensors, which lack a head of its own, its head is the table of words."""
    sizes = {"hidden_dim": width, "intermediate_dim": 2 * width, "num_layers": depth, "vocabulary_size": 50}
    heads = {"num_query_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": what == "safetensors"}
    return keras_hub.models.Llama3Backbone(**sizes, **heads)


def strategy(how: str):
    if how != "layouts":
        return kp.DataParallel(zero=3 if how == "zero" else 0, zero_min_kb=0)
    mesh = keras.distribution.DeviceMesh((1, kp.size()), ("batch", "model"), list(range(kp.size())))
    return kp.ModelParallel(layout_map=keras_hub.models.Llama3Backbone.get_layout_map(mesh))


def write(folder: Path, what: str, name: str, whole: keras_hub.models.Backbone) -> None:
    (folder / what).mkdir(exist_ok=True)
    if what == "file":
        whole.save(folder / what / f"{name}.keras")
    else:
        save = whole.save_to_preset if what == "preset" else whole.export_to_transformers
        save(str(folder / what / name))


def load(folder: Path, what: str, name: str) -> keras.Model:
    if what == "file":
        return keras.models.load_model(folder / what / f"{name}.keras")
    return keras_hub.models.Backbone.from_preset(str(folder / what / name))


def main(folder: Path, how: str, what: str) -> None:
    kp.init()
    with strategy(how).scope():
        load(folder, what, "small").predict(TOKENS, verbose=0)  # loads what TensorFlow needs
        (folder / f"ready.{kp.rank()}").touch()
        while not (folder / "limited").exists():
            time.sleep(0.1)
        large = load(folder, what, "large")
        (folder / f"loaded.{kp.rank()}").touch()
        while not (folder / "free").exists():
            time.sleep(0.1)
        result = large.predict(TOKENS, batch_size=4, verbose=0)
    if kp.rank() == 0:
        np.save(folder / "result.npy", result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
