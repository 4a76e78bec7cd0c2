"""Knows which backend Keras will choose, without importing Keras, which fails where that backend is not installed."""

import json
import os
import sys
from pathlib import Path


def keras_backend() -> tuple[str, str]:
    """The backend that Keras will choose, and where that is written, by the rules of Keras itself."""
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"], "KERAS_BACKEND"
    home = Path.home()
    folder = os.environ.get("KERAS_HOME", (home if os.access(home, os.W_OK) else Path("/tmp")) / ".keras")
    path = Path(folder).expanduser() / "keras.json"
    try:
        return json.loads(path.read_text())["backend"], str(path)
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow", "default"


def require_tensorflow() -> None:
    """Refuses another backend before Keras is imported; where it has been, `keras_patches.table.private.check` does.

    Raises:
        RuntimeError: Keras will choose another backend.
    """
    backend, _ = keras_backend()
    if "keras" not in sys.modules and backend != "tensorflow":
        raise RuntimeError(sentence(backend))


def sentence(backend: str) -> str:
    """What is wrong with a backend that is not TensorFlow."""
    return (
        f"keras-par: Keras runs on the {backend} backend, but keras-par needs TensorFlow: "
        "set KERAS_BACKEND=tensorflow before importing Keras."
    )
