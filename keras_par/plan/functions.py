"""How much functions compute that take longer than to read and write what they are given, such as GELU."""

# (Forward, backward): for each element of the largest tensor, the floating-point operations that large products do in
# the time that the function takes beyond a ReLU's. Measured by `python -m benchmarks functions` with TensorFlow 2.21,
# on one core with AVX-512 at 105 GFLOP/s and on whole tensors. No GPU was measured. ReLU, tanh and square roots took
# less than 10. Powers are left out, since TensorFlow makes products and roots of the usual ones.
FLOPS_PER_ELEMENT = {
    "math.erf": (10, 80),
    "math.logsumexp": (60, 10),
    "nn.binary_crossentropy": (260, 130),
    "nn.categorical_crossentropy": (210, 0),
    "nn.celu": (230, 190),
    "nn.elu": (40, 10),
    "nn.gelu": (40, 140),
    "nn.log_sigmoid": (320, 80),
    "nn.log_softmax": (70, 100),
    "nn.selu": (40, 10),
    "nn.sigmoid": (40, 5),
    "nn.silu": (20, 130),
    "nn.softmax": (25, 50),
    "nn.softplus": (290, 80),
    "nn.sparse_categorical_crossentropy": (410, 20),
    "numpy.cos": (80, 120),
    "numpy.exp": (20, 15),
    "numpy.expm1": (180, 70),
    "numpy.log": (45, 15),
    "numpy.log1p": (75, 30),
    "numpy.sin": (75, 120),
}
