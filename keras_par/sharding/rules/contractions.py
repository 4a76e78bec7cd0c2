"""Products that sum over dims: matrix products, convolutions, attention."""

import keras

from keras_par.sharding.compute import compute, dim_of
from keras_par.sharding.rules.elementwise import broadcast_labels
from keras_par.sharding.tensor import whole


def matmul(original, x1, x2):
    """Column by row costs one all-reduce; by columns and by rows none forward."""
    if min(len(x1.shape), len(x2.shape)) < 2:
        return original(whole(x1), whole(x2))
    if len(x2.shape) == 2:
        outer = tuple(range(len(x1.shape) - 1))
        return compute(original, [x1, x2], [(*outer, "k"), ("k", "n")], (*outer, "n"))
    (left, right), outer = broadcast_labels([tuple(x1.shape)[:-2], tuple(x2.shape)[:-2]], first=2)
    return compute(original, [x1, x2], [(*left, "m", "k"), (*right, "k", "n")], (*outer, "m", "n"))


def einsum(original, subscripts, *operands, **options):
    """Each letter may be divided; one that the result lacks costs one all-reduce."""
    named = letters(subscripts, [len(operand.shape) for operand in operands])
    if named is None:
        return original(subscripts, *map(whole, operands), **options)
    labels, result = named
    return compute(lambda *local: original(subscripts, *local, **options), operands, labels, result)


def letters(subscripts: str, ranks: list[int]) -> tuple[list[tuple], tuple] | None:
    """Names for the dims of the operands of an einsum and of its result; None where these are not simple."""
    terms, arrow, result = subscripts.replace(" ", "").partition("->")
    split = terms.split(",")
    if not arrow or len(split) != len(ranks):
        return None
    extra = [rank - len(term.replace("...", "")) for term, rank in zip(split, ranks, strict=True) if "..." in term]
    if len(set(extra)) > 1 or any(len(set(term.replace("...", ""))) < len(term.replace("...", "")) for term in split):
        return None

    def named(term: str) -> tuple:
        before, dots, after = term.partition("...")
        return (*before, *range(extra[0] if dots else 0), *after)

    return [named(term) for term in split], named(result)


def conv(original, inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    """By output channels costs nothing forward, by input channels one all-reduce of the result."""
    options = {"strides": strides, "padding": padding, "data_format": data_format, "dilation_rate": dilation_rate}
    if kernel.shape[-2] != inputs.shape[-1]:  # channels in groups
        return original(whole(inputs), whole(kernel), **options)
    return convolved(original, inputs, kernel, ("i", "o"), "o", options)


def conv_transpose(
    original, inputs, kernel, strides=1, padding="valid", output_padding=None, data_format=None, dilation_rate=1
):
    """As a convolution; the kernel's last two dims are the other way round."""
    options = {"strides": strides, "padding": padding, "data_format": data_format, "dilation_rate": dilation_rate}
    return convolved(original, inputs, kernel, ("o", "i"), "o", {**options, "output_padding": output_padding})


def depthwise_conv(original, inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    """Each rank has the outputs of its input channels. Costs nothing forward."""
    options = {"strides": strides, "padding": padding, "data_format": data_format, "dilation_rate": dilation_rate}
    return convolved(original, inputs, kernel, ("i", "m"), "i", options)


def convolved(original, inputs, kernel, channels: tuple[str, str], result: str, options: dict):
    """A convolution whose kernel ends in `channels` and whose result's channels are named `result`."""
    if (options["data_format"] or keras.config.image_data_format()) != "channels_last":
        return original(whole(inputs), whole(kernel), **options)
    places, taps = zip(*((f"s{i}", f"t{i}") for i in range(len(inputs.shape) - 2)), strict=True)
    return compute(
        lambda inputs, kernel: original(inputs, kernel, **options),
        [inputs, kernel],
        [("b", *places, "i"), (*taps, *channels)],
        ("b", *places, result),
        undivided=(*places, *taps, "m"),
    )


def pool(original, inputs, pool_size, strides=None, padding="valid", data_format=None):
    """Channels may be divided."""
    spatial = [f"s{i}" for i in range(len(inputs.shape) - 2)]
    names = ("b", *spatial, "c")
    if (data_format or keras.config.image_data_format()) != "channels_last":
        return original(whole(inputs), pool_size, strides, padding, data_format)
    return compute(
        lambda local: original(local, pool_size, strides, padding, data_format),
        [inputs],
        [names],
        names,
        undivided=tuple(spatial),
    )


def batch_normalization(original, x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3):
    """Channels may be divided."""
    names = tuple(range(len(x.shape)))
    channel = (dim_of(axis, len(names)),)
    per_channel = [() if value is None else channel for value in (mean, variance, offset, scale)]
    return compute(
        lambda x, mean, variance, offset, scale: original(x, mean, variance, axis, offset, scale, epsilon),
        [x, mean, variance, offset, scale],
        [names, *per_channel],
        names,
    )


def dot_product_attention(original, query, key, value, bias=None, mask=None, **options):
    """Heads may be divided."""
    if not query.shape[2] == key.shape[2] == value.shape[2] or len(query.shape) != 4:
        return original(*map(whole, (query, key, value, bias, mask)), **options)

    def names(scores):
        full = ("b", "n", "t", "s")
        if scores is None:
            return ()
        shape = tuple(scores.shape)
        return tuple(None if size == 1 else name for size, name in zip(shape, full[-len(shape) :], strict=True))

    return compute(
        lambda query, key, value, bias, mask: original(query, key, value, bias=bias, mask=mask, **options),
        [query, key, value, bias, mask],
        [("b", "t", "n", "h"), ("b", "s", "n", "h"), ("b", "s", "n", "v"), names(bias), names(mask)],
        ("b", "t", "n", "v"),
        undivided=("t", "s", "h"),
    )
