"""Text that a language model of KerasHub's writes, and files of its adapters, divided over ranks and not."""

import contextlib
import math
from pathlib import Path

import keras
import numpy as np

from tests.catalogue_cases import WORDS, causal

LENGTH, PROMPTS, STOPS = 12, ([3, 1], [4, 1, 5], [9], [2, 6, 5, 3]), (7, 8, 11)


def strategy(divided: str | None):
    """ZeRO's third stage, KerasHub's own layouts over a mesh, both, or none; "plain" is no strategy."""
    if divided == "plain":
        return contextlib.nullcontext()
    import keras_hub

    import keras_par as kp

    if divided in (None, "zero"):
        return kp.DataParallel(**({"zero": 3, "zero_min_kb": 0} if divided else {})).scope()
    mesh = keras.distribution.DeviceMesh((1, 2) if divided == "layouts" else (2, 2), ("batch", "model"))
    layouts = keras_hub.models.GemmaBackbone.get_layout_map(mesh)
    options = {} if divided == "layouts" else {"zero": 3, "zero_min_kb": 0}
    return kp.ModelParallel(layout_map=layouts, batch_dim_name="batch", **options).scope()


def model() -> keras.Model:
    """A small Gemma with adapters that change what it says."""
    keras.utils.set_random_seed(5)
    made = causal("Gemma", num_query_heads=4, num_key_value_heads=2, head_dim=8, dtype="float64")
    made.backbone.enable_lora(2)
    random = np.random.default_rng(1)
    for weight in made.trainable_weights:
        weight.assign(random.normal(size=weight.shape, scale=0.5))
    return made


def sampler(name: str):
    import keras_hub

    seeded = {
        "top_k": {"k": 5, "seed": 3},
        "random": {"temperature": 2.0, "seed": 3},
        "beam": {"num_beams": 3},
        "contrastive": {"k": 3},
    }
    return keras_hub.samplers.get({"class_name": name, "config": seeded.get(name, {})})


def generate(divided: str, sampled: str, own: bool = False, stops: bool = False) -> dict:
    """What is written after the prompts, in one call, or, with `own`, after the rank's own in calls of one each.

    `stops` ends a text at some tokens, so that ranks with prompts of their own need unlike numbers of turns.
    """
    with strategy(divided):
        made = model()
        made.compile(sampler=sampler(sampled))
        rank, size = place(divided)
        prompts = [[prompt] for prompt in PROMPTS[rank::size]] if own else [PROMPTS]
        texts = [written(made, group, STOPS if stops else None) for group in prompts]
    return {"texts": texts, "rank": rank, "size": size}


def cache(divided: str, sampled: str) -> dict:
    """The part of the cache that this rank has in a turn, and the largest tensor that ranks gather meanwhile."""
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator

    with strategy(divided):
        made = model()
        made.compile(sampler=sampler(sampled))
        shapes, original = [], made.call_with_cache

        def noted(tokens, cache, index):
            shapes.append(tuple(getattr(cache, "local", cache).shape))
            return original(tokens, cache, index)

        made.call_with_cache = noted
        before = world.replace(counting := CountedCommunicator(world.current()))
        try:
            written(made, PROMPTS, None)
        finally:
            world.replace(before)
    gathered = [math.prod(size or 1 for size in each) for call in counting.calls for each in call.shapes]
    return {"shape": shapes[-1], "largest": max(gathered), "size": world.current().size}


def place(divided: str) -> tuple[int, int]:
    if divided == "plain":
        return 0, 1
    import keras_par as kp

    return kp.rank(), kp.size()


def written(made: keras.Model, prompts, stops) -> list:
    tokens, mask = np.zeros((len(prompts), LENGTH), "int32"), np.zeros((len(prompts), LENGTH), "int32")
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    made_of = made.generate({"token_ids": tokens, "padding_mask": mask}, stop_token_ids=stops)
    return (np.asarray(made_of["token_ids"]) * np.asarray(made_of["padding_mask"])).tolist()


def adapters(divided: str, folder: Path, rank_0_only: bool = False) -> dict:
    """Trains adapters, saves them and a preset, changes them and loads them again."""
    with strategy(divided):
        made = model()
        made.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        random = np.random.default_rng(2)
        x = {"token_ids": random.integers(1, WORDS, (8, LENGTH)), "padding_mask": np.ones((8, LENGTH))}
        made.fit(x, np.roll(x["token_ids"], -1, 1), batch_size=4, verbose=0, shuffle=False)
        rank, size = place(divided)
        folder.mkdir(exist_ok=True)
        if rank == 0 or not rank_0_only:
            made.backbone.save_lora_weights(folder / "a.lora.h5")
        if not rank_0_only:
            made.save_to_preset(str(folder / "preset"))
            exported(made, divided, folder / "transformers")
        trained = [np.asarray(weight.value) for weight in made.trainable_weights]
        for weight in made.trainable_weights:
            weight.assign(np.zeros(weight.shape))
        if not rank_0_only:
            made.backbone.load_lora_weights(folder / "a.lora.h5")
        loaded = [np.asarray(weight.value) for weight in made.trainable_weights]
    return {"trained": trained, "loaded": loaded, "rank": rank, "size": size}


def exported(made: keras.Model, divided: str | None, folder: Path) -> None:
    """Writes Hugging Face's files, on ranks by rank 0."""

    def export():
        made.export_to_transformers(str(folder))

    if divided == "plain":
        return export()
    import keras_par as kp

    kp.run_on_rank_0(export, made)


def loops() -> list[list[float]]:
    """What loops give that talk to no rank, with a variable that is no tensor or without, where others are divided."""
    import tensorflow as tf

    with strategy("zero"):
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
        weight = tf.Variable([1.0, 2.0])

        @tf.function
        def grown():
            return keras.ops.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * weight), (0, weight))[1]

        @tf.function
        def listed():
            array = tf.TensorArray(tf.float32, 3)
            loop = keras.ops.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.write(i, 2.0)), (0, array))
            return loop[1].stack()

        return [grown().numpy().tolist(), listed().numpy().tolist()]
