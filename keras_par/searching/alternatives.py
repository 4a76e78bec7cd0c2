"""Finds what other layouts of a class of variables would cost: answers to "why not otherwise?"."""

import functools
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from keras_par.plan.cost import Prediction, predict
from keras_par.plan.layout import Axes
from keras_par.plan.options import Search
from keras_par.plan.setting import Setting
from keras_par.plan.trace import Shape, Trace
from keras_par.searching import dynamic
from keras_par.searching.find import Found
from keras_par.searching.maker import SUMS, Maker
from keras_par.searching.paths import without_numbers
from keras_par.searching.patterns import pattern_of
from keras_par.searching.problem import Problem, Table
from keras_par.searching.within import within

CLASSES = 12  # that are asked about, those with most to do first
SECONDS = 2.0  # in which others are laid anew; from then on they stay
BEST: tuple[Search, ...] = ("dynamic", "exact")  # searches that find plans beside which `dynamic` finds no faster one


@dataclass(frozen=True)
class Alternative:
    """The next best layout of a class of variables, on the mesh that was found.

    Args:
        pattern: of their paths.
        shape: of each.
        chosen: how they lie in the plan that was found.
        axes: how they would.
        prediction: of a step, then.
        is_free: True if all others were laid anew, False if they stay as they are.
    """

    pattern: str
    shape: Shape
    chosen: Axes
    axes: Axes
    prediction: Prediction
    is_free: bool


def alternatives(trace: Trace, setting: Setting, fixed: Mapping[str, Axes], found: Found) -> list[Alternative]:
    """One for each class of variables that may lie in several ways, those with most to do first.

    It is the fastest that fits into the memory; where none does, the fastest of all.

    Args:
        trace: of the model.
        setting: with the mesh that was found.
        fixed: layouts that are said already, by path.
        found: by a search.
    """
    return Asker(Maker(trace, setting, fixed, bool(found.best.recomputed), found.best.classes), found).ask()


class Asker:
    """Asks about the classes of one plan.

    Args:
        maker: of the problem that the plan solves.
        found: by a search.
    """

    def __init__(self, maker: Maker, found: Found):
        self.maker, self.found, self.problem = maker, found, maker.make()
        self.problems = [maker.counting(counted).problem for counted in SUMS]
        self.paths: dict[int, list[str]] = {}  # of the variables of each node
        for kind, tensor in zip(maker.classes, maker.trace.tensors, strict=True):
            if tensor.path:
                self.paths.setdefault(maker.node_of[kind], []).append(tensor.path)
        self.state = {node: self._states(node).index(self._chosen(node)) for node in self.paths}
        again = map(without_numbers, found.best.recomputed)
        self.others = dict.fromkeys((maker.again[name] for name in again), 1)

    def ask(self) -> list[Alternative]:
        """All alternatives."""
        until = time.monotonic() + SECONDS
        is_small = len(self.problem.states) < dynamic.MANY_NODES and self.found.mode in BEST
        is_small = is_small and not dynamic.is_entangled(self.problem)
        nodes = [node for node in self.maker.variable_nodes if self._other_states(node)]
        answers = []
        for node in nodes[:CLASSES]:
            is_free = is_small and time.monotonic() < until
            found = self._with_others_free(node) if is_free else self._with_others_kept(node)
            if found is not None:
                answers.append(self._alternative(node, *found, is_free))
        return answers

    def _states(self, node: int) -> list[Axes]:
        return self.problem.states[node]

    def _other_states(self, node: int) -> list[int]:
        return [state for state in range(len(self._states(node))) if state != self.state[node]]

    def _chosen(self, node: int) -> Axes:
        """The layout in the plan that was found."""
        whole = (None,) * len(self._states(node)[0])
        return self.found.best.layouts.get(self.paths[node][0], whole)

    def _with_others_free(self, node: int) -> tuple[list[int], Prediction] | None:
        """The fastest choice in which a node has another state, and its step."""
        fitting = filter(None, (self._with_state(node, state) for state in self._other_states(node)))
        found = min(fitting, key=lambda each: each[1].seconds, default=None)
        if found is not None:
            return found
        other = Table((node,), {(state,): (0.0, 0.0) for state in self._other_states(node)})
        choice = dynamic.solve(with_table(self.problem, other))
        return None if choice is None else (choice, self._predicted(choice))

    def _with_state(self, node: int, state: int) -> tuple[list[int], Prediction] | None:
        """The fastest choice that fits and in which a node has a state."""
        said = Table((node,), {(state,): (0.0, 0.0)})
        problems = [with_table(each, said) for each in self.problems]
        solved = [(each, functools.partial(dynamic.solve, each)) for each in problems]
        return within(self.found.memory, solved, self._predicted)

    def _with_others_kept(self, node: int) -> tuple[list[int], Prediction] | None:
        """The same where the other variables keep the states that they have."""
        choices = [
            self.maker.complete({**self.state, **self.others, node: state}) for state in self._other_states(node)
        ]
        costs = [(self.problem.cost(choice), choice) for choice in choices if choice is not None]
        first = None
        for _, choice in sorted((cost, choice) for cost, choice in costs if cost is not None):
            found = choice, self._predicted(choice)
            if found[1].num_bytes <= self.found.memory:
                return found
            first = first or found
        return first

    def _predicted(self, choice: list[int]) -> Prediction:
        maker = self.maker
        return predict(maker.trace, maker.layouts(choice), maker.setting, maker.recomputed(choice))

    def _alternative(self, node: int, choice: list[int], prediction: Prediction, is_free: bool) -> Alternative:
        path, *more = self.paths[node]
        return Alternative(
            pattern=pattern_of(path) if more else re.escape(path),
            shape=next(each.shape for each in self.maker.trace.parameters if each.path == path),
            chosen=self._chosen(node),
            axes=self._states(node)[choice[node]],
            prediction=prediction,
            is_free=is_free,
        )


def with_table(problem: Problem, table: Table) -> Problem:
    """One in which something more is said."""
    return Problem(problem.states, [*problem.tables, table], problem.seconds, problem.num_bytes)
