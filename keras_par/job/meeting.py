"""Lets ranks tell each other, at the rendezvous server of their job, what TensorFlow needs to connect them."""

import contextlib
import http.client
import json
import os
import time
from typing import Any

from keras_par.base.environment import number
from keras_par.job.launch_environment import start_seconds

ASK_SECONDS = 5.0  # how long an answer may take
PAUSE_SECONDS, ASKS_A_SECOND = 0.05, 500  # between two questions of a rank; of all ranks together
FOLDER, LEFT = "/tensorflow", "left"
MOST_NAMED = 8  # ranks that have not come


class RendezvousMeeting:
    """All ranks of a job, at the rendezvous server that HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT name.

    Args:
        rank: this one.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int):
        self._rank, self._size = rank, size
        self._address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._port = number(os.environ, "HOROVOD_GLOO_RENDEZVOUS_PORT", 1, 65535, "launchers set it for each rank")
        self._seconds = start_seconds(os.environ)

    def gather(self, step: str, value: str, refusal: str | None = None) -> list[str]:
        """The values of all ranks, in their order. Rank 0 asks for them, and the others for what it has found.

        Args:
            step: what is told, the same on all ranks.
            value: this rank's.
            refusal: why this rank does not take part, which all ranks raise.

        Raises:
            RuntimeError: one refuses, or not all ranks come in time.
        """
        self._put(f"{step}.{self._rank}", [value, refusal])
        if self._rank == 0:
            told = self._wait_for({f"{step}.{rank}": rank for rank in range(self._size)})
            self._put(step, found := [told[rank] for rank in range(self._size)])
        else:
            found = self._wait_for({step: 0})[0]
        if why := next((refused for _, refused in found if refused), None):
            raise RuntimeError(why)
        return [each for each, _ in found]

    def leave(self) -> None:
        """Notes that this rank has left the job."""
        with contextlib.suppress(OSError):  # the server ends with the job
            self._put(LEFT, self._rank)

    def first_to_leave(self) -> int | None:
        """A rank that has left, if one has."""
        with contextlib.suppress(OSError):
            return self._get(LEFT)
        return None

    def _wait_for(self, awaited: dict[str, int]) -> dict[int, list]:
        """What ranks have put, by their numbers.

        Args:
            awaited: the ranks, by the names of what they put.

        Raises:
            RuntimeError: it is not all there in time.
        """
        deadline, told = time.monotonic() + self._seconds, {}
        while awaited:
            for name, rank in list(awaited.items()):
                if (found := self._get(name)) is not None:
                    told[rank] = found
                    del awaited[name]
            if awaited and time.monotonic() > deadline:
                missing = ", ".join(map(str, list(awaited.values())[:MOST_NAMED]))
                more = f" and {len(awaited) - MOST_NAMED} more" if len(awaited) > MOST_NAMED else ""
                raise RuntimeError(
                    f"keras-par: rank(s) {missing}{more} of {self._size} did not come to the start of TensorFlow's "
                    f"collectives within {self._seconds} s: have every rank call kp.init(), or set "
                    "HOROVOD_START_TIMEOUT to more seconds."
                )
            if awaited:
                time.sleep(max(PAUSE_SECONDS, self._size / ASKS_A_SECOND))
        return told

    def _put(self, name: str, value: object) -> None:
        self._ask("PUT", name, json.dumps(value))

    def _get(self, name: str) -> Any:
        """What a rank has put; None if it has not come yet."""
        content = self._ask("GET", name)
        return None if content is None else json.loads(content)

    def _ask(self, method: str, name: str, content: str | None = None) -> bytes | None:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=ASK_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, f"{FOLDER}/{name}", content)
            response = connection.getresponse()
            found = response.read()
            return found if response.status == http.client.OK else None
