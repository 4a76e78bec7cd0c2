"""The states of metrics: those of each rank's rows while steps run, and the whole job's when users can see them."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.step.metrics import FIRST, LOCAL, OPERATIONS, operation_of
from keras_par.keras_patches.step.number_kinds import leaves

Values = list[tuple[keras.Variable, tf.Tensor]]


class MetricStates:
    """Says whether the metrics of one model hold the rows of this rank or of all, and makes one of the other.

    While steps run, the first rank's states that add up go on from the whole, and the others' begin anew, so that
    their sum is the whole again.
    """

    def __init__(self):
        self.are_parted = False
        self._initial: dict[int, tuple[keras.Variable, tf.Tensor]] = {}  # of states that add up

    def part(self, communicator: Communicator, model: keras.Model) -> None:
        """Before a step: from now on the metrics hold this rank's rows."""
        if self.are_parted:
            return
        self.are_parted = True
        adding = [each for metric, each in states_of(model) if operation_of(metric, each) == "sum"]
        new = {id(each): (each, tf.identity(each.value)) for each in adding if id(each) not in self._initial}
        self._initial = {id(each): (new | self._initial)[id(each)] for each in adding}
        if communicator.rank > 0:
            for variable, initial in self._initial.values():
                variable.assign(initial)

    def join(self, communicator: Communicator, model: keras.Model) -> Values:
        """Lets the metrics hold all ranks' rows, and returns what they held if it was this rank's.

        Costs one all-reduce for each dtype and operation.
        """
        if not self.are_parted:
            return []
        self.are_parted = False
        found = states_of(model)
        before = [(variable, tf.identity(variable.value)) for _, variable in found]
        own = [self._added(variable, value) if communicator.rank > 0 else value for variable, value in before]
        sums = reduced(communicator, own, [operation_of(*each) for each in found])
        assign([(variable, value) for (variable, _), value in zip(before, sums, strict=True)])
        return before

    def put_back(self, own: Values) -> None:
        """Undoes `join`, which returned `own`."""
        assign(own)
        self.are_parted = True

    def _added(self, variable: keras.Variable, value: tf.Tensor) -> tf.Tensor:
        initial = self._initial.get(id(variable))
        return value if initial is None else value - initial[1]

    @contextlib.contextmanager
    def parted(self, communicator: Communicator, model: keras.Model) -> Iterator[None]:
        """Within it the metrics hold this rank's rows, to be stored; after it what they held before."""
        if self.are_parted:
            yield
            return
        with kept([variable for _, variable in states_of(model)]):
            self.part(communicator, model)
            yield
        self.are_parted = False


def states_of(model: keras.Model) -> list[tuple[keras.metrics.Metric, keras.Variable]]:
    """The variables of a model's metrics, each once and with its metric."""
    found = [(metric, variable) for metric in leaves(model.metrics) for variable in metric.variables]
    return list({id(variable): (metric, variable) for metric, variable in found}.values())


@contextlib.contextmanager
def kept(variables: list[keras.Variable]) -> Iterator[None]:
    """After it variables have the values that they had before."""
    before = [(variable, tf.identity(variable.value)) for variable in variables]
    try:
        yield
    finally:
        assign(before)


def assign(values: Values) -> None:
    for variable, value in values:
        variable.assign(value)


def reduced(communicator: Communicator, values: list[tf.Tensor], operations: list[str]) -> list[tf.Tensor]:
    """The ranks' values of metric variables, combined."""
    values = list(values)
    groups: defaultdict[tuple, list[int]] = defaultdict(list)
    for i, operation in enumerate(operations):
        groups[operation, values[i].dtype].append(i)
    for (operation, dtype), places in groups.items():
        name = f"kp.metrics.{operation}.{dtype.name}"
        tensors = [values[i] for i in places]
        if operation == LOCAL:
            continue
        if operation == FIRST:
            combined = communicator.broadcast(tensors, name)
        else:
            combined = communicator.all_reduce(tensors, name, OPERATIONS[operation])
        for i, value in zip(places, combined, strict=True):
            values[i] = value
    return values
