"""Which callbacks come from other packages than Keras and the user's own: loggers, which must write once."""

import functools
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from keras import callbacks

# They stop training or change weights or rates, which all ranks must do alike, whoever wrote the class.
DECIDING = (
    callbacks.EarlyStopping,
    callbacks.ReduceLROnPlateau,
    callbacks.LearningRateScheduler,
    callbacks.SwapEMAWeights,
    callbacks.TerminateOnNaN,
    callbacks.BackupAndRestore,
)

# A tuner on each rank gives `fit` callbacks that keep this rank's weights, and that call its own methods.
ON_EACH_RANK = frozenset(["keras", "keras_par", "keras_tuner", "tensorflow"])

ALONE = "_keras_par_alone"  # an attribute of callbacks, True of one that this rank runs and others do not


def is_foreign(callback: callbacks.Callback) -> bool:
    """True for a callback of an installed package that is to run on one rank, as it does not say or show otherwise."""
    said = (getattr(callback, name, None) for name in ("every_rank_writes", "acts_on_all_ranks"))
    return not any(said) and not isinstance(callback, DECIDING) and installed_package(type(callback)) is not None


def installed_package(kind: type) -> str | None:
    """The package of a class that was installed; None for those of ON_EACH_RANK and of the program that runs."""
    name = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_installed = file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    return name if is_installed and name not in ON_EACH_RANK | program() else None


@functools.cache
def program() -> frozenset[str]:
    """The package of the program that runs, by `python -m` or by the command that its package has installed."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return frozenset([spec.name.partition(".")[0]])
    commands = importlib.metadata.entry_points(group="console_scripts", name=Path(sys.argv[0]).name)
    return frozenset(command.module.partition(".")[0] for command in commands)


def frames_of_callbacks() -> Iterator[FrameType]:
    """What is under way of the functions of Keras's callbacks, the innermost first.

    Nobody looks into frames of users' functions: these would then keep what is in them until they end.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("keras.src.callbacks."):
            yield frame
        frame = frame.f_back


def refuse(what: str) -> None:
    """Refuses what needs all ranks within a callback that runs on one; in a job of several ranks.

    Args:
        what: the call.

    Raises:
        ValueError: on this rank.
    """
    for frame in frames_of_callbacks():
        callback = frame.f_locals.get("callback")  # in a CallbackList's, the one that it calls
        if getattr(callback, ALONE, False) and is_foreign(callback):
            raise ValueError(
                f"keras-par: {full_name(type(callback))} runs on one rank only, as callbacks of other packages do, but "
                f"calls {what}, which needs all ranks: set callback.every_rank_writes = True on every rank."
            )


def full_name(kind: type) -> str:
    return f"{kind.__name__} of package '{installed_package(kind)}'"
