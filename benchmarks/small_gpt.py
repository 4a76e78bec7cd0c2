"""A small language model, which several measurements train."""


def small_gpt(length, words, width, heads, blocks):
    """Blocks of attention and two products; its loss is of the next word's logits."""
    import keras
    from keras import layers

    x = inputs = layers.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(x)
    for _ in range(blocks):
        inner = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(inner, inner, use_causal_mask=True)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    model = keras.Model(inputs, layers.Dense(words)(layers.LayerNormalization()(x)))
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
