"""Divides a step's time into phases by what TensorFlow's profiler says of each operation."""

import glob
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable

OPERATION = re.compile(r"^(?P<path>[^:]+):(?P<type>\w+)$")  # as "sequential/dense/MatMul:MatMul"
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"}  # last as long as what they call
OPTIMIZER = re.compile(r"(^|/)(sgd|adam)(_\d+)?/")
PHASES = FORWARD_BACKWARD, REDUCE, UPDATE, REST = "forward, backward", "reduce", "update", "rest"


def phases(epoch: Callable[[], float], num_steps: int) -> dict[str, float]:
    """Milliseconds of each phase of a step, from one more epoch, which the profiler slows.

    What XLA compiles is all "forward, backward". "rest" is when no operation computes: Python, TensorFlow's own work
    between operations, waiting for data and, since Horovod's operations return at once, for other ranks.
    """
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            seconds = epoch()
        [file] = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        with open(file, "rb") as content:
            space = xplane_pb2.XSpace.FromString(content.read())
    found: dict[str, float] = defaultdict(float)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                operation = OPERATION.match(plane.event_metadata[event.metadata_id].name)
                if operation and operation["type"] not in CALLS and not operation["type"].startswith("Iterator"):
                    found[phase(operation["path"], operation["type"])] += event.duration_ps / 1e9 / num_steps
    return {**found, REST: max(0.0, 1000 * seconds / num_steps - sum(found.values()))}


def phase(path: str, kind: str) -> str:
    """That of an operation, by its name and type."""
    if kind.startswith(("Horovod", "KerasPar")):
        return REDUCE
    return UPDATE if OPTIMIZER.search(path) else FORWARD_BACKWARD
