"""Says, once for each kind, what a training loop by hand on several ranks does otherwise than one process."""

import logging

logger = logging.getLogger("keras_par")

_normalized: list[str] = []  # paths of layers that have normalized rows outside of a step, until this is said
_said: set[str] = set()


def note_normalized(path: str) -> None:
    """Notes a layer that normalizes this rank's rows outside of a model's step, as a loop by hand calls it."""
    if not _normalized:
        _normalized.append(path)


def say(rank: int, has_slices: bool) -> None:
    """Says on rank 0 what a loop by hand does otherwise that sums gradients now.

    Args:
        rank: this one.
        has_slices: True if there are gradients of rows that were looked up.
    """
    if _normalized and is_new("normalized") and rank == 0:
        logger.warning(
            "keras-par: layer '%s' normalizes each rank's rows by themselves in a training loop by hand: train by fit, "
            "or by a train_step of the model's, which normalize by the rows of all ranks",
            _normalized[0],
        )
    if has_slices and is_new("slices") and rank == 0:
        logger.warning(
            "keras-par: a training loop by hand leaves gradients of looked-up rows as the ranks have them, and Adam "
            "and its like square those of equal rows one by one: train by fit, which adds them first"
        )


def is_new(kind: str) -> bool:
    """True the first time that it is asked of this kind."""
    is_known = kind in _said
    _said.add(kind)
    return not is_known
