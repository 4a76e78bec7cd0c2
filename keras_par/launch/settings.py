"""What the user wants of a run, besides which program runs where."""

from collections.abc import Mapping
from dataclasses import dataclass

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
