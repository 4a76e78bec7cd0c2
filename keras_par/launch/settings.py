"""What the user wants of a run, besides which program runs where."""

from dataclasses import dataclass


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
