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


def slot_distance(results: list[dict], theirs: list[tuple]) -> float:
    """Distance of the optimizers' state; sums of steps' gradients add up over ranks, unless these divide them."""
    assert [name for name, _ in results[0]["slots"]] == [name for name, _ in theirs]
    ours, oracle, divided = [], [], results[0].get("divided")
    for place, (name, their_value) in enumerate(theirs):
        if name == "iteration":
            continue  # plain Keras counts too many where data ends unannounced, see that case
        values = [result["slots"][place][1] for result in results]
        is_partial = "gradient_accumulator" in name and not (divided and divided[place])
        ours.append(sum(values) if is_partial else values[0])
        oracle.append(their_value)
    return relative_distance(ours, oracle) if oracle else 0.0
