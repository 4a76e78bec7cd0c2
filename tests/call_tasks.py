"""What the ranks of a pool do for the tests of `kp.run`, which they may not call."""

import keras_par as kp


def refused() -> list[str]:
    """What a rank is told that wants to start ranks."""
    said = []
    for start in (kp.run, kp.ray.run):
        try:
            start(print)
        except RuntimeError as error:
            said.append(str(error))
    return said
