"""What the attempts of a job share: what its user wants, besides which program runs where, and where it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from keras_par.launch.console import Console
from keras_par.launch.goodput import Account
from keras_par.launch.run_folder import RunFolder

HANG_SECONDS = 120.0  # without progress that are a hang, unless the user says otherwise


@dataclass(frozen=True)
class Settings:
    """What the user wants of a run.

    Args:
        merge_stderr: True if a rank's two streams become one.
        forward: True if the ranks' output is shown.
        verbose: True if all of it is shown.
        hang_after: seconds without progress that are a hang.
        on_hang: "report" or "abort".
    """

    merge_stderr: bool
    forward: bool
    verbose: bool
    hang_after: float
    on_hang: str


def shows_everything(environ: Mapping[str, str]) -> bool:
    """True if the user has asked TensorFlow for all that it says."""
    return environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"


@dataclass(frozen=True)
class Run:
    """What the attempts of a job share.

    Args:
        settings: what the user wants.
        folder: of the run.
        console: where things are shown.
        interrupts: the signals that the user has sent, appended to as they come.
        account: of the steps that are done.
    """

    settings: Settings
    folder: RunFolder
    console: Console
    interrupts: list[int]
    account: Account = field(default_factory=Account)
