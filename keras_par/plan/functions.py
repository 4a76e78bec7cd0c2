"""What functions of elements compute: for some, such as GELU, that takes longer than to read and write the elements."""

# Forward and backward: for each element of the largest tensor, how many floating-point operations of products take as
# long. Measured by `python -m benchmarks functions` with TensorFlow 2.21 on one core with AVX-512, at 105 GFLOP/s.
FLOPS = {
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
    "numpy.power": (1100, 1150),
    "numpy.sin": (75, 120),
}
