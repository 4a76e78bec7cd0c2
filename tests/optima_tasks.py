"""The models whose best division is known, and how they are searched on the ranks of a pool."""

from collections.abc import Callable

import keras
from keras import layers

from tests.catalogue_cases import CASES, causal
from tests.search_tasks import machine_from

LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: keras.Model, loss="mse") -> keras.Model:
    """With the optimizer that all of them have."""
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def mlp(num_layers: int, width: int, named: bool = True) -> keras.Model:
    """Products of one width, by names that tell columns from rows, or by those that Keras gives."""
    names = [f"{'down' if number % 2 else 'up'}_{number // 2}" if named else None for number in range(num_layers)]
    products = [layers.Dense(width, "relu", use_bias=False, name=name) for name in names]
    return compiled(keras.Sequential([layers.Input((width,)), *products]))


def vgg() -> keras.Model:
    """VGG-16 (Simonyan and Zisserman, 2014)."""
    return compiled(keras.applications.VGG16(weights=None), "sparse_categorical_crossentropy")


def alexnet() -> keras.Model:
    """AlexNet (Krizhevsky et al., 2012) as "One weird trick" (Krizhevsky, 2014) has it, in one tower."""

    def conv(channels: int, size: int, strides: int = 1):
        return layers.Conv2D(channels, size, strides, "same", activation="relu")

    parts = [conv(64, 11, 4), layers.MaxPooling2D(3, 2), conv(192, 5), layers.MaxPooling2D(3, 2)]
    parts += [conv(384, 3), conv(384, 3), conv(256, 3), layers.MaxPooling2D(3, 2), layers.Flatten()]
    parts += [layers.Dense(4096, "relu"), layers.Dense(4096, "relu"), layers.Dense(1000)]
    return compiled(keras.Sequential([layers.Input((224, 224, 3)), *parts], name="alexnet"), LOGITS)


def resnet() -> keras.Model:
    """ResNet-50 (He et al., 2015)."""
    return compiled(keras.applications.ResNet50(weights=None), "sparse_categorical_crossentropy")


def recommender(width: int) -> keras.Model:
    """Tables of 100,000 to 10,000,000 words and two small products."""
    inputs = [layers.Input((), dtype="int32", name=name) for name in ("country", "user", "item")]
    vectors = [
        layers.Embedding(words, width, name=f"of_{each.name}")(each)
        for each, words in zip(inputs, (100_000, 1_000_000, 10_000_000), strict=True)
    ]
    x = layers.Dense(64, "relu", name="hidden")(layers.Concatenate()(vectors))
    return compiled(keras.Model(inputs, layers.Dense(1, name="score")(x)))


def mixtral(num_experts: int = 8) -> keras.Model:
    """KerasHub's, whose experts have most of the work."""
    sizes = {"hidden_dim": 64, "intermediate_dim": 256, "vocabulary_size": 128}
    heads = {"num_query_heads": 4, "num_key_value_heads": 4}
    return compiled(causal("Mixtral", num_experts=num_experts, **heads, **sizes), LOGITS)


MODELS: dict[str, Callable[..., keras.Model]] = {
    each.__name__: each for each in (mlp, vgg, alexnet, resnet, recommender, mixtral)
}


def find_best(
    name: str,
    batch_sizes: list[int],
    num_ranks: int,
    machine: str,
    mesh=None,
    memory: float | None = None,
    input_shape: tuple = (),
    **sizes,
) -> list[dict]:
    """The plan for each batch size, beside the best of each other mesh and plain data parallel."""
    from keras_par.searching.find import find
    from keras_par.searching.meshes import DATA, MODEL
    from keras_par.searching.model_trace import look_at

    trace = look_at(lambda: MODELS[name](**sizes), input_shape)
    keras.utils.clear_session(free_memory=False)
    meshes = None if mesh is None else dict(zip((DATA, MODEL), mesh, strict=True))
    found = []
    for batch_size in batch_sizes:
        plan = find(trace, machine_from(machine), num_ranks, batch_size, "dynamic", memory, meshes)
        best = plan.best
        found.append(
            {
                "mesh": tuple(best.mesh.values()),
                "layouts": best.layouts,
                "zero": best.zero,
                "sent": [(kind, size) for kind, size, _ in best.prediction.collectives],
                "gradient_bytes": best.prediction.gradient_bytes,
                "bytes": best.prediction.num_bytes,
                "seconds": best.prediction.seconds,
                "others": {tuple(each.mesh.values()): each.prediction.num_bytes for each in plan.others},
                "whole_bytes": plan.data_parallel.prediction.num_bytes,
                "whole_seconds": plan.data_parallel.prediction.seconds,
            }
        )
    return found


def beside_maps(name: str, kind: str, machine: str) -> list[dict]:
    """What the search finds for a case of the catalogue beside its file and KerasHub's map, on 4 ranks."""
    import keras_hub

    from benchmarks.maps import beside

    case, meshes = CASES[name], ((1, 4), (2, 2))
    backbone = getattr(keras_hub.models, f"{kind}Backbone")
    return beside(case.model, case.strategy, backbone, machine_from(machine), 4, meshes, 8, 8)
