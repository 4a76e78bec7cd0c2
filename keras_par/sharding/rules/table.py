"""Which rule belongs to which function of Keras's backend; functions without one get whole tensors."""

from collections.abc import Callable

from keras_par.sharding.rules import contractions, elementwise, losses, reductions, shapes

NUMPY = """
    abs absolute add angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_invert
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor cbrt ceil clip conj conjugate copy
    cos cosh deg2rad divide
    divide_no_nan equal exp exp2 expm1 fabs floor floor_divide fmax fmin fmod greater greater_equal heaviside hypot imag
    isclose isfinite isinf isnan isneginf isposinf isreal left_shift less less_equal log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum mod multiply nan_to_num negative not_equal
    ones_like power rad2deg real reciprocal right_shift round sign signbit sin sinc sinh sqrt square subtract tan tanh
    true_divide trunc zeros_like
"""
NN = """
    celu elu gelu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid relu relu6 selu sigmoid silu
    soft_shrink softplus softsign squareplus tanh tanh_shrink threshold
"""
MATH = "rsqrt erf erfc erfinv"
WHOLE_LINES = "sort argsort"
WHOLE_LINES_OR_ALL = "cumsum cumprod flip"
REDUCED_WHOLE = "max min amax amin prod all any argmin median"

RULES: dict[str, Callable] = {
    "core.cast": shapes.cast,
    "core.convert_to_tensor": shapes.convert_to_tensor,
    "core.shape": shapes.shape,
    "core.slice_update": shapes.slice_update,
    "core.stop_gradient": elementwise.elementwise,
    "math.logsumexp": reductions.reduced_whole,
    "nn.average_pool": contractions.pool,
    "nn.batch_normalization": contractions.batch_normalization,
    "nn.binary_crossentropy": losses.binary_crossentropy,
    "nn.categorical_crossentropy": losses.categorical_crossentropy,
    "nn.conv": contractions.conv,
    "nn.conv_transpose": contractions.conv_transpose,
    "nn.depthwise_conv": contractions.depthwise_conv,
    "nn.dot_product_attention": contractions.dot_product_attention,
    "nn.log_softmax": reductions.log_softmax,
    "nn.max_pool": contractions.pool,
    "nn.moments": reductions.moments_over,
    "nn.softmax": reductions.softmax,
    "nn.sparse_categorical_crossentropy": losses.sparse_categorical_crossentropy,
    "numpy.argmax": reductions.argmax,
    "numpy.concatenate": shapes.concatenate,
    "numpy.einsum": contractions.einsum,
    "numpy.expand_dims": shapes.expand_dims,
    "numpy.matmul": contractions.matmul,
    "numpy.mean": reductions.mean_over,
    "numpy.moveaxis": shapes.moveaxis,
    "numpy.pad": shapes.pad,
    "numpy.repeat": shapes.repeat,
    "numpy.reshape": shapes.reshape,
    "numpy.split": shapes.split,
    "numpy.squeeze": shapes.squeeze,
    "numpy.stack": shapes.stack,
    "numpy.std": reductions.deviation_over,
    "numpy.sum": reductions.sum_over,
    "numpy.swapaxes": shapes.swapaxes,
    "numpy.take": shapes.take,
    "numpy.take_along_axis": shapes.take_along_axis,
    "numpy.transpose": shapes.transpose,
    "numpy.var": reductions.variance_over,
    "numpy.where": elementwise.where,
    "random.dropout": elementwise.dropout,
}
RULES |= {f"numpy.{name}": elementwise.elementwise for name in NUMPY.split()}
RULES |= {f"nn.{name}": elementwise.elementwise for name in NN.split()}
RULES |= {f"math.{name}": elementwise.elementwise for name in MATH.split()}
RULES |= {f"numpy.{name}": reductions.along_whole for name in WHOLE_LINES.split()}
RULES |= {f"numpy.{name}": reductions.along_whole_or_all for name in WHOLE_LINES_OR_ALL.split()}
RULES |= {f"numpy.{name}": reductions.reduced_whole for name in REDUCED_WHOLE.split()}
