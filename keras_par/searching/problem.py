"""The search as a problem of its own: nodes with states, and tables of what states cost together."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_par.plan.case import Sent
from keras_par.plan.cost import Setting, held_bytes, read, sparse_rows, update_seconds
from keras_par.plan.layout import Axes
from keras_par.plan.trace import Operation, Trace
from keras_par.searching.classes import tensor_classes

Cost = tuple[float, float]  # seconds of a step, and bytes of a rank's memory
IS_DONE = (False, True)  # the states of a node that says if a move is made which several operations need


@dataclass
class Table:
    """What states of some nodes cost together; those that are missing cannot be.

    Args:
        nodes: which, each once.
        costs: by the numbers of their states.
    """

    nodes: tuple[int, ...]
    costs: dict[tuple[int, ...], Cost]


@dataclass
class Problem:
    """Nodes and tables.

    Args:
        states: of each node.
        tables: their costs add up.
        seconds: that any choice costs.
        num_bytes: that any choice takes.
    """

    states: list[list] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    seconds: float = 0.0
    num_bytes: float = 0.0

    def cost(self, choice: Sequence[int]) -> Cost | None:
        """Of one state for each node; None if they cannot be together."""
        seconds, num_bytes = self.seconds, self.num_bytes
        for table in self.tables:
            found = table.costs.get(tuple(choice[node] for node in table.nodes))
            if found is None:
                return None
            seconds, num_bytes = seconds + found[0], num_bytes + found[1]
        return seconds, num_bytes


def options(shape: Sequence[int], setting: Setting, fixed: Axes | None = None) -> list[Axes]:
    """How a variable may lie: whole, a dim divided by each axis, and also stored in parts along the data axis.

    Args:
        shape: of the variable.
        setting: where.
        fixed: the one way if it is said already.
    """
    if fixed is not None:
        return [tuple(fixed) or (None,) * len(shape)]
    others = [axis for axis, size in setting.mesh.items() if axis != setting.data_axis and size > 1]
    found: list[Axes] = [(None,) * len(shape)]
    for axis in others:
        found += [
            put(layout, dim, axis)
            for layout in list(found)
            for dim, size in enumerate(shape)
            if layout[dim] is None and size % setting.mesh[axis] == 0
        ]
    num_parts = setting.mesh[setting.data_axis]
    if num_parts > 1:
        for layout in list(found):
            free = [d for d, size in enumerate(shape) if layout[d] is None and size % num_parts == 0]
            if free:
                found.append(put(layout, max(free, key=lambda d: shape[d]), setting.data_axis))
    return found


def put(layout: Axes, dim: int, axis: str) -> Axes:
    """A layout with one more dim divided."""
    return (*layout[:dim], axis, *layout[dim + 1 :])


@dataclass(frozen=True)
class Way:
    """An operation with operands in some states: the results' states, the moves that are made once, and the cost."""

    results: tuple[int, ...]
    moves: tuple[Sent, ...]
    cost: Cost


class Maker:
    """Makes the problem of a trace in a setting.

    Args:
        trace: of the model.
        setting: where it is to be trained.
        fixed: layouts that are said already, by path.
    """

    def __init__(self, trace: Trace, setting: Setting, fixed: Mapping[str, Axes] | None = None):
        self.trace, self.setting, self.fixed = trace, setting, fixed or {}
        self.classes = tensor_classes(trace, self.fixed)
        self.problem = Problem()
        self.node_of: dict[int, int] = {}  # by class
        self.tables: dict[tuple[int, ...], dict[tuple[int, ...], Cost]] = {}
        self.ways: dict[tuple[int, tuple[int, ...]], Way] = {}  # by operation and states
        self.readers = Counter(n for operation in trace.operations for n in set(operation.operands))
        self.members = Counter(self.classes)
        self.distinct = self._distinct()
        self.moves: dict[tuple[int, str, str], int] = {}  # nodes by class, kind and axis

    def make(self) -> Problem:
        """The whole problem."""
        self._note_variables()
        known = -1
        while known != (known := sum(map(len, self.problem.states))):  # layers that repeat make states for each other
            for place, (operation, _) in enumerate(self.distinct):
                self._find_ways(place, operation)
        for place, (operation, count) in enumerate(self.distinct):
            self._note(place, operation, count)
        self.problem.tables = [Table(nodes, costs) for nodes, costs in self.tables.items()]
        self.problem.seconds += self.setting.machine.step_seconds
        self.problem.num_bytes += self.trace.other_bytes
        return self.problem

    def complete(self, variables: Mapping[int, int]) -> list[int] | None:
        """The states of all nodes that follow from those of the variables'; None if layers that repeat would differ.

        Args:
            variables: the state of each node that `variable_nodes` lists.
        """
        choice = dict(variables)
        for place, (operation, _) in enumerate(self.distinct):
            kinds = self._kinds(operation)
            states = tuple(choice.get(self.node_of[kind], -1) for kind in kinds)
            way = self.ways.get((place, states))
            if way is None:
                return None
            for number, state in zip(operation.results, way.results, strict=True):
                if choice.setdefault(self.node_of[self.classes[number]], state) != state:
                    return None
            for sent in way.moves:
                choice[self._move_node(sent, dict(zip(kinds, states, strict=True)))] = 1
        return [choice.get(node, 0) for node in range(len(self.problem.states))]

    @property
    def variable_nodes(self) -> list[int]:
        """Of the classes of variables, those whose operations have most to do first."""
        weight: Counter[int] = Counter()
        for operation, count in self.distinct:
            work = read(operation, self.trace.tensors, {}, self.setting).work
            for number in operation.operands:
                if number >= 0 and self.trace.tensors[number].path:
                    weight[self.node_of[self.classes[number]]] += count * int(work.flops + work.num_bytes)
        nodes = {self.node_of[self.classes[n]] for n, tensor in enumerate(self.trace.tensors) if tensor.path}
        return sorted(nodes, key=lambda node: (-weight[node], node))

    def layouts(self, choice: Sequence[int]) -> dict[str, Axes]:
        """How the variables lie by a choice; those that are whole are left out."""
        found = {}
        for number, tensor in enumerate(self.trace.tensors):
            if tensor.path:
                node = self.node_of[self.classes[number]]
                axes = self.problem.states[node][choice[node]]
                if any(axes):
                    found[tensor.path] = axes
        return found

    def _note_variables(self) -> None:
        """A node for each class of variables, with what these cost by themselves."""
        number_of = {tensor.path: number for number, tensor in enumerate(self.trace.tensors) if tensor.path}
        sparse = sparse_rows(self.trace, self.setting.num_rows)
        for parameter in self.trace.parameters:
            number = number_of.get(parameter.path)
            if number is None:
                whole = (None,) * len(parameter.shape)
                self.problem.num_bytes += sum(held_bytes(parameter, whole, self.setting).values())
                continue
            kind = self.classes[number]
            if kind not in self.node_of:
                self.node_of[kind] = self._new_node(
                    options(parameter.shape, self.setting, self.fixed.get(parameter.path))
                )
            node = self.node_of[kind]
            for place, axes in enumerate(self.problem.states[node]):
                seconds = update_seconds(parameter, axes, self.setting, sparse.get(parameter.path))
                held = sum(held_bytes(parameter, axes, self.setting).values())
                self._add((node,), (place,), (seconds, held))

    def _new_node(self, states: list) -> int:
        self.problem.states.append(states)
        return len(self.problem.states) - 1

    def _add(self, nodes: tuple[int, ...], place: tuple[int, ...], cost: Cost) -> None:
        table = self.tables.setdefault(nodes, {})
        before = table.get(place, (0.0, 0.0))
        table[place] = before[0] + cost[0], before[1] + cost[1]

    def _distinct(self) -> list[tuple[Operation, int]]:
        """One operation of each class, with how many there are of it, in the order of the trace."""
        counts: dict[tuple, list] = {}
        for operation in self.trace.operations:
            operands = tuple(self.classes[n] if n >= 0 else -1 for n in operation.operands)
            key = operation.name, operands, tuple(self.classes[n] for n in operation.results), operation.named
            counts.setdefault(key, [operation, 0])[1] += 1
        return [(operation, count) for operation, count in counts.values()]

    def _kinds(self, operation: Operation) -> list[int]:
        """The classes of its operands that have nodes."""
        found = dict.fromkeys(self.classes[n] for n in operation.operands if n >= 0)
        return [kind for kind in found if kind in self.node_of]

    def _find_ways(self, place: int, operation: Operation) -> None:
        """What becomes of an operation, for each way in which its operands may lie that was not looked at."""
        kinds = self._kinds(operation)
        for states in itertools.product(*(range(len(self.problem.states[self.node_of[kind]])) for kind in kinds)):
            if (place, states) not in self.ways:
                self.ways[place, states] = self._way(operation, dict(zip(kinds, states, strict=True)))

    def _way(self, operation: Operation, state_of: dict[int, int]) -> Way:
        layouts = {
            n: self.problem.states[self.node_of[self.classes[n]]][state_of[self.classes[n]]]
            for n in operation.operands
            if n >= 0 and self.classes[n] in state_of
        }
        made = read(operation, self.trace.tensors, layouts, self.setting)
        work = made.work
        seconds = self.setting.machine.compute_seconds(work.flops, work.num_bytes, work.num_kernels)
        seconds += sum(self.setting.sent_seconds(sent) for sent in made.sent if not self._is_shared(sent))
        kept = sum(
            size / self.readers[number] for number, size in work.kept.items() if not self.trace.tensors[number].path
        )
        results = tuple(
            self._state(self.classes[number], axes)
            for number, axes in zip(operation.results, made.outcome.results, strict=True)
        )
        return Way(results, tuple(filter(self._is_shared, made.sent)), (seconds, kept))

    def _is_shared(self, sent: Sent) -> bool:
        """True if other operations need the same move."""
        return sent.once is not None and self.readers[sent.once] > 1

    def _state(self, kind: int, axes: Axes) -> int:
        """The number of a state of a class of tensors, which is a new one if need be."""
        if kind not in self.node_of:
            self.node_of[kind] = self._new_node([])
        states = self.problem.states[self.node_of[kind]]
        if axes not in states:
            states.append(axes)
        return states.index(axes)

    def _note(self, place: int, operation: Operation, count: int) -> None:
        """The table of an operation, with a node for each move that others may need, too."""
        kinds = self._kinds(operation)
        nodes = [self.node_of[self.classes[n]] for n in operation.results]
        nodes = [self.node_of[kind] for kind in kinds] + nodes
        choices = list(itertools.product(*(range(len(self.problem.states[self.node_of[kind]])) for kind in kinds)))
        moves: dict[int, None] = {}
        for states in choices:
            for sent in self.ways[place, states].moves:
                moves[self._move_node(sent, dict(zip(kinds, states, strict=True)))] = None
        scope = tuple(dict.fromkeys((*nodes, *moves)))
        for states in choices:
            way = self.ways[place, states]
            chosen: dict[int, int] = {}
            pairs = zip(nodes, (*states, *way.results), strict=True)
            if any(chosen.setdefault(node, state) != state for node, state in pairs):
                continue
            needed = {self._move_node(sent, dict(zip(kinds, states, strict=True))) for sent in way.moves}
            for done in itertools.product(*((True,) if move in needed else IS_DONE for move in moves)):
                chosen.update(zip(moves, map(int, done), strict=True))
                seconds, kept = way.cost
                self._add(scope, tuple(chosen[node] for node in scope), (count * seconds, count * kept))

    def _move_node(self, sent: Sent, state_of: Mapping[int, int]) -> int:
        """The node that says if a move is made, with what that costs, given the state of the tensor."""
        assert sent.once is not None
        kind = self.classes[sent.once]
        key = kind, sent.kind, sent.axis
        if key not in self.moves:
            self.moves[key] = self._new_node(list(IS_DONE))
            node = self.node_of[kind]
            for state in range(len(self.problem.states[node])):
                self._add((node, self.moves[key]), (state, 0), (0.0, 0.0))
                self._add((node, self.moves[key]), (state, 1), (0.0, 0.0))
        pair = self.node_of[kind], self.moves[key]
        seconds = self.members[kind] * self.setting.sent_seconds(sent)
        self.tables[pair][state_of[kind], 1] = seconds, 0.0
        return self.moves[key]
