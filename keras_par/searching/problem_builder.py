"""Makes the problem that a search solves, of the operations of a trace."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from keras_par.plan.case import Sent
from keras_par.plan.cost import aside_seconds
from keras_par.plan.layout import Axes
from keras_par.plan.reading import blocks, held, held_again, read, root
from keras_par.plan.trace import Operation, Parameter, Trace
from keras_par.plan.training_setup import Setting
from keras_par.plan.variable_cost import BUCKET_BYTES, Upkeep, Use, uses
from keras_par.searching.classes import tensor_classes, without_numbers
from keras_par.searching.problem import Cost, Problem, Table

# The states of nodes that say if a move or a second forward pass is made. Those that stand first always can be.
IS_MOVED, IS_AGAIN = [True, False], [False, True]

Counted = tuple[Literal["activations", "gradients"], ...]
ALL: Counted = ("activations", "gradients")
# A rank holds all activations before the backward pass, all gradients after it, and within it some of both. So the
# first two sums are less than the most that it holds, and the third is more.
SUMS: tuple[Counted, ...] = (("activations",), ("gradients",), ALL)


class Parts(NamedTuple):
    """What something costs: seconds, and bytes of variables and slots, of activations and of gradients."""

    seconds: float = 0.0
    lasting: float = 0.0
    activations: float = 0.0
    gradients: float = 0.0

    def plus(self, other: "Parts") -> "Parts":
        """Of both."""
        return Parts(*(a + b for a, b in zip(self, other, strict=True)))

    def counting(self, counted: Counted) -> Cost:
        """Seconds, and the bytes that count."""
        activations, gradients = (getattr(self, name) * (name in counted) for name in ALL)
        return self.seconds, self.lasting + activations + gradients


@dataclass(frozen=True)
class Way:
    """An operation with operands in some states: the results' states, the moves that are made once, and the cost.

    Args:
        results: numbers of states.
        moves: that other operations need, too.
        costs: seconds, and bytes that it keeps; where its layer is computed once, and, if that may be, once more.
    """

    results: tuple[int, ...]
    moves: tuple[Sent, ...]
    costs: tuple[Cost, ...]


Ways = dict[tuple[int, ...], Way]  # of an operation, by the states of its operands
Choice = Sequence[int] | Mapping[int, int]  # the state of each node


class Maker:
    """Makes the problem of a trace in a setting.

    Args:
        trace: of the model.
        setting: where it is to be trained.
        fixed: layouts that are said already, by path.
        recomputes: True if layers may be computed once more in the backward pass.
        classes: of the tensors, as `tensor_classes` finds them unless given.
    """

    def __init__(
        self,
        trace: Trace,
        setting: Setting,
        fixed: Mapping[str, Axes] | None = None,
        recomputes: bool = False,
        classes: Sequence[int] | None = None,
    ):
        self.trace, self.setting, self.fixed, self.recomputes = trace, setting, fixed or {}, recomputes
        self.classes = tensor_classes(trace, self.fixed) if classes is None else classes
        self._problems: dict[Counted, Problem] = {}
        self.states: list[list] = []  # of each node
        self.costs = Parts()  # of any choice
        self.node_of: dict[int, int] = {}  # by class
        self.tables: dict[tuple[int, ...], dict[tuple[int, ...], Parts]] = {}
        self.readers = Counter(n for operation in trace.operations for n in set(operation.operands))
        self.keepers = Counter(root(trace.tensors, n) for operation in trace.operations for n in operation.keeps)
        self.members = Counter(self.classes)
        self.distinct = self._distinct()
        self.moves: dict[tuple[int, str, str], int] = {}  # nodes by class, kind and axis
        self.made_in = blocks(trace)
        self.again: dict[str, int] = {}  # nodes of layers that may be computed again, by names without numbers
        pairs = ((operation.block, n) for operation in trace.operations for n in set(operation.operands) if n >= 0)
        self.takers = Counter((block, root(trace.tensors, n)) for block, n in pairs)
        self._note_variables()
        ways: list[Ways] = [{} for _ in self.distinct]
        known = -1
        while known != (known := sum(map(len, self.states))):  # layers that repeat make states for each other
            for found, (operation, _) in zip(ways, self.distinct, strict=True):
                self._find_ways(found, operation)
        for found, (operation, count) in zip(ways, self.distinct, strict=True):
            self._note(found, operation, count)
        self.costs = self.costs.plus(Parts(setting.machine.step_seconds, trace.other_bytes))
        for aside in trace.asides:
            kept = aside.kept_bytes * setting.num_rows
            self.costs = self.costs.plus(Parts(aside_seconds(aside, setting), activations=kept))

    def problem(self, counted: Counted = ALL) -> Problem:
        """The whole problem, in which these bytes count beside those of variables and slots."""
        if counted not in self._problems:
            tables = [
                Table(nodes, {place: cost.counting(counted) for place, cost in costs.items()})
                for nodes, costs in self.tables.items()
            ]
            self._problems[counted] = Problem(self.states, tables, *self.costs.counting(counted))
        return self._problems[counted]

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

    def layouts(self, choice: Choice) -> dict[str, Axes]:
        """How the variables lie by a choice; those that are whole are left out."""
        found = {}
        for number, tensor in enumerate(self.trace.tensors):
            if tensor.path:
                node = self.node_of[self.classes[number]]
                axes = self.states[node][choice[node]]
                if any(axes):
                    found[tensor.path] = axes
        return found

    def recomputed(self, choice: Choice) -> tuple[str, ...]:
        """The names of the layers that are computed once more by a choice."""
        names = dict.fromkeys(operation.block for operation in self.trace.operations if operation.block)
        return tuple(name for name in names if self.again and choice[self.again[without_numbers(name)]])

    def _note_variables(self) -> None:
        """A node for each class of variables, with what these cost by themselves."""
        number_of = {tensor.path: number for number, tensor in enumerate(self.trace.tensors) if tensor.path}
        used = uses(self.trace, self.setting.num_rows)
        trained = [each for each in self.trace.parameters if each.is_trainable]
        gradient_bytes = sum(math.prod(each.shape) * each.item_bytes for each in trained)
        # The part of all sums that is under way at a time. It is too little where gradients are large and divided.
        bucket = min(1.0, BUCKET_BYTES / max(gradient_bytes, 1))
        costs: dict[tuple[Parameter, Axes, Use], Parts] = {}  # of variables that are alike
        for parameter in self.trace.parameters:
            number = number_of.get(parameter.path)
            if number is None:
                whole = Upkeep(parameter, (None,) * len(parameter.shape), self.setting, Use())
                self.costs = self.costs.plus(held_cost(whole, 0))
                continue
            kind = self.classes[number]
            if kind not in self.node_of:
                self.node_of[kind] = self._new_node(
                    options(parameter.shape, self.setting, self.fixed.get(parameter.path))
                )
            node, use = self.node_of[kind], used[parameter.path]
            for place, axes in enumerate(self.states[node]):
                key = replace(parameter, path=""), axes, use
                if key not in costs:
                    variable = Upkeep(parameter, axes, self.setting, use)
                    costs[key] = held_cost(variable, bucket)._replace(seconds=variable.seconds)
                self._add((node,), (place,), costs[key])

    def _new_node(self, states: list) -> int:
        self.states.append(list(states))
        return len(self.states) - 1

    def _add(self, nodes: tuple[int, ...], place: tuple[int, ...], cost: Parts) -> None:
        table = self.tables.setdefault(nodes, {})
        table[place] = table.get(place, Parts()).plus(cost)

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

    def _product(self, kinds: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """All states that tensors of these classes may have together."""
        return itertools.product(*(range(len(self.states[self.node_of[kind]])) for kind in kinds))

    def _find_ways(self, found: Ways, operation: Operation) -> None:
        """Adds what becomes of an operation for each way in which its operands may lie that was not looked at."""
        kinds = self._kinds(operation)
        for states in self._product(kinds):
            if states not in found:
                found[states] = self._way(operation, dict(zip(kinds, states, strict=True)))

    def _way(self, operation: Operation, state_of: dict[int, int]) -> Way:
        layouts = {
            n: self.states[self.node_of[self.classes[n]]][state_of[self.classes[n]]]
            for n in operation.operands
            if n >= 0 and self.classes[n] in state_of
        }
        made = read(operation, self.trace.tensors, layouts, self.setting)
        work = made.work
        seconds = self.setting.machine.compute_seconds(work.flops, work.num_bytes, work.num_kernels)
        seconds += sum(self.setting.sent_seconds(sent) for sent in made.sent if not self._is_shared(sent))
        holds = held(made)
        kept = holds.inner_bytes + sum(size / self.keepers[number] for number, size in holds.kept.items())
        costs = [(seconds, kept)]
        if self._may_be_again(operation):
            holds = held_again(operation, made, self.trace.tensors, self.made_in, layouts, self.setting)
            kept = sum(size / self.takers[operation.block, number] for number, size in holds.kept.items())
            costs.append((seconds + holds.seconds, kept))
        results = tuple(
            self._state(self.classes[number], axes)
            for number, axes in zip(operation.results, made.outcome.results, strict=True)
        )
        return Way(results, tuple(filter(self._is_shared, made.sent)), tuple(costs))

    def _may_be_again(self, operation: Operation) -> bool:
        return self.recomputes and bool(operation.block)

    def _is_shared(self, sent: Sent) -> bool:
        """True if other operations need the same move."""
        return sent.once is not None and self.readers[sent.once] > 1

    def _state(self, kind: int, axes: Axes) -> int:
        """The number of a state of a class of tensors, which is a new one if need be."""
        if kind not in self.node_of:
            self.node_of[kind] = self._new_node([])
        states = self.states[self.node_of[kind]]
        if axes not in states:
            states.append(axes)
        return states.index(axes)

    def _note(self, ways: Ways, operation: Operation, count: int) -> None:
        """The table of an operation, with a node for each move that others may need, too."""
        kinds = self._kinds(operation)
        nodes = [self.node_of[kind] for kind in (*kinds, *(self.classes[n] for n in operation.results))]
        needed = {
            states: [self._move_node(sent, dict(zip(kinds, states, strict=True))) for sent in ways[states].moves]
            for states in self._product(kinds)
        }
        moves = dict.fromkeys(itertools.chain.from_iterable(needed.values()))
        again = []
        if self._may_be_again(operation):  # as those of layers that are like it
            key = without_numbers(operation.block)
            if key not in self.again:
                self.again[key] = self._new_node(IS_AGAIN)
            again = [self.again[key]]
        scope = tuple(dict.fromkeys((*nodes, *moves, *again)))
        for states, its_moves in needed.items():
            way, chosen = ways[states], dict[int, int]()
            if any(chosen.setdefault(*pair) != pair[1] for pair in zip(nodes, (*states, *way.results), strict=True)):
                continue
            for moved in itertools.product(*((0,) if move in its_moves else (0, 1) for move in moves)):
                chosen.update(zip(moves, moved, strict=True))
                for number, (seconds, kept) in enumerate(way.costs):
                    chosen.update(dict.fromkeys(again, number))
                    cost = Parts(count * seconds, activations=count * kept)
                    self._add(scope, tuple(chosen[node] for node in scope), cost)

    def _move_node(self, sent: Sent, state_of: Mapping[int, int]) -> int:
        """The node that says if a move is made, with what that costs, given the state of the tensor."""
        assert sent.once is not None
        kind = self.classes[sent.once]
        kinds = [kind] if kind in self.node_of else []  # what the model is given is whole, and has no node
        key = kind, sent.kind, sent.axis
        if key not in self.moves:
            self.moves[key] = self._new_node(IS_MOVED)
        # Its node stands first, unlike in tables of operations, of which one may be about the same nodes.
        scope = (self.moves[key], *(self.node_of[kind] for kind in kinds))
        if scope not in self.tables:
            self.tables[scope] = {(moved, *states): Parts() for moved in (0, 1) for states in self._product(kinds)}
        seconds = self.members[kind] * self.setting.sent_seconds(sent)
        self.tables[scope][0, *(state_of[kind] for kind in kinds)] = Parts(seconds)
        return self.moves[key]


def options(shape: Sequence[int], setting: Setting, fixed: Axes | None = None) -> list[Axes]:
    """How a variable may lie: whole, a dim divided by each axis, and also stored in parts along the data axis.

    The last is left out where a stage of ZeRO divides along the data axis.

    Args:
        shape: of the variable.
        setting: where.
        fixed: the one way if it is said already.
    """
    if fixed is not None:
        return [tuple(fixed) or (None,) * len(shape)]

    def divided(layout: Axes, axis: str) -> list[Axes]:
        fitting = [d for d, size in enumerate(shape) if layout[d] is None and size % setting.mesh[axis] == 0]
        return [(*layout[:dim], axis, *layout[dim + 1 :]) for dim in fitting]

    found: list[Axes] = [(None,) * len(shape)]
    for axis, size in setting.mesh.items():
        if axis != setting.data_axis and size > 1:
            found += [each for layout in list(found) for each in divided(layout, axis)]
    if setting.mesh[setting.data_axis] > 1 and not setting.zero:  # the first dim is joined as it comes
        found += [each for layout in list(found) for each in divided(layout, setting.data_axis)[:1]]
    return found


def held_cost(variable: Upkeep, bucket: float) -> Parts:
    """Bytes of a variable, with a part of what its gradient gives to messages that it shares."""
    held = variable.held
    under_way = held["sums"] + bucket * min(variable.shared_bytes, variable.whole_bytes)
    return Parts(0.0, held["variables"] + held["slots"], 0.0, held["gradients"] + under_way)
