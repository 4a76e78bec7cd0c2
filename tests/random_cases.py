"""Trainings with dropout, noise and augmentation on, each run by plain Keras in one process and by N ranks.

Nothing here imports keras_par: the same lines run in both.
"""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.cases import Case, arrays, compiled, crossentropy, dataset, network, one_left_over, rows, static_dataset

RANDOM_CASES: dict[str, Case] = {}


def case(name: str, data=arrays):
    def register(model):
        RANDOM_CASES[name] = Case(model, data)
        return model

    return register


def even_arrays():
    x, y = rows(64)
    return {"x": x, "y": y, "batch_size": 16, "epochs": 4}


def images():
    generator = keras.random.SeedGenerator(3)
    x = keras.random.uniform((30, 8, 8, 3), seed=generator).numpy()
    return {"x": x, "y": rows(30)[1], "batch_size": 8, "epochs": 3}


def sequences():
    x, y = rows(45)
    return {"x": x.reshape(45, 4, 2), "y": y, "batch_size": 8, "epochs": 3}


class Noise(layers.Layer):
    """Adds what `draw(shape, seed)` gives for a shape to its inputs while training."""

    def __init__(self, draw, **kwargs):
        super().__init__(**kwargs)
        self.draw = draw
        self.seed_generator = keras.random.SeedGenerator(11)

    def call(self, x, training=False):
        return x + 0.1 * ops.cast(self.draw(x, self.seed_generator), x.dtype) if training else x


# Layers of Keras's own, in batches whose number of rows is known while tracing and in others.

for _name, _layer in {
    "dropout": lambda: layers.Dropout(0.5),
    "dropout-odd-units": lambda: keras.Sequential([layers.Dense(5), layers.Dropout(0.3), layers.Dense(16)]),
    "gaussian-dropout": lambda: layers.GaussianDropout(0.3),
    "gaussian-noise": lambda: layers.GaussianNoise(0.3),
    "alpha-dropout": lambda: layers.AlphaDropout(0.3),
    "dropout-rows": lambda: layers.Dropout(0.3, noise_shape=(None, 1)),
    "dropout-columns": lambda: layers.Dropout(0.3, noise_shape=(1, 16)),
}.items():
    case(_name)(lambda layer=_layer: compiled("sgd", network(layer())))
    case(f"{_name}-static", even_arrays)(lambda layer=_layer: compiled("sgd", network(layer())))

# Functions of Keras's own, by the shape of their inputs.

for _name, _draw in {
    "normal": lambda x, seed: keras.random.normal(ops.shape(x), seed=seed),
    "uniform": lambda x, seed: keras.random.uniform((ops.shape(x)[0], 1), -1, 1, seed=seed),
    "uniform-float64": lambda x, seed: keras.random.uniform((ops.shape(x)[0], 3), dtype="float64", seed=seed)[:, :1],
    "truncated": lambda x, seed: keras.random.truncated_normal((ops.shape(x)[0], 7), seed=seed)[:, 2:3],
    "integers": lambda x, seed: keras.random.randint((ops.shape(x)[0], 3), 0, 9, seed=seed)[:, 1:2],
    "long-integers": lambda x, seed: keras.random.randint((ops.shape(x)[0], 3), 0, 9, "int64", seed=seed)[:, 1:2],
    "gamma": lambda x, seed: keras.random.gamma(ops.shape(x), 0.7, seed=seed),
    "gamma-rows": lambda x, seed: keras.random.gamma(ops.shape(x), ops.abs(ops.stop_gradient(x)) + 1, seed=seed),
    "beta": lambda x, seed: keras.random.beta((ops.shape(x)[0], 1), 0.7, 0.4, seed=seed),
    "binomial": lambda x, seed: keras.random.binomial((ops.shape(x)[0], 16), 5, 0.4, seed=seed),
    "categorical": lambda x, seed: keras.random.categorical(ops.stop_gradient(x), 1, seed=seed),
    "half": lambda x, seed: keras.random.normal((ops.shape(x)[0], 3), dtype="float16", seed=seed)[:, 1:2],
    "merged": lambda x, seed: ops.reshape(keras.random.normal((ops.shape(x)[0] * 16,), seed=seed), (-1, 16)),
    "columns-first": lambda x, seed: ops.transpose(keras.random.normal((16, ops.shape(x)[0]), seed=seed)),
    "weights": lambda x, seed: ops.mean(keras.random.normal((8, 16), seed=seed), 0),  # 8 rows a rank on 2 ranks
    "stateless": lambda x, seed: tf.random.stateless_normal(tf.shape(x), seed=[1, 2]),
    "int-seed": lambda x, seed: keras.random.normal(ops.shape(x), seed=5),
    "counted-by-operations": lambda x, seed: (
        keras.random.normal((ops.shape(x)[0], 16), seed=seed)
        * ops.cast(ops.maximum(ops.shape(x)[0], 1), x.dtype)
        / ops.cast(ops.shape(x)[0], x.dtype)
    ),
    "indices-of-rows": lambda x, seed: ops.take(
        keras.random.normal(ops.shape(x), seed=seed), ops.arange(ops.shape(x)[0]), axis=0
    ),
    "seeded-operation": lambda x, seed: tf.random.normal(tf.shape(x), seed=5),
    "nn-dropout": lambda x, seed: tf.nn.dropout(x, 0.4, seed=5),
}.items():
    case(_name)(lambda draw=_draw: compiled("sgd", network(Noise(draw))))
    case(f"{_name}-static", even_arrays)(lambda draw=_draw: compiled("sgd", network(Noise(draw))))


@case("generator")
@case("generator-static", even_arrays)
def of_generator():
    generator = tf.random.Generator.from_seed(5)
    return compiled("sgd", network(Noise(lambda x, seed: generator.normal(tf.shape(x)))))


@case("fewer-rows-than-ranks", one_left_over)
def fewer_rows_than_ranks():
    return compiled("sgd", network(layers.Dropout(0.4), layers.GaussianNoise(0.1)))


@case("dataset", dataset)
def of_dataset():
    return compiled("adam", network(layers.Dropout(0.4)), metrics=["accuracy"])


@case("static-dataset", static_dataset)
def of_static_dataset():
    return compiled("adam", network(layers.Dropout(0.4)))


@case("eager")
def eager():
    return compiled("sgd", network(layers.Dropout(0.4), layers.GaussianNoise(0.1)), run_eagerly=True)


@case("xla", even_arrays)
def xla():
    return compiled("sgd", network(layers.Dropout(0.4), layers.GaussianNoise(0.1)), jit_compile=True)


@case("several-steps")
def several_steps():
    return compiled("sgd", network(layers.Dropout(0.4)), steps_per_execution=3)


@case("recurrent", sequences)
def recurrent():
    hidden = [layers.LSTM(8, return_sequences=True, dropout=0.2, recurrent_dropout=0.2), layers.Dropout(0.3)]
    hidden += [layers.GRU(8, dropout=0.2, return_sequences=True), layers.SpatialDropout1D(0.4), layers.Flatten()]
    return compiled("sgd", keras.Sequential([layers.Input((4, 2)), *hidden, layers.Dense(3)]))


@case("attention", sequences)
def attention():
    x = inputs = layers.Input((4, 2))
    x = layers.Dense(8)(x)
    x = x + layers.MultiHeadAttention(2, 4, dropout=0.3, seed=2)(x, x)
    x = layers.Dropout(0.2)(layers.TimeDistributed(layers.Dense(6))(x))
    return compiled("sgd", keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x))))


@case("augmentation", images)
def augmentation():
    augment = [layers.RandomFlip(), layers.RandomRotation(0.1), layers.RandomTranslation(0.1, 0.1)]
    augment += [layers.RandomContrast(0.2, value_range=(0, 1)), layers.RandomBrightness(0.2, value_range=(0, 1))]
    augment += [layers.RandomZoom(0.1), layers.RandomErasing(value_range=(0, 1)), layers.RandomCrop(7, 7)]
    wide = {"dtype": "float64"}  # as RandomRotation fails where all is float64
    hidden = [layers.Conv2D(4, 3, activation="relu", **wide), layers.SpatialDropout2D(0.3, **wide)]
    hidden += [layers.Flatten(**wide), layers.Dense(3, **wide)]
    return compiled("sgd", keras.Sequential([layers.Input((8, 8, 3)), *augment, *hidden]))


class Sampling(layers.Layer):
    """As in keras.io's variational autoencoder."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        batch = ops.shape(z_mean)[0]
        dim = ops.shape(z_mean)[1]
        epsilon = keras.random.normal(shape=(batch, dim), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


@case("variational")
def variational():
    inputs = layers.Input((8,))
    hidden = layers.Dense(16, "tanh")(inputs)
    z = Sampling()([layers.Dense(3)(hidden), layers.Dense(3)(hidden)])
    return compiled("sgd", keras.Model(inputs, layers.Dense(3)(z)))


class Adversarial(keras.Model):
    """As in keras.io's GAN: latents and labels with noise, drawn in a step; real rows behind generated ones."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)
        self.generator = keras.Sequential([layers.Input((5,)), layers.Dense(16, "relu"), layers.Dense(8)])
        hidden = [layers.Dense(16, "relu"), layers.Dropout(0.4), layers.Dense(1)]
        self.discriminator = keras.Sequential([layers.Input((8,)), *hidden])
        self.bce = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.generator_optimizer = keras.optimizers.SGD(0.05)

    def call(self, x):
        return self.discriminator(x)

    def train_step(self, data):
        x, _ = data
        size = ops.shape(x)[0]
        made = self.generator(keras.random.normal((size, 5), seed=self.seed_generator))
        both = ops.concatenate([made, x], axis=0)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        labels += 0.05 * tf.random.stateless_uniform(tf.shape(labels), seed=[1, 2])
        with tf.GradientTape() as tape:
            loss = self.bce(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        latents = keras.random.normal(shape=(size, 5), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            loss = self.bce(ops.zeros((size, 1)), self.discriminator(self.generator(latents), training=True))
        weights = self.generator.trainable_weights
        self.generator_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"g_loss": loss}


@case("adversarial-static", even_arrays)
@case("adversarial")
def adversarial():
    model = Adversarial()
    model.build((None, 8))
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=crossentropy())
    return model
