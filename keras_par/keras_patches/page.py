"""Writes docs/keras_patches.md, what is replaced in Keras and TensorFlow: `python -m keras_par.keras_patches.page`."""

from pathlib import Path

from keras_par.keras_patches.table.replacements import PATCHES, Patch
from keras_par.keras_patches.table.uses import MOVES, USES

FILE = Path(__file__).resolve().parents[2] / "docs" / "keras_patches.md"
HEAD = """\
# What is replaced in Keras and TensorFlow

`kp.init()` replaces these names, each by a function that does what the name did before for models without a strategy.
`keras_par/keras_patches/table/` is the source of this page; each name is checked before any is replaced, so that a
version of Keras without one is refused.

| name | replaced by | why | from Keras |
|---|---|---|---|
"""
OPERATIONS = """
Once a variable is divided, `keras_par/keras_patches/variables/operations.py` replaces the operators of `tf.Tensor`,
and those functions of Keras's backend (`keras.src.backend.tensorflow.core`, `linalg`, `math`, `nn`, `numpy`, `random`,
`rnn`) that have a rule for what is divided (`keras_par/sharding/rules/table.py`) or call others in a loop.

# What is used as it is

| name | why |
|---|---|
"""
MOVED = """
# What has moved

| name above | name since | from Keras |
|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    reasons: list[str] = []
    rows = []
    for patch in PATCHES:
        reasons.append(reasons[-1] if patch.reason == "the same" else patch.reason)
        rows.append(f"| `{shown(patch.target)}` | `{shown(patch.by)}` | {reasons[-1]} | {versions(patch)} |\n")
    uses = []
    for use in USES:
        reasons.append(reasons[-1] if use.reason == "the same" else use.reason)
        uses.append(f"| `{shown(use.target)}` | {reasons[-1]} |\n")
    moves = [f"| `{shown(move.before)}` | `{shown(move.now)}` | {move.since} |\n" for move in MOVES]
    return "".join([HEAD, *rows, OPERATIONS, *uses, MOVED, *moves])


def versions(patch: Patch) -> str:
    """Those that have the name."""
    return f"{patch.since}, before {patch.until}" if patch.until else patch.since


def shown(target: str) -> str:
    return target.replace(":", ".")


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
