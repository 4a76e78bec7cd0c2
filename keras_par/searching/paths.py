"""What the paths of layers and variables tell: which differ in numbers only."""

import re


def without_numbers(path: str) -> str:
    """A path in which layers that were numbered have one name."""
    return re.sub(r"\d+", "#", path)


def layer_of(path: str) -> str:
    """The path of a variable's layer."""
    return path.rpartition("/")[0]
