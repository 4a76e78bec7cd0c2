"""Reads from the graph that a trace was made in what its backward pass keeps, and what no rule is for costs."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import tensorflow as tf

from keras_par.plan.trace import TRACED_ROWS, Aside, Operation, Trace
from keras_par.sharding.recording import Recorder

# Their result is in the memory of their first operand.
SAME_MEMORY = ("ExpandDims", "Identity", "PreventGradient", "Reshape", "Squeeze", "StopGradient")
LOOPS = ("While", "StatelessWhile")
PUSH = "TensorListPushBack"  # what a loop keeps of each round


def note_backward(trace: Trace, recorder: Recorder, loss: tf.Tensor) -> None:
    """Adds to a trace what its backward pass reads of each operation, and what is computed without a rule.

    Args:
        trace: of a forward pass in the default graph.
        recorder: that made it.
        loss: what the gradients are of.
    """
    graph = tf.compat.v1.get_default_graph()
    nodes = graph.get_operations()
    number_of = {tensor.name: number for tensor, number in recorder.tensors}
    note_memory(trace, recorder, number_of)
    owner: dict[str, int] = {}
    for place, (begin, end) in enumerate(recorder.spans):
        owner.update((node.name, place) for node in nodes[begin:end])
    known = ((tensor, trace.tensors[number]) for tensor, number in recorder.tensors)
    variables = [tensor for tensor, said in known if said.path and said.has_gradient]
    gradients = [each for each in tf.gradients(loss, variables) if each is not None]
    backward = list(needed_for(gradients, {node.name for node in nodes}))
    note_kept(trace, backward, number_of, owner)
    has_backward = {node._original_op.name for node in backward if node._original_op is not None}
    without_rule = {node.name for node in needed_for([loss], set())} - owner.keys()
    trace.asides += asides(trace, nodes, recorder.spans, without_rule, has_backward)


def note_memory(trace: Trace, recorder: Recorder, number_of: dict[str, int]) -> None:
    """Writes down which tensors are in the memory of others."""
    for tensor, number in recorder.tensors:
        chain = [number_of[each.name] for each in memory_of(tensor) if each.name in number_of]
        if chain[-1] != number:
            trace.tensors[number] = replace(trace.tensors[number], within=chain[-1])


def memory_of(tensor: tf.Tensor) -> Iterator[tf.Tensor]:
    """A tensor, and those before it in whose memory it is."""
    yield tensor
    while tensor.op.type in SAME_MEMORY:
        tensor = tensor.op.inputs[0]
        yield tensor


def needed_for(tensors: Sequence[tf.Tensor], known: set[str]) -> Iterator[tf.Operation]:
    """The nodes that tensors are made by, but for those that are known."""
    seen, waiting = set(known), [tensor.op for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node.name not in seen:
            seen.add(node.name)
            yield node
            waiting.extend(tensor.op for tensor in node.inputs)


def note_kept(trace: Trace, backward: Sequence[tf.Operation], number_of: dict[str, int], owner: dict[str, int]) -> None:
    """Adds to each operation what the nodes of the backward pass read of it."""
    keeps: defaultdict[int, dict[int, None]] = defaultdict(dict)
    inner: defaultdict[int, dict[str, tf.Tensor]] = defaultdict(dict)
    for node in backward:
        original = node._original_op
        reader = None if original is None else owner.get(original.name)
        for tensor in node.inputs if reader is not None else ():
            chain = list(memory_of(tensor))
            number = next((number_of[each.name] for each in chain if each.name in number_of), None)
            made = owner.get(chain[-1].op.name)
            places = [place for place in (reader, made) if place is not None]
            near = next((place for place in places if number in around(trace.operations[place])), None)
            if near is not None and number is not None:
                keeps[near][number] = None
            elif made is not None and is_large(chain[-1]):
                inner[made][chain[-1].name] = chain[-1]
    for place, operation in enumerate(trace.operations):
        trace.operations[place] = replace(
            operation, keeps=tuple(keeps[place]), inner=inner_of(operation, trace, list(inner[place].values()))
        )


def around(operation: Operation) -> list[int]:
    """The numbers of an operation's results and operands."""
    return [number for number in (*operation.results, *operation.operands) if number >= 0]


def is_large(tensor: tf.Tensor) -> bool:
    """True if a tensor grows with the rows."""
    return tensor.shape.is_fully_defined() and any(size and size % TRACED_ROWS == 0 for size in tensor.shape)


def inner_of(operation: Operation, trace: Trace, tensors: Sequence[tf.Tensor]) -> tuple[tuple[int, float], ...]:
    """Bytes of tensors within an operation for each element of the operand or result that is most like them."""
    found: defaultdict[int, float] = defaultdict(float)
    near = around(operation)
    for tensor in tensors:
        size = math.prod(tensor.shape)
        sizes = {number: math.prod(trace.tensors[number].shape) for number in near}
        like = next((number for number in near if sizes[number] == size), near[0])
        found[like] += size * tensor.dtype.size / max(sizes[like], 1)
    return tuple(found.items())


def asides(
    trace: Trace,
    nodes: Sequence[tf.Operation],
    spans: Sequence[tuple[int, int]],
    without_rule: set[str],
    has_backward: set[str],
) -> Iterator[Aside]:
    """What nodes without a rule cost; each belongs to the layer of the operation before it."""
    layers = [operation.layer for operation in trace.operations] or [""]
    place = 0
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for number, node in enumerate(nodes):
        while place + 1 < len(spans) and spans[place + 1][0] <= number:
            place += 1
        if node.name in without_rule:
            for index, value in enumerate(cost_of(node, node.name in has_backward)):
                sums[layers[place]][index] += value
    for layer, (flops, num_bytes, num_kernels, kept) in sums.items():
        if num_kernels:
            yield Aside(layer, flops / TRACED_ROWS, num_bytes / TRACED_ROWS, int(num_kernels), kept / TRACED_ROWS)


def cost_of(node: tf.Operation, has_backward: bool) -> tuple[float, float, int, float]:
    """Floating-point operations of products, bytes, kernels and what is kept, where the rows are those of the trace."""
    if node.type in LOOPS:
        return loop_cost(node, has_backward)
    tensors = [tensor for tensor in (*node.inputs, *node.outputs) if is_large(tensor)]
    if not tensors or node.type in SAME_MEMORY:
        return 0, 0, 0, 0
    passes = 1 + 2 * has_backward
    num_bytes = sum(map(bytes_of, tensors))
    kept = sum(bytes_of(tensor) for tensor in node.outputs if is_large(tensor)) if has_backward else 0
    return flops_of(node) * passes, num_bytes * passes, passes, kept


def loop_cost(node: tf.Operation, has_backward: bool) -> tuple[float, float, int, float]:
    """Of all rounds of a loop; one whose number is not known is taken to have one."""
    rounds = rounds_of(node)
    body = node.graph._get_function(node.get_attr("body").name).graph.get_operations()
    pushed = [each for each in body if each.type == PUSH]
    costs = [cost_of(each, False) for each in body if each.type != PUSH]
    passes = 1 + 2 * has_backward
    flops, num_bytes, kernels = (rounds * passes * sum(cost[index] for cost in costs) for index in range(3))
    kept = rounds * sum(bytes_of(each.inputs[1]) for each in pushed if is_large(each.inputs[1]))
    return flops, num_bytes, int(kernels), kept


def rounds_of(loop: tf.Operation) -> int:
    """The most that a loop can make, 1 if that depends on data."""
    with tf.compat.v1.Session(graph=loop.graph) as session:
        try:
            return max(int(session.run(loop.inputs[1])), 1)
        except tf.errors.InvalidArgumentError:
            return 1


def bytes_of(tensor: tf.Tensor) -> int:
    """Of a tensor whose shape is known."""
    return math.prod(tensor.shape) * tensor.dtype.size


def flops_of(node: tf.Operation) -> float:
    """Of a product, 0 of others."""
    if node.type not in ("MatMul", "BatchMatMulV2", "Conv2D", "Conv3D") or not is_large(node.outputs[0]):
        return 0
    size = math.prod(node.outputs[0].shape)
    if node.type.startswith("Conv"):
        return 2 * size * math.prod(node.inputs[1].shape[:-1])
    is_transposed = node.get_attr("transpose_a" if node.type == "MatMul" else "adj_x")
    return 2 * size * node.inputs[0].shape[-2 if is_transposed else -1]
