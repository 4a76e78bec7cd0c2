"""Distances between what one process and N ranks end with."""

import keras
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
        values = [result["slots"][place][1] for result in results]
        is_partial = "gradient_accumulator" in name and not (divided and divided[place])
        ours.append(sum(values) if is_partial else values[0])
        oracle.append(their_value)
    return relative_distance(ours, oracle) if oracle else 0.0


def comparable(logs: dict) -> dict:
    """Logs without what Keras since 3.16 makes no mean over rows: losses of outputs whose batches have unequal rows.

    It weighs them by a batch's rows where it knows these while it traces, and by 1 elsewhere: one process nearly leaves
    out the last batch of an epoch, if that is a smaller one.
    """
    ignored = {"class_loss", "value_loss"} if tuple(map(int, keras.version().split(".")[:2])) >= (3, 16) else set()
    return {key: values for key, values in logs.items() if key.removeprefix("val_") not in ignored}
