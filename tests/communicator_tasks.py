"""Looks on each rank whether the communicators of a job keep the contract, and whether broken ones are found out."""

import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.communicator import COLLECTIVES, SoloCommunicator
from keras_par.comm.counted import CountedCommunicator
from keras_par.comm.planned import PlannedCommunicator
from keras_par.comm.two_levels import TwoLevelCommunicator
from keras_par.comm.wrapped import WrappedCommunicator
from keras_par.job import rank_heartbeat
from tests.communicator_contract import breaches


def halves(size: int) -> list[list[int]]:
    """Two groups of neighbours."""
    return [list(range(size // 2)), list(range(size // 2, size))]


def two_levels(current) -> TwoLevelCommunicator:
    """As if the two halves of the ranks were on hosts of their own."""
    return TwoLevelCommunicator(current.routed_by("engine"), current.group(halves(current.size)), halves(current.size))


KINDS = {
    "active": lambda current: current,
    "engine": lambda current: current.routed_by("engine"),
    "counted": CountedCommunicator,
    "measured": lambda current: current,
    "counted and measured": CountedCommunicator,
    "alone": lambda current: SoloCommunicator(),
    "planned": lambda current: PlannedCommunicator(range(4), 1),
    "group of all": lambda current: current.group([list(range(current.size))]),
    "group of one": lambda current: current.group([[rank] for rank in range(current.size)]),
    "two levels": lambda current: two_levels(current),
    "group of half": lambda current: current.group(halves(current.size)),
    "measured group of half": lambda current: current.group(halves(current.size)),
}


class Broken(WrappedCommunicator):
    """Breaks the contract in one way, on all ranks alike."""

    def __init__(self, inner, breach: str):
        super().__init__(inner)
        self.breach = breach
        if breach == "ranks":
            self.ranks = self.ranks[:-1]

    def issue(self, request, tensors):
        kind, results = request.kind, self.inner.issue(request, tensors)
        if kind == self.breach:
            return [tf.zeros_like(result) for result in results]
        if self.breach == "dtype" and kind == "all_reduce":
            return [tf.cast(result, tf.float32) for result in results]
        if self.breach == "one too few" and kind == "all_reduce":
            return results[:1]
        if self.breach == "gradient" and kind == "all_reduce":
            return [tf.stop_gradient(result) for result in results]
        return results

    def _wrapped(self, group):
        return Broken(group, self.breach)


BREACHES = (*COLLECTIVES, "ranks", "dtype", "one too few", "gradient")


def look(kind: str) -> dict:
    """The breaches of a kind of communicator, and how many ranks it has."""
    communicator = KINDS[kind](world.current())
    heartbeat = rank_heartbeat.current()
    heartbeat.is_measured = "measured" in kind
    found = breaches(communicator, f"contract.{kind}", real=kind != "planned")
    heartbeat.is_measured = False
    return {
        "size": communicator.size,
        "breaches": found,
        "routes": sorted({str(communicator.route("all_reduce", [tf.zeros([1])])), str(route_in_graph(communicator))}),
    }


def route_in_graph(communicator) -> str | None:
    routes = []

    @tf.function(autograph=False)
    def trace():
        routes.append(communicator.route("all_reduce", [tf.zeros([1])]))

    trace()
    return routes[0]


def look_at_broken(breach: str) -> list[str]:
    """What is found in a communicator with one fault."""
    return breaches(Broken(world.current(), breach), f"broken.{breach}")


def use_a_name_again() -> list:
    """What collectives of several kinds, roots and dtypes give that have one name and length."""
    communicator, found = world.current(), []
    for dtype in (tf.float32, tf.float64, tf.int32):
        own = tf.constant([1 + communicator.rank, 5], dtype)
        found += [communicator.all_reduce([own], "again")[0], communicator.all_gather_equal([own], "again")[0]]
        found += [communicator.broadcast([own], "again", root)[0] for root in range(communicator.size)]
    return [(each.dtype.name, each.numpy().tolist()) for each in found]


def reduce_other_dtypes() -> dict:
    """Sums in dtypes that TensorFlow's collectives do not know, the gradient of bfloat16, and what is refused."""
    communicator = world.current()
    found = {}
    for dtype in (tf.int8, tf.uint8, tf.int16, tf.uint16):
        [total] = communicator.all_reduce([tf.constant([1, 2 + communicator.rank], dtype)], f"dtypes.{dtype.name}")
        found[dtype.name] = (total.dtype.name, total.numpy().tolist())

    @tf.function(autograph=False)
    def gradient():
        x = tf.constant([1.0, 2.0], tf.bfloat16)
        with tf.GradientTape() as tape:
            tape.watch(x)
            [total] = communicator.all_reduce([x], "dtypes.bfloat16")
            loss = (communicator.rank + 1.0) * tf.cast(tf.reduce_sum(total), tf.float32)
        return tape.gradient(loss, x)

    found["gradient"] = tf.cast(gradient(), tf.float32).numpy().tolist()
    try:
        communicator.all_reduce([tf.constant([2**40], tf.uint64)], "dtypes.uint64")
    except TypeError as error:
        found["refused"] = "uint64" in str(error)
    return found
