"""Reads a language model that one rank cannot hold: load_preset.py FOLDER zero|layouts|copies.

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


def model(width: int, depth: int) -> keras_hub.models.LlamaCausalLM:
    sizes = {"hidden_dim": width, "intermediate_dim": 2 * width, "num_layers": depth, "vocabulary_size": 50}
    backbone = keras_hub.models.LlamaBackbone(num_query_heads=4, num_key_value_heads=4, **sizes)
    return keras_hub.models.LlamaCausalLM(backbone, preprocessor=None)


def strategy(how: str):
    if how != "layouts":
        return kp.DataParallel(zero=3 if how == "zero" else 0, zero_min_kb=0)
    mesh = keras.distribution.DeviceMesh((1, kp.size()), ("batch", "model"), list(range(kp.size())))
    return kp.ModelParallel(layout_map=keras_hub.models.LlamaBackbone.get_layout_map(mesh))


def load(folder: Path, is_preset: bool) -> keras.Model:
    if is_preset:
        return keras_hub.models.CausalLM.from_preset(str(folder), preprocessor=None)
    return keras.models.load_model(folder / "whole.keras")


def main(folder: Path, how: str, what: str) -> None:
    kp.init()
    with strategy(how).scope():
        load(folder / "small", what == "preset").predict(TOKENS, verbose=0)  # loads what TensorFlow needs
        (folder / f"ready.{kp.rank()}").touch()
        while not (folder / "limited").exists():
            time.sleep(0.1)
        large = load(folder / "large", what == "preset")
        (folder / f"loaded.{kp.rank()}").touch()
        while not (folder / "free").exists():
            time.sleep(0.1)
        result = large.predict(TOKENS, batch_size=4, verbose=0)
    if kp.rank() == 0:
        np.save(folder / "result.npy", result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
