"""Where what was built for this machine is kept between environments."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """KERAS_PAR_CACHE, else keras-par/wheels in the user's cache folder (XDG_CACHE_HOME, ~/.cache)."""
    if "KERAS_PAR_CACHE" in os.environ:
        return Path(os.environ["KERAS_PAR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keras-par" / "wheels"
