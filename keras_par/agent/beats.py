"""Decides when a launcher that hears many ranks is told where one of them is."""

from keras_par.agent.states import State


class Beats:
    """When a state is due: each so many seconds, and at once when a rank joins the job, is stopped, or goes on.

    Args:
        seconds: from one to the next.
    """

    def __init__(self, seconds: float):
        self._seconds, self._last = seconds, 0.0
        self._told: tuple[bool, bool] | None = None

    def hasten(self, seconds: float) -> None:
        """Makes the next ones come so often, if they came more rarely."""
        self._seconds = min(self._seconds, seconds)

    def is_due(self, state: State, now: float) -> bool:
        """True if the launcher is to be told this state now, which is then taken for told.

        Args:
            state: of the rank.
            now: by `time.monotonic()`.
        """
        kind = (state.has_joined, state.is_stopped)
        if kind == self._told and now - self._last < 0.95 * self._seconds:
            return False
        self._told, self._last = kind, now
        return True
