"""A small model for each strategy of the catalogue; nothing here imports keras_par, so that it runs without."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

MESHES = ((1, 2), (2, 2))
ROWS, LENGTH, WORDS, CLASSES = 12, 8, 48, 6
SIZES = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2}
PLAIN = {"num_heads": 4, "dropout": 0.0, "max_sequence_length": LENGTH}

CASES: dict[str, "Case"] = {}


@dataclass(frozen=True)
class Case:
    """A model and the file that divides it.

    Args:
        model: returns the model; its outputs are logits.
        strategy: the file's name.
        optimizer: "sgd" where a gradient is zero but for rounding, of which Adam would make a step.
        tolerance: relative distance of all weights that rounding explains.
        slow: meshes that are left to `make test-all`.
    """

    model: Callable[[], keras.Model]
    strategy: str
    optimizer: str = "sgd"
    tolerance: float = 1e-5
    slow: tuple = ()


def case(name: str, strategy: str | None = None, **options):
    def register(model):
        CASES[name] = Case(model, strategy or name, **options)
        return model

    return register


def data(model: keras.Model) -> tuple:
    """Rows for a model, by what its inputs are called, and labels for its logits."""
    random = np.random.default_rng(5)
    x = {each.name: values(random, each.name, each.shape[1:]) for each in model.inputs}
    [logits] = model.outputs
    y = random.integers(0, logits.shape[-1], (ROWS,) if len(logits.shape) == 2 else (ROWS, LENGTH))
    return (x if len(x) > 1 else next(iter(x.values()))), y


def values(random, name: str, shape: tuple) -> np.ndarray:
    if "mask_positions" in name:
        return np.tile(np.arange(LENGTH), (ROWS, 1)).astype("int32")
    if "mask" in name:
        mask = np.ones((ROWS, LENGTH), "int32")
        mask[::3, -2:] = 0
        return mask
    if None not in shape and len(shape) > 1:
        return random.normal(size=(ROWS, *shape)).astype("float32")
    return random.integers(0, 2 if "segment" in name else WORDS, (ROWS, LENGTH)).astype("int32")


def hub():
    import keras_hub

    return keras_hub.models


def causal(kind: str, **config) -> keras.Model:
    """A causal language model of KerasHub's."""
    backbone = getattr(hub(), f"{kind}Backbone")(**SIZES | config)
    return getattr(hub(), f"{kind}CausalLM")(backbone=backbone, preprocessor=None)


def classifier(kind: str, **config) -> keras.Model:
    """A text classifier of KerasHub's."""
    backbone = getattr(hub(), f"{kind}Backbone")(**SIZES | PLAIN | config)
    return getattr(hub(), f"{kind}TextClassifier")(backbone, CLASSES, preprocessor=None, dropout=0.0)


def network() -> keras.Model:
    """Dense and convolution layers by their automatic names; neither 2 nor 4 ranks divide the last layer's channels."""
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.DepthwiseConv2D(3, activation="relu"),
            keras.layers.Conv2D(12, 1),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(5),
        ]
    )


@case("data-parallel")
@case("data-parallel-bf16", tolerance=1e-2, slow=MESHES)
@case("zero-1")
@case("zero-2")
@case("zero-3")
@case("fsdp")
@case("hsdp")
def _():
    inputs = keras.layers.Input((8, 8, 3))
    x = keras.layers.Dense(16, "relu")(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x))


case("layerwise")(network)


@case("megatron")
def _():
    layers = keras.layers
    inputs = layers.Input((LENGTH,), dtype="int32", name="token_ids")
    words = layers.ReversibleEmbedding(WORDS, 16, tie_weights=False, name="token_embedding")
    x = words(inputs) + layers.Embedding(LENGTH, 16, name="position_embedding")(keras.ops.arange(LENGTH))
    for i in range(2):
        normal = layers.LayerNormalization()(x)
        if i:
            x += layers.GroupQueryAttention(4, 4, 2)(normal, normal, use_causal_mask=True)
        else:
            x += layers.MultiHeadAttention(4, 4)(normal, normal, use_causal_mask=True)
        normal = layers.LayerNormalization()(x)
        gate = layers.EinsumDense("btm,mf->btf", (None, 32), activation="silu", name=f"feedforward_{i}_gate")(normal)
        up = layers.Dense(32, name=f"feedforward_{i}_up")(normal)
        x += layers.Dense(16, name=f"feedforward_{i}_down")(gate * up)
    return keras.Model(inputs, words(x, reverse=True))


@case("gpt2")
def _():
    return causal("GPT2", **PLAIN)


@case("bert", slow=MESHES[1:])
def _():
    return classifier("Bert")


@case("bert masked", "bert", slow=MESHES)
def _():
    return hub().BertMaskedLM(hub().BertBackbone(**SIZES, **PLAIN), preprocessor=None)


@case("llama", optimizer="adam")
def _():
    return causal("Llama", **GROUPED)


@case("llama 3, key and value whole", "llama", slow=MESHES[1:])
def _():
    return causal("Llama3", num_query_heads=4, num_key_value_heads=1)


@case("mistral", optimizer="adam", slow=MESHES[1:])
def _():
    return causal("Mistral", **GROUPED)


@case("gemma, key and value whole", "gemma", optimizer="adam", slow=MESHES[1:])
def _():
    return causal("Gemma", num_query_heads=4, num_key_value_heads=1, head_dim=4)


SECOND = {
    "head_dim": 4,
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
    "use_sliding_window_attention": True,
    "sliding_window_size": 4,
}


@case("gemma 2", "gemma", slow=MESHES)
def _():
    return causal("Gemma", **GROUPED, **SECOND, attention_logit_soft_cap=50.0, final_logit_soft_cap=30.0)


@case("gemma 3", "gemma", slow=MESHES[1:])
def _():
    return causal("Gemma3", **GROUPED, **SECOND, image_size=16)


@case("qwen 2", "qwen", slow=MESHES[1:])
def _():
    return causal("Qwen", **GROUPED)


@case("qwen 3", "qwen", optimizer="adam", slow=MESHES[1:])
def _():
    return causal("Qwen3", **GROUPED, head_dim=4)


@case("phi3", optimizer="adam", slow=MESHES[1:])
def _():
    return causal("Phi3", **GROUPED)


@case("vit", slow=MESHES[1:])
def _():
    backbone = hub().ViTBackbone((8, 8, 3), 4, num_layers=2, num_heads=4, hidden_dim=16, mlp_dim=32)
    return hub().ViTImageClassifier(backbone, CLASSES, preprocessor=None)


@case("mixtral", slow=MESHES)
def _():
    return causal("Mixtral", **GROUPED, num_experts=2)


@case("opt", slow=MESHES)
def _():
    return causal("OPT", **PLAIN)


@case("bloom", slow=MESHES)
def _():
    return causal("Bloom", num_heads=4)


@case("falcon", slow=MESHES)
def _():
    return causal("Falcon", num_attention_heads=4)


@case("gpt-neo-x", slow=MESHES)
def _():
    return causal("GPTNeoX", **PLAIN, rotary_percentage=0.5)


@case("smollm3", slow=MESHES)
def _():
    return causal(
        "SmolLM3",
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        attention_dropout=0.0,
        rope_layer_enabled_list=[True, False],
        layer_types=["full_attention"] * 2,
        mlp_bias=True,
        layer_norm_epsilon=1e-6,
        max_position_embeddings=16,
        rope_theta=10000.0,
        partial_rotary_factor=1.0,
    )


@case("t5", slow=MESHES)
def _():
    backbone = hub().T5Backbone(**SIZES, num_heads=4, dropout=0.0, tie_embedding_weights=False)
    return hub().T5Seq2SeqLM(backbone, preprocessor=None)


@case("roberta", slow=MESHES)
def _():
    return classifier("Roberta")


@case("xlm-roberta", "roberta", slow=MESHES)
def _():
    return classifier("XLMRoberta")


@case("distil-bert", slow=MESHES)
def _():
    return classifier("DistilBert")


@case("deberta-v3", slow=MESHES)
def _():
    return classifier("DebertaV3", bucket_size=4)


@case("albert", slow=MESHES)
def _():
    return classifier("Albert", embedding_dim=8)


@case("electra", slow=MESHES)
def _():
    sizes = {"vocab_size" if name == "vocabulary_size" else name: size for name, size in SIZES.items()}
    backbone = hub().ElectraBackbone(**sizes, **PLAIN, embedding_dim=8)
    return keras.Model(backbone.input, keras.layers.Dense(CLASSES, name="logits")(backbone.output["pooled_output"]))
