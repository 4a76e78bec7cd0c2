"""The server of TensorFlow's by which a process takes part in collectives, and the names that its devices have then."""

import contextlib
import gc
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import tensorflow as tf
from tensorflow.python.eager.context import context

JOB, REUSE_PORT = "worker", "TF_GRPC_REUSE_PORT"
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # of which gRPC takes the first that is set
NO_PROXY = ("no_grpc_proxy", "no_proxy")  # the same
PAUSE_SECONDS, ASKS_A_SECOND = 1.0, 500  # from one look at other ranks to the next; of all ranks together
HEALTH_SECONDS = 2.0  # that a rank has to answer; one that is only slow is there
MOST_NAMED = 3  # variables and others that would be lost
DATASETS = (tf.data.Dataset, tf.data.Iterator)
TABLES = (
    *(tf.lookup.StaticHashTable, tf.lookup.StaticVocabularyTable),
    *(tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable),
)


class Meeting(Protocol):
    """Where the ranks of a job tell each other what they need to know before they are connected."""

    def gather(self, step: str, value: str, refusal: str | None = None) -> list[str]:
        """The values of all ranks, in their order; every rank raises what one refuses."""

    def leave(self, rank: int) -> None:
        """Notes that a rank has left the job."""

    def first_to_leave(self) -> int | None:
        """The first rank that has left, if one has."""


class TensorFlowServer:
    """This rank's server.

    Nobody needs to prove anything to such a server, which runs what it is told to: docs/run.md.

    Args:
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int):
        self._rank, self._size = rank, size
        self._meeting: Meeting | None = None
        self._has_left = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="kp-watch-ranks", daemon=True)

    def connect(self, meeting: Meeting, address: str, refusal: str | None = None) -> None:
        """Starts the server and finds those of the others. Two meetings of all ranks.

        Args:
            meeting: of the ranks.
            address: by which others reach this host.
            refusal: why this rank cannot take part, which all ranks raise.

        Raises:
            RuntimeError: on one of the ranks there are variables, datasets or tables already, or the server does not
                start; or not all ranks come.
        """
        port, why = self._start() if refusal is None else (0, refusal)
        addresses = meeting.gather("address", f"{address}:{port}", why)
        enable(self._rank, dict(enumerate(addresses)))
        meeting.gather("connected", "")  # what comes before a server knows all ranks would be lost
        self._meeting = meeting
        self._watcher.start()

    def _start(self) -> tuple[int, str | None]:
        """The port of the server, which is there before others are told of it; or why there is none."""
        if _reserved is None and has_begun() and (lost := too_late()):
            return 0, lost
        try:
            port = reserve(self._rank)
            if not has_begun():
                enable(self._rank, {self._rank: f"localhost:{port}"})  # with the GPU that was taken since, too
                context().ensure_initialized()
            os.environ.pop(REUSE_PORT, None)
            return port, None
        except (OSError, tf.errors.OpError) as error:
            return 0, f"keras-par: rank {self._rank} cannot start TensorFlow's server: {str(error).splitlines()[0]}"

    def leave(self) -> None:
        """Has collectives of the other ranks fail, within seconds."""
        if self._meeting is not None and not self._has_left.is_set():
            self._has_left.set()
            self._meeting.leave(self._rank)
            if threading.current_thread() is not self._watcher:
                self._watcher.join(2 * HEALTH_SECONDS)  # no thread may be in TensorFlow when Python ends

    def _watch(self) -> None:
        """Ends this rank's collectives when another rank is gone, for which TensorFlow would wait.

        Rank 0, at which each collective begins, looks for all others, and they look for rank 0. It is gone if it is so
        twice, since what is ended is ended for good.
        """
        assert self._meeting is not None
        before = None
        while not self._has_left.wait(max(PAUSE_SECONDS, self._size / ASKS_A_SECOND)):
            left = self._meeting.first_to_leave()
            ended = self._first_to_end() if left is None else None
            gone = left if left is not None else ended if ended == before else None
            before = ended
            if gone is not None and not self._has_left.is_set():
                self._meeting.leave(gone)
                return end_collectives(f"rank {gone} has left the job")

    def _first_to_end(self) -> int | None:
        """A rank whose process does not answer any more."""
        for rank in range(1, self._size) if self._rank == 0 else (0,):
            try:
                context().check_collective_ops_peer_health(task(rank), round(1000 * HEALTH_SECONDS))
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError:
                return rank
        return None


_reserved: socket.socket | None = None  # holds the port of this process's server until that listens, and afterwards


def task(rank: int) -> str:
    """What TensorFlow calls a rank's process."""
    return f"/job:{JOB}/replica:0/task:{rank}"


def has_begun() -> bool:
    """True once TensorFlow has named its devices, with its first operation."""
    return context()._context_handle is not None


def prepare(rank: int) -> None:
    """Has TensorFlow name its devices as those of a rank, unless it has named them.

    Args:
        rank: of this process.
    """
    if not has_begun():
        reserve(rank)


def reserve(rank: int) -> int:
    """Gives TensorFlow's devices the names of a rank's, which they keep; the port of the server that starts with them.

    Variables and datasets know their device by its name, so that those that are made before are lost. Called before the
    first operation, this only says how TensorFlow shall begin.

    Args:
        rank: of this process.
    """
    global _reserved
    if _reserved is None:
        os.environ[REUSE_PORT] = "true"  # the server may have the port that is held for it
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        _reserved = holder
        enable(rank, {rank: f"localhost:{holder.getsockname()[1]}"})
    return _reserved.getsockname()[1]


def end_collectives(why: str) -> None:
    """Has all collectives of this process fail, now and from now on.

    Args:
        why: what their errors say.
    """
    context().abort_collective_ops(tf.errors.UNAVAILABLE, why)


def enable(rank: int, addresses: Mapping[int, str]) -> None:
    """Lets TensorFlow's server know where the ranks are.

    Args:
        rank: of this process.
        addresses: of the servers, by rank.
    """
    go_past_proxies(address.rpartition(":")[0] for address in addresses.values())
    cluster = tf.train.ClusterDef()
    job = cluster.job.add(name=JOB)
    for each, address in addresses.items():
        job.tasks[each] = address
    config = context().config
    config.experimental.collective_group_leader = task(0)  # without which every collective would wait
    config.device_filters.append(f"/job:{JOB}/task:{rank}")
    server = tf.train.ServerDef(
        cluster=cluster, default_session_config=config, job_name=JOB, task_index=rank, protocol="grpc"
    )
    with without_warning():
        context().enable_collective_ops(server)


def go_past_proxies(hosts: Iterable[str]) -> None:
    """Lets gRPC connect to hosts directly, also where a proxy is set, which is for what is outside."""
    if any(os.environ.get(name) for name in PROXIES):
        known = next((os.environ[name] for name in NO_PROXY if os.environ.get(name)), "")
        os.environ[NO_PROXY[0]] = ",".join(dict.fromkeys(filter(None, [*known.split(","), *hosts])))


@contextlib.contextmanager
def without_warning() -> Iterator[None]:
    """Keeps TensorFlow from warning of what was made before, which `too_late` looks for."""

    def is_other(record: logging.LogRecord) -> bool:
        return "Enabling collective ops after program startup" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def too_late() -> str | None:
    """Why this process's devices cannot be named anew, None if they can: numbers live on, whatever their device."""
    gc.collect()
    found = [each for each in gc.get_objects() if issubclass(type(each), (tf.Variable, *DATASETS, *TABLES))]
    if not found:
        return None
    others = ["a lookup table" if isinstance(each, TABLES) else "a dataset" for each in found]
    names = [
        f"variable '{each.name}'" if isinstance(each, tf.Variable) else other
        for each, other in zip(found, others, strict=True)
    ]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"keras-par: {', '.join(names[:MOST_NAMED])}{more} came before kp.init(), and TensorFlow's own collectives "
        "would lose what is made before them: call kp.init() first, or set KERAS_PAR_ENGINE=tensorflow and import "
        "keras_par before anything is made."
    )
