"""Small versions, written for these tests, of the kinds of scripts that Keras's users start from.

They are cases of tests/step_cases.py, which they add to. Latent vectors and noise are drawn in their steps.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cases import crossentropy, rows
from tests.step_cases import STEPS as STEPS
from tests.step_cases import Adam, case


def dense(inputs: int, outputs: int, *extra) -> keras.Model:
    return keras.Sequential([layers.Input((inputs,)), layers.Dense(12, "tanh"), *extra, layers.Dense(outputs)])


def unlabelled():
    return {"x": rows()[0], "batch_size": 16, "epochs": 2}


class Script(keras.Model):
    """A model with optimizers of its own, whose step returns the losses it has tracked."""

    def __init__(self, **parts):
        super().__init__()
        self.names = list(parts)
        for name, part in parts.items():
            setattr(self, name, part)
            setattr(self, f"{name}_optimizer", Adam(1e-2, beta_1=0.5))
        self.seed_generator = keras.random.SeedGenerator(3)
        self.compile()
        self.optimizer = None
        self.built = True

    def drawn(self, x):
        """Rows of 8 numbers, and drawn for each a latent vector of 4 and a number between 0 and 1."""
        size = keras.ops.shape(x)[0]
        latent = keras.random.normal((size, 4), seed=self.seed_generator)
        return {"rows": x, "latent": latent, "mix": keras.random.uniform((size, 1), seed=self.seed_generator)}

    def update(self, name: str, tape, loss):
        """Applies the gradients of a part, clipped as these scripts do."""
        part = getattr(self, name)
        gradients = [tf.clip_by_norm(g, 1.0) for g in tape.gradient(loss, part.trainable_variables)]
        getattr(self, f"{name}_optimizer").apply(gradients, part.trainable_variables)


def real_or_fake(logits, is_real: bool):
    labels = tf.ones_like(logits) if is_real else tf.zeros_like(logits)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


class Gan(Script):
    """A discriminator's step, then a generator's."""

    def train_step(self, data):
        data = self.drawn(data)
        x = data["rows"]
        fake = self.generator(data["latent"])
        with tf.GradientTape() as tape:
            critic_loss = real_or_fake(self.critic(x), True) + real_or_fake(self.critic(fake), False)
        self.update("critic", tape, critic_loss)
        with tf.GradientTape() as tape:
            loss = real_or_fake(self.critic(self.generator(data["latent"])), True)
        self.update("generator", tape, loss)
        return {"critic": critic_loss, "generator": loss}


@case("gan", unlabelled)
def _():
    return Gan(critic=dense(8, 1), generator=dense(4, 8))


class GradientPenalty(Gan):
    """WGAN-GP: two steps of the critic, whose gradients with respect to its inputs are penalized."""

    def train_step(self, data):
        data = self.drawn(data)
        x = data["rows"]
        critic_loss = 0.0
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(data["latent"], training=True)
                between = x + data["mix"] * (fake - x)
                with tf.GradientTape() as inner:
                    inner.watch(between)
                    scores = self.critic(between, training=True)
                norms = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(scores, [between])[0]), 1))
                critic_loss = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(x))
                critic_loss += 10.0 * tf.reduce_mean((norms - 1.0) ** 2)
            self.update("critic", tape, critic_loss)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.critic(self.generator(data["latent"], training=True)))
        self.update("generator", tape, loss)
        return {"critic": critic_loss, "generator": loss}


@case("wgan-gp", unlabelled)
def _():
    return GradientPenalty(critic=dense(8, 1), generator=dense(4, 8))


class Vae(Script):
    """A reconstruction summed over features, and a divergence, both means over rows."""

    def train_step(self, data):
        data = self.drawn(data)
        with tf.GradientTape(persistent=True) as tape:
            mean, spread = tf.split(self.encoder(data["rows"], training=True), 2, axis=1)
            latent = mean + tf.exp(0.5 * spread) * data["latent"]
            found = self.decoder(latent)
            reconstruction = tf.reduce_mean(tf.reduce_sum(tf.square(found - data["rows"]), 1))
            divergence = -0.5 * (1 + spread - tf.square(mean) - tf.exp(spread))
            loss = reconstruction + tf.reduce_mean(tf.reduce_sum(divergence, 1))
        self.update("encoder", tape, loss)
        self.update("decoder", tape, loss)
        return {"loss": loss, "reconstruction": reconstruction}


@case("vae", unlabelled)
def _():
    return Vae(encoder=dense(8, 8, layers.Dropout(0.2)), decoder=dense(4, 8))


class SimSiam(Script):
    """Two views, one of which gets no gradient, and a normalization by all rows between."""

    def train_step(self, data):
        data = self.drawn(data)
        views = data["rows"] + 0.1 * data["mix"], data["rows"] - 0.1 * data["mix"]
        with tf.GradientTape(persistent=True) as tape:
            projected = [self.encoder(view, training=True) for view in views]
            predicted = [self.predictor(each, training=True) for each in projected]
            pairs = [(predicted[0], projected[1]), (predicted[1], projected[0])]
            loss = 0.0
            for guess, target in pairs:
                target = tf.math.l2_normalize(tf.stop_gradient(target), 1)
                loss -= 0.5 * tf.reduce_mean(tf.reduce_sum(tf.math.l2_normalize(guess, 1) * target, 1))
        self.update("encoder", tape, loss)
        self.update("predictor", tape, loss)
        return {"loss": loss}


@case("simsiam", unlabelled, double=True)
def _():
    return SimSiam(encoder=dense(8, 6, layers.BatchNormalization()), predictor=dense(6, 6))


class Diffusion(Script):
    """Predicts the noise in rows, and keeps a moving average of its network."""

    def train_step(self, data):
        data = self.drawn(data)
        noise = tf.concat([data["latent"], data["latent"][:, ::-1]], 1)
        angle = data["mix"] * 1.5
        noisy = tf.cos(angle) * data["rows"] + tf.sin(angle) * noise
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self.network(noisy) - noise))
        self.update("network", tape, loss)
        for weight, average in zip(self.network.weights, self.average.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"noise_loss": loss}


@case("diffusion", unlabelled)
def _():
    return Diffusion(network=dense(8, 8), average=dense(8, 8))


class Distiller(Script):
    """A student that learns from labels and from a teacher."""

    def train_step(self, data):
        x, y = data
        taught = tf.nn.softmax(self.teacher(x, training=False) / 3.0)
        with tf.GradientTape() as tape:
            outputs = self.student(x, training=True)
            loss = 0.1 * crossentropy()(y, outputs)
            loss += 0.9 * keras.losses.KLDivergence()(taught, tf.nn.softmax(outputs / 3.0)) * 9.0
        self.update("student", tape, loss)
        return {"loss": loss}


def labelled():
    x, y = rows()
    return {"x": x, "y": y, "batch_size": 16, "epochs": 2}


@case("distillation", labelled)
def _():
    return Distiller(student=dense(8, 3), teacher=dense(8, 3))


class ActorCritic(Script):
    """A policy weighted by an advantage, and a value, each with its own optimizer."""

    def train_step(self, data):
        x, actions = data
        reward = tf.cast(actions, tf.float32) - 1.0 + x[:, 0]
        with tf.GradientTape() as tape:
            value = self.critic(x)[:, 0]
            critic_loss = tf.reduce_mean(keras.losses.huber(reward[:, None], value[:, None]))
        self.update("critic", tape, critic_loss)
        with tf.GradientTape() as tape:
            logits = tf.nn.log_softmax(self.actor(x))
            chosen = tf.gather(logits, actions, axis=1, batch_dims=1)
            loss = -tf.reduce_mean(chosen * tf.stop_gradient(reward - value))
            loss += 0.01 * tf.reduce_mean(tf.reduce_sum(tf.exp(logits) * logits, 1))
        self.update("actor", tape, loss)
        return {"actor": loss, "critic": critic_loss}


@case("actor-critic", labelled)
def _():
    return ActorCritic(actor=dense(8, 3), critic=dense(8, 1))


class Triplets(Script):
    """An anchor, a near and a far row, all in one row of the data."""

    def train_step(self, data):
        data = self.drawn(data)
        with tf.GradientTape() as tape:
            shifts = (0.0, 0.1 * data["mix"], data["latent"][:, :1])
            anchor, near, far = (self.encoder(data["rows"] + shift) for shift in shifts)
            distance = tf.reduce_sum(tf.square(anchor - near), 1) - tf.reduce_sum(tf.square(anchor - far), 1)
            loss = tf.reduce_mean(tf.maximum(distance + 0.5, 0.0))
        self.update("encoder", tape, loss)
        return {"loss": loss}


@case("siamese-triplets", unlabelled, double=True)
def _():
    return Triplets(encoder=dense(8, 4))


# Scripts that leave the step to Keras.


def masked_tokens():
    generator = np.random.default_rng(4)
    tokens = generator.integers(2, 20, (75, 6))
    is_masked = generator.uniform(size=tokens.shape) < 0.3
    weights = is_masked.astype("float32")
    return {"x": np.where(is_masked, 1, tokens), "y": tokens, "sample_weight": weights, "batch_size": 16, "epochs": 2}


@case("masked-language-model", masked_tokens)
def _():
    inputs = layers.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    model = keras.Model(inputs, layers.Dense(20, "softmax")(x))
    model.compile(Adam(1e-2), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def translations():
    generator = np.random.default_rng(5)
    source, target = generator.integers(1, 12, (75, 5)), generator.integers(1, 12, (75, 6))
    return {"x": [source, target[:, :-1]], "y": target[:, 1:], "batch_size": 16, "epochs": 2}


@case("sequence-to-sequence", translations)
def _():
    source, target = layers.Input((5,), dtype="int32"), layers.Input((5,), dtype="int32")
    *_, hidden, cell = layers.LSTM(6, return_state=True)(layers.Embedding(12, 6, mask_zero=True)(source))
    decoded = layers.LSTM(6, return_sequences=True)(layers.Embedding(12, 6)(target), initial_state=[hidden, cell])
    model = keras.Model([source, target], layers.Dense(12, "softmax")(decoded))
    model.compile(keras.optimizers.RMSprop(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def pictures():
    generator = np.random.default_rng(6)
    x = generator.normal(size=(50, 8, 8, 3)).astype("float32")
    return {"x": x, "y": generator.integers(0, 3, 50), "batch_size": 16, "epochs": 2, "validation_split": 0.2}


@case("vision-transformer", pictures, double=True)
def _():
    inputs = layers.Input((8, 8, 3))
    x = layers.RandomFlip()(layers.Rescaling(0.5)(inputs))
    x = layers.Reshape((4, -1))(layers.Conv2D(8, 4, strides=4)(x))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 4, dropout=0.1)(normal, normal)
        hidden = layers.Dropout(0.1)(layers.Dense(16, "gelu")(layers.LayerNormalization()(x)))
        x = x + layers.Dropout(0.1)(layers.Dense(8)(hidden))
    model = keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.5)(layers.Flatten()(x))))
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), crossentropy(), metrics=["accuracy"])
    return model


def weather():
    values = np.random.default_rng(7).normal(size=(120, 4)).cumsum(0).astype("float32") / 10
    windows = keras.utils.timeseries_dataset_from_array(values[:-5], values[5:, 0], 20, sampling_rate=2, batch_size=16)
    return {"x": windows, "epochs": 2}


@case("weather", weather)
def _():
    model = keras.Sequential([layers.Input((20, 4)), layers.LSTM(8), layers.Dense(1)])
    model.compile(Adam(1e-2), "mse")
    return model
