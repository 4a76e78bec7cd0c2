"""Writes down which operations a model calls, while rules meet tensors that nothing divides yet."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_par.comm import call_site
from keras_par.plan.division import Named
from keras_par.plan.trace import ASSIGN, WHOLE, Operation, Steps, Tensor, Trace
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.tensor import ShardedTensor

LOGITS = "_keras_logits"


class RecordedTensor(ShardedTensor):
    """A tensor of a trace, which could be divided in any way.

    Args:
        local: the tensor.
        recorder: of the trace.
        number: in the trace.
    """

    def __init__(self, local: tf.Tensor, recorder: "Recorder", number: int):
        super().__init__(local, (None,) * local.shape.rank, recorder)
        self.recorder, self.number = recorder, number

    def whole(self) -> tf.Tensor:
        """The tensor, which something takes as a whole."""
        self.recorder.taken_whole(self)
        return self.local

    def with_local(self, local: tf.Tensor) -> ShardedTensor:
        """A new tensor."""
        return ShardedTensor(local, self.axes, self.mesh)

    def __getitem__(self, index):
        return self.recorder.call("getitem", ShardedTensor.__getitem__, (self, index), {})


class Computed(NamedTuple):
    """What an operation computes by the names of its dims, see `compute`."""

    operands: Sequence[Any]
    named: Named
    otherwise: Callable | None


class Recorder(RankMesh):
    """Makes a trace; the mesh of its tensors, of which no axis is known.

    Args:
        trace: to write to.
    """

    def __init__(self, trace: Trace):
        self.trace = trace
        self.spans: list[tuple[int, int]] = []  # for each operation the first of its graph's nodes, and the next one
        self._numbers: dict[int, tuple[Any, int]] = {}  # by id: a tensor and its number
        self._whole: set[int] = set()  # ids of tensors that were taken whole
        self._depth = 0
        self._named: list[Computed] = []
        self._steps: dict[tuple, Steps] = {}  # by operation, its named dims and what it reads

    def __eq__(self, other) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def variable(self, local: tf.Tensor, path: str, is_trainable: bool) -> RecordedTensor:
        """Stands for a variable's value."""
        return self._new(local, is_trainable and local.dtype.is_floating, path, True)

    @property
    def tensors(self) -> Iterator[tuple[tf.Tensor, int]]:
        """Those of the trace that are tensors of its graph, with their numbers."""
        return ((tensor, number) for tensor, number in self._numbers.values() if tf.is_symbolic_tensor(tensor))

    def computed(self, operands, named, otherwise, run):
        """As the mesh's. Notes how the operation under way names the dims of its operands."""
        if self._depth == 0:
            return self.call("", lambda *given: self.computed(given, named, otherwise, run), tuple(operands), {})
        if self._depth == 1:
            self._named.append(Computed(operands, named, otherwise))
        return run()

    def assigned(self, variable: RecordedTensor, value: RecordedTensor) -> None:
        """Notes that a variable gets a value."""
        self._note(ASSIGN, (value.number, variable.number), ())

    def taken_whole(self, tensor: RecordedTensor) -> None:
        """Notes that something without a rule takes a tensor."""
        if self._depth == 0:
            self._note(WHOLE, (tensor.number,), ())
        self._whole.add(id(tensor.local))

    def call(self, name: str, rule: Callable, args: tuple, kwargs: dict) -> Any:
        """What a rule makes of arguments, written down unless another rule under way calls it.

        Args:
            name: of the operation.
            rule: takes the arguments.
            args: by place.
            kwargs: by name.
        """
        self._depth += 1
        begin = num_nodes()
        try:
            result = rule(*args, **kwargs)
        finally:
            self._depth -= 1
        if self._depth:
            return result
        described, self._named = self._named, []
        made: list[RecordedTensor] = []
        given = list(self._tensors((*args, *kwargs.values())))
        operands = tuple(map(self._number, given))
        ends = name == "core.stop_gradient" or any(each.named.combine == "largest" for each in described)
        has_gradient = not ends and any(self.trace.tensors[number].has_gradient for number in operands)
        is_weight = all(self.trace.tensors[number].is_weight for number in operands)

        def keep(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(map(keep, value))
            if not isinstance(value, (tf.Tensor, ShardedTensor)) or any(value is each for each in given):
                return value
            local = value.local if isinstance(value, ShardedTensor) else value
            made.append(self._new(local, has_gradient and local.dtype.is_floating, is_weight=is_weight))
            if hasattr(value, LOGITS):  # which losses look for
                setattr(made[-1], LOGITS, getattr(value, LOGITS))
            return made[-1]

        result = keep(result)
        if not made:
            return result
        named, steps = None, None
        if len(described) == 1:
            [(read, named, otherwise)] = described
            operands = tuple(map(self._number, read))
            steps = None if otherwise is None else self._made_of(name, read, named, otherwise)
        self._note(name, operands, tuple(tensor.number for tensor in made), named, steps, begin)
        return result

    def _made_of(self, name: str, operands: Sequence[Any], named: Named, otherwise: Callable) -> Steps:
        """What an operation calls of others where its dims are divided."""
        tensors = [self.trace.tensors[self._number(operand)] for operand in operands]
        key = name, named, *tensors
        if key not in self._steps:
            inner = Recorder(Trace())
            made: list[int] = []

            def traced() -> None:
                like = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in tensors]
                pairs = zip(like, tensors, strict=True)
                found = otherwise(*(inner._new(each, said.has_gradient, "", said.is_weight) for each, said in pairs))
                made.extend(map(inner._number, tf.nest.flatten(found)))

            tf.function(traced, autograph=False).get_concrete_function()
            found = tuple(inner.trace.tensors), tuple(inner.trace.operations)
            self._steps[key] = Steps(*found, tuple(range(len(tensors))), tuple(made))
        return self._steps[key]

    def _new(self, local: tf.Tensor, has_gradient: bool, path: str = "", is_weight: bool = False) -> RecordedTensor:
        number = self._add(local, has_gradient, path, is_weight)
        found = RecordedTensor(local, self, number)
        self._numbers[id(local)] = local, number
        return found

    def _add(self, tensor: Any, has_gradient: bool, path: str = "", is_weight: bool = False) -> int:
        known, dtype = tf.TensorShape(tensor.shape), tf.as_dtype(tensor.dtype)
        shape = () if known.rank is None else tuple(1 if size is None else size for size in known)
        self.trace.tensors.append(Tensor(shape, dtype.name, dtype.size, has_gradient, path, is_weight))
        return len(self.trace.tensors) - 1

    def _number(self, value: Any) -> int:
        """The number of a tensor, which is a new one if no operation made it; -1 of what is none."""
        if isinstance(value, RecordedTensor):
            return value.number
        if isinstance(value, ShardedTensor):
            value = value.local
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return -1
        if id(value) not in self._numbers:
            self._numbers[id(value)] = value, self._add(value, self._comes_from_whole(value))
        return self._numbers[id(value)][1]

    def _comes_from_whole(self, value: Any) -> bool:
        """True if something without a rule made this of a tensor that a gradient is wanted of."""
        if not tf.is_symbolic_tensor(value) or not value.dtype.is_floating:
            return False
        seen, waiting = set(), [value]
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in self._whole and self.trace.tensors[self._numbers[id(tensor)][1]].has_gradient:
                return True
            if tensor.op.name not in seen:
                seen.add(tensor.op.name)
                waiting.extend(tensor.op.inputs)
        return False

    def _tensors(self, values: Sequence[Any]) -> Iterator[Any]:
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from self._tensors(value)
            elif isinstance(value, (tf.Tensor, ShardedTensor)):
                yield value

    def _note(self, name, operands, results, named=None, steps=None, begin=None) -> None:
        layer, _ = call_site.current()
        end = num_nodes()
        self.spans.append((end if begin is None else begin, end))
        self.trace.operations.append(Operation(name, layer, operands, results, named, steps))


def num_nodes() -> int:
    """Of the graph that the trace is made in."""
    return tf.compat.v1.get_default_graph().version
