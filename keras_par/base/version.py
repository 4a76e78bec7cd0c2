"""The version of this package, and those of TensorFlow and Keras that it works with, as its metadata say."""

VERSION = "0.2.0"


SUPPORTED = {"tensorflow": ("2.16", "3"), "keras": ("3.14", "4")}  # from, below


def wanted(name: str) -> str:
    """What pip is asked for: "keras>=3.14,<4"."""
    least, below = SUPPORTED[name]
    return f"{name}>={least},<{below}"
