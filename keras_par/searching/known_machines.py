"""Where machines are found: files of the user's, those that ship, and the one that was measured here."""

import os
from pathlib import Path

from keras_par.base.cache import cache_folder
from keras_par.plan.machine import Machine, read_machine

SHIPPED = Path(__file__).parent / "machines"


def measured_here() -> Path:
    """What `keras-par calibrate` writes, and a search reads unless it is told of another machine."""
    return cache_folder().parent / "machine.toml"


def machine_of(name_or_path: str | os.PathLike | None) -> Machine:
    """A machine by its file, by a name that ships, or the one that was measured here.

    Raises:
        ValueError: there is none, or its file is wrong.
    """
    if name_or_path is None:
        if not measured_here().is_file():
            raise ValueError(
                "keras-par: this machine was not measured: run 'keras-par calibrate', or name another one by --machine."
            )
        return read_machine(measured_here())
    shipped = SHIPPED / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if not path.is_file() and not shipped.is_file():
        names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise ValueError(f"keras-par: there is no machine '{name_or_path}': give a file, or one of {names}.")
    return read_machine(path if path.is_file() else shipped)
