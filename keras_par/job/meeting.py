"""Lets ranks tell each other, at the rendezvous server of their job, what TensorFlow needs to connect them."""

import contextlib
import http.client
import json
import os
import time
import uuid

from keras_par.base.environment import number
from keras_par.base.rendezvous import TENSORFLOW
from keras_par.job.launch_environment import start_seconds

ASK_SECONDS = 5.0  # how long an answer may take
PAUSE_SECONDS, ASKS_A_SECOND = 0.05, 500  # between two questions of a rank; of all ranks together
LATER_SECONDS, HEARD_SECONDS = 10.0, 1.0  # that others wait for rank 0's word; that rank 0 stays after a refusal
LEFT = "left"
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
        self._job = uuid.uuid4().hex  # rank 0's: a scope of its own, since several programs may come here in turns

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
            found = self._collected(step)
            self._put(step, [self._job, found])
        else:
            self._job, found = self._wait_for({step: 0}, self._seconds + LATER_SECONDS)[0]
        if why := next((refused for _, refused in found if refused), None):
            if self._rank == 0:
                time.sleep(HEARD_SECONDS)  # the others may ask this process
            raise RuntimeError(why)
        return [each for each, _ in found]

    def leave(self, rank: int) -> None:
        """Notes that a rank has left the job; when all have, nothing is left of this meeting."""
        with contextlib.suppress(OSError, http.client.HTTPException):  # the server ends with the job
            self._ask("PUT", f"{self._job}/{LEFT}", json.dumps(rank))
            if rank == self._rank:
                self._ask("DELETE", f"{TENSORFLOW}/all")

    def first_to_leave(self) -> int | None:
        """A rank that has left, if one has."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            content = self._ask("GET", f"{self._job}/{LEFT}")
            return None if content is None else json.loads(content)
        return None

    def _collected(self, step: str) -> list:
        """On rank 0 what all ranks have put; or that some have not come in time."""
        try:
            told = self._wait_for({f"{step}.{rank}": rank for rank in range(self._size)}, self._seconds)
        except RuntimeError as error:
            return [[None, str(error)]]
        return [told[rank] for rank in range(self._size)]

    def _wait_for(self, awaited: dict[str, int], seconds: float) -> dict[int, list]:
        """What ranks have put, by their numbers.

        Args:
            awaited: the ranks, by the names of what they put.
            seconds: that they have.

        Raises:
            RuntimeError: it is not all there in time.
        """
        deadline, told = time.monotonic() + seconds, {}
        while awaited:
            for name, rank in list(awaited.items()):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if (content := self._ask("GET", f"{TENSORFLOW}/{name}")) is not None:
                        told[rank] = json.loads(content)
                        del awaited[name]
            if awaited and time.monotonic() > deadline:
                missing = ", ".join(map(str, list(awaited.values())[:MOST_NAMED]))
                more = f" and {len(awaited) - MOST_NAMED} more" if len(awaited) > MOST_NAMED else ""
                raise RuntimeError(
                    f"keras-par: rank(s) {missing}{more} of {self._size} did not come to the start of TensorFlow's "
                    f"collectives within {self._seconds} s: have every rank call kp.init() with the same engine, "
                    "or set HOROVOD_START_TIMEOUT to more seconds."
                )
            if awaited:
                time.sleep(max(PAUSE_SECONDS, self._size / ASKS_A_SECOND))
        return told

    def _put(self, name: str, value: object) -> None:
        self._ask("PUT", f"{TENSORFLOW}/{name}", json.dumps(value))

    def _ask(self, method: str, path: str, content: str | None = None) -> bytes | None:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=ASK_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, f"/{path}", content)
            response = connection.getresponse()
            found = response.read()
            return found if response.status == http.client.OK else None
