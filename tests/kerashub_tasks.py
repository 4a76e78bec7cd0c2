"""KerasHub's tasks, built small from arguments, tuned as users tune them, written to files and read again."""

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

ROWS, LENGTH, WORDS, CLASSES = 8, 8, 48, 6
SIZES = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
TEXT = {"num_heads": 4, "dropout": 0.0, "max_sequence_length": LENGTH}


def draws() -> np.random.Generator:
    return np.random.default_rng(3)


def tokens() -> np.ndarray:
    return draws().integers(1, WORDS, (ROWS, LENGTH)).astype("int32")


def labels(*shape: int) -> np.ndarray:
    return draws().integers(0, CLASSES, (ROWS, *shape))


def ones() -> np.ndarray:
    return np.ones((ROWS, LENGTH), "int32")


def text(name: str) -> dict[str, np.ndarray]:
    """What an encoder or a decoder reads, whose inputs' names begin so."""
    return {f"{name}token_ids": tokens(), f"{name}padding_mask": ones()}


def of_bert() -> dict[str, np.ndarray]:
    return {**text(""), "segment_ids": np.zeros((ROWS, LENGTH), "int32")}


def hub():
    import keras_hub

    return keras_hub.models


def bert():
    return hub().BertBackbone(**SIZES, **TEXT)


def causal():
    backbone = hub().GemmaBackbone(**SIZES, num_query_heads=4, num_key_value_heads=2, head_dim=8)
    return hub().GemmaCausalLM(backbone=backbone, preprocessor=None), backbone, text(""), np.roll(tokens(), -1, 1)


def classifier(classes: int = CLASSES):
    backbone = bert()
    model = hub().BertTextClassifier(backbone, classes, preprocessor=None, dropout=0.0)
    return model, backbone, of_bert(), labels() % classes


def reranker():
    """One that tells whether a text fits."""
    return classifier(2)


def masked_language_model():
    backbone = bert()
    x = {**of_bert(), "mask_positions": np.tile(np.arange(3), (ROWS, 1)).astype("int32")}
    return hub().BertMaskedLM(backbone, preprocessor=None), backbone, x, labels(3)


def embedding():
    backbone = bert()
    mean = keras.layers.GlobalAveragePooling1D()(backbone.output["sequence_output"])
    unit = keras.layers.UnitNormalization()(keras.layers.Dense(8)(mean))
    return keras.Model(backbone.input, keras.layers.Dense(CLASSES)(unit)), backbone, of_bert(), labels()


def sequence_to_sequence():
    backbone = hub().BartBackbone(**SIZES, **TEXT)
    model = hub().BartSeq2SeqLM(backbone=backbone, preprocessor=None)
    return model, backbone, text("encoder_") | text("decoder_"), np.roll(tokens(), -1, 1)


def image_classifier():
    backbone = hub().ViTBackbone((8, 8, 3), 4, num_layers=2, num_heads=4, hidden_dim=16, mlp_dim=32)
    model = hub().ViTImageClassifier(backbone, CLASSES, preprocessor=None)
    return model, backbone, draws().normal(size=(ROWS, 8, 8, 3)), labels()


def segmenter():
    """A head of this file on KerasHub's ResNet: its own segmenters cannot be built as small on Keras 3.15."""
    sizes: dict[str, Any] = {"input_conv_filters": [64], "input_conv_kernel_sizes": [3]}
    sizes |= {"stackwise_num_filters": [64], "stackwise_num_blocks": [1], "stackwise_num_strides": [1]}
    backbone = hub().ResNetBackbone(
        **sizes, block_type="basic_block", use_pre_activation=False, image_shape=(16, 16, 3)
    )
    logits = keras.layers.Conv2D(CLASSES, 1)(keras.layers.UpSampling2D(4)(backbone.output))
    return keras.Model(backbone.input, logits), backbone, draws().normal(size=(ROWS, 16, 16, 3)), labels(16, 16)


def speech():
    """Whisper's encoder and decoder."""
    sizes = {**SIZES, "num_heads": 4, "dropout": 0.0, "num_mels": 8}
    backbone = hub().WhisperBackbone(**sizes, max_encoder_sequence_length=16, max_decoder_sequence_length=LENGTH)
    logits = keras.layers.Dense(WORDS)(backbone.output["decoder_sequence_output"])
    x = {"encoder_features": draws().normal(size=(ROWS, 16, 8)), **text("decoder_")}
    return keras.Model(backbone.input, logits), backbone, x, np.roll(tokens(), -1, 1)


def diffusion_block():
    """The transformer of Stable Diffusion 3."""
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    shapes = {"latent": (8, 8, 4), "context": (6, 16), "pooled_projection": (16,), "timestep": (1,)}
    core = MMDiT(
        patch_size=2,
        hidden_dim=16,
        num_layers=2,
        num_heads=4,
        position_size=8,
        qk_norm=None,
        mlp_ratio=4,
        latent_shape=shapes["latent"],
        context_shape=shapes["context"],
        pooled_projection_shape=shapes["pooled_projection"],
    )
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    model, random = keras.Model(inputs, core(inputs)), draws()
    x = {name: random.normal(size=(ROWS, *shape)) for name, shape in shapes.items()}
    return model, model, x, random.normal(size=(ROWS, 8, 8, 4))


TASKS = {
    task.__name__: task
    for task in (
        causal,
        classifier,
        reranker,
        masked_language_model,
        embedding,
        sequence_to_sequence,
        image_classifier,
        segmenter,
        speech,
        diffusion_block,
    )
}
# The strategy of the catalogue by which ranks divide a task's model; KerasHub has no layouts for the others.
LAYOUTS = {"causal": "gemma", "image_classifier": "vit"}
LAYOUTS |= dict.fromkeys(("classifier", "reranker", "masked_language_model", "embedding"), "bert")


def scope(divided: str, task: str):
    """Of a strategy; "plain" is none."""
    if divided == "plain":
        return contextlib.nullcontext()
    import keras_par as kp

    if divided == "layouts":
        return kp.load_strategy(LAYOUTS[task], mesh=(1, kp.size())).scope()
    return kp.DataParallel(**({"zero": 3, "zero_min_kb": 0} if divided == "zero" else {})).scope()


def made(task: str, tuning: str):
    """A task's compiled model, its backbone and its rows, after the steps of a tuning ("whole" has none)."""
    keras.utils.set_random_seed(5)
    model, backbone, x, y = TASKS[task]()
    for step in tuning.split():
        if step == "lora":
            adapt(backbone)
        elif step != "whole":
            model.quantize(step, CALIBRATED[step]() if step in CALIBRATED else None)
    loss = "mse" if y.dtype.kind == "f" else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, jit_compile=False)
    return model, backbone, x, y


class Calibration:
    """What GPTQ and AWQ measure by: tokens that are read as they are."""

    def tokenize(self, text: str) -> np.ndarray:
        return np.asarray([ord(letter) % WORDS for letter in text], "int32")


def calibrated(config):
    """A configuration whose data set has one window only: which of several Keras takes differs among processes."""
    return lambda: config(["keraspar"], Calibration(), num_samples=1, sequence_length=LENGTH, group_size=16)


CALIBRATED = {"gptq": calibrated(keras.quantizers.GPTQConfig), "awq": calibrated(keras.quantizers.AWQConfig)}


def adapt(backbone: keras.Model) -> None:
    """Gives layers adapters, as KerasHub's backbones do it themselves, or each that can have some."""
    if hasattr(backbone, "enable_lora"):
        backbone.enable_lora(2)
    else:
        for layer in backbone._flatten_layers():
            if getattr(layer, "lora_enabled", None) is False:
                with contextlib.suppress(ValueError):  # of a layer that another one's `call` reads the kernel of
                    layer.enable_lora(2)
    random = np.random.default_rng(1)
    for weight in backbone.trainable_weights:
        if "lora" in weight.path:
            weight.assign(random.normal(size=weight.shape, scale=0.1))


def use(divided: str, name: str, tuning: str, folder: str) -> dict:
    """What a task's model is trained to, says and writes, and what comes back from each of its files."""
    before = keras.config.dtype_policy()
    dtype = "float32" if tuning == "awq" else "float64"  # in which AWQ fails
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        with scope(divided, name):
            return used(divided, name, tuning, Path(folder) / divided)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy(before)
        keras.backend.clear_session()


def used(divided: str, task: str, tuning: str, folder: Path) -> dict:
    model, backbone, x, y = made(task, tuning)
    initial = model.get_weights()
    fit(model, x, y, epochs=2)
    found = {
        "initial": initial,
        "weights": model.get_weights(),
        "predicted": flat(model.predict(x, batch_size=4, verbose=0)),
    }
    if hasattr(model, "generate"):
        found["text"] = written(model, "encoder_token_ids" in x)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_weights(folder / "model.weights.h5")
    if tuning not in CALIBRATED:  # whose files Keras 3.15 does not load
        again = made(task, tuning)[0]
        again.load_weights(folder / "model.weights.h5")
        found["loaded"] = again.get_weights()
    if tuning == "whole":
        model.save(folder / "model.keras")
        found["whole"] = keras.models.load_model(folder / "model.keras").get_weights()
        if divided != "layouts":
            model.export(folder / "exported", verbose=False)
    elif "lora" in tuning and hasattr(backbone, "save_lora_weights"):
        backbone.save_lora_weights(folder / "adapters.lora.h5")
        backbone.load_lora_weights(folder / "adapters.lora.h5")
        found["adapted"] = model.get_weights()
    if divided != "plain":
        found["resumed"], found["size"] = resumed(task, tuning, folder / "checkpoints")
    return found


def fit(model: keras.Model, x: Any, y: Any, epochs: int, callbacks: Any = ()) -> None:
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, epochs=epochs, callbacks=list(callbacks))


def flat(predicted: Any) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in keras.tree.flatten(predicted)])


def written(model: keras.Model, has_encoder: bool) -> list:
    """Four texts that go on from two tokens each."""
    model.compile(sampler="greedy")
    begun = np.where(np.arange(LENGTH) < 2, tokens(), 0)[:4]
    mask = (begun > 0).astype("int32")
    name = "decoder_" if has_encoder else ""
    given = {f"{name}token_ids": begun, f"{name}padding_mask": mask}
    given |= {key: value[:4] for key, value in text("encoder_").items()} if has_encoder else {}
    return np.asarray(model.generate(given, stop_token_ids=None)[f"{name}token_ids"]).tolist()


def resumed(task: str, tuning: str, folder: Path) -> tuple[list, int]:
    """The weights after an epoch, a checkpoint, and another one with a model that goes on from it; how many ranks."""
    import keras_par as kp

    for epochs in (1, 2):
        model, _, x, y = made(task, tuning)
        fit(model, x, y, epochs, [kp.callbacks.Resume(folder), kp.callbacks.RankCheckpoint(folder)])
    return model.get_weights(), kp.size()
