"""Distances between what one process and N ranks end with."""

import numpy as np


def relative_distance(ours, theirs) -> float:
    """Euclidean distance of two lists of arrays divided by the length of the second."""
    ours = np.concatenate([np.asarray(a, "float64").ravel() for a in ours])
    theirs = np.concatenate([np.asarray(a, "float64").ravel() for a in theirs])
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30))


def log_distance(ours: dict, theirs: dict) -> float:
    """Largest relative difference of two histories' numbers, which must have the same keys and lengths.

    It is NaN if any of them is, so that no comparison with a tolerance holds.
    """
    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    differences = [
        abs(a - b) / max(abs(b), 1e-3) for key in theirs for a, b in zip(ours[key], theirs[key], strict=True)
    ]
    return float(np.max(differences))
