"""Trains a small GPT that ranks divide by heads, columns, rows and vocabulary, on a text that ships with Python.

    keras-par run -np 4 examples/gpt.py

The strategy `megatron` of the catalogue finds the layers by their names: 2 x 2 ranks are 2 places with other rows, and
in each 2 ranks that divide the model.
"""

import argparse
import contextlib
import io

import keras
import numpy as np
from keras import layers, ops

import keras_par as kp

LENGTH, WIDTH, HEADS, VOCABULARY = 32, 64, 4, 128


class Positions(layers.Layer):
    """Adds a vector for each position."""

    def build(self, shape):
        self.embeddings = self.add_weight(shape=shape[1:], name="embeddings")

    def call(self, x):
        return x + self.embeddings


def block(x, name: str):
    inner = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"{name}_attention")
    x = x + attention(inner, inner, use_causal_mask=True)
    inner = layers.Dense(4 * WIDTH, "gelu", name=f"{name}_up")(layers.LayerNormalization()(x))
    return x + layers.Dense(WIDTH, name=f"{name}_down")(inner)


def build(num_blocks: int = 2) -> keras.Model:
    tokens = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, name="embedding")(tokens)
    x = Positions(name="position_embedding")(x)
    for number in range(num_blocks):
        x = block(x, f"block{number}")
    logits = layers.Dense(VOCABULARY, name="logits")(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits, name="gpt")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


def windows() -> tuple[np.ndarray, np.ndarray]:
    """The Zen of Python, letter by letter: LENGTH letters, and the same moved on by one."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        import this  # noqa: F401 - prints it
    text = printed.getvalue()
    codes = np.frombuffer(text.encode("ascii"), np.uint8).astype("int32")
    starts = np.arange(len(codes) - LENGTH)
    return codes[starts[:, None] + np.arange(LENGTH)], codes[starts[:, None] + np.arange(1, LENGTH + 1)]


def continue_text(model: keras.Model, text: str, num_letters: int) -> str:
    """`text` and the likeliest letters after it. Every rank must call it."""
    for _ in range(num_letters):
        codes = np.frombuffer(text[-LENGTH:].encode("ascii"), np.uint8).astype("int32")
        logits = ops.convert_to_numpy(model(codes[None]))
        text += chr(int(logits[0, -1].argmax()))
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one short epoch instead of 8")
    parser.add_argument("--alone", action="store_true", help="train without a strategy, to compare")
    args = parser.parse_args()
    kp.init()
    keras.utils.set_random_seed(1)
    if args.alone:
        model = build()
    else:
        mesh = (2, 2) if kp.size() == 4 else None
        with kp.load_strategy("megatron", mesh=mesh).scope():
            model = build()
    x, y = windows()
    if args.smoke:
        x, y = x[:128], y[:128]
    history = model.fit(x, y, batch_size=32, epochs=1 if args.smoke else 8, verbose=0)
    print(f"rank {kp.rank()} of {kp.size()}: last loss {history.history['loss'][-1]:.5f}", flush=True)
    if not args.smoke:
        text = continue_text(model, "Errors should never pass silently.", 20)
        if kp.rank() == 0:
            print(text)


if __name__ == "__main__":
    main()
