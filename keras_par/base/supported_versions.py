"""The versions of TensorFlow and Keras that this package works with, as its metadata ask for them."""

SUPPORTED = {"tensorflow": ("2.16", "3"), "keras": ("3.14", "4")}  # from, below


def wanted(name: str) -> str:
    """What pip is asked for: "keras>=3.14,<4"."""
    least, below = SUPPORTED[name]
    return f"{name}>={least},<{below}"
