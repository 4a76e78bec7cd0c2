"""Finds what other layouts of a class of variables would cost: answers to "why not otherwise?"."""

import functools
import math
import operator
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from keras_par.plan.cost import Prediction, predict
from keras_par.plan.layout import Axes
from keras_par.plan.trace import Shape, Trace
from keras_par.plan.training_setup import Setting
from keras_par.searching import dynamic
from keras_par.searching.classes import pattern_of
from keras_par.searching.find import Found
from keras_par.searching.memory_limited import within
from keras_par.searching.problem_builder import SUMS, Choice, Maker

CLASSES = 12  # that are asked about, those with most to do first
SECONDS = 2.0  # in which others are laid anew; from then on they stay


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
    best, until = found.best, time.monotonic() + SECONDS
    maker = Maker(trace, setting, fixed, bool(best.recomputed), best.classes)
    problems = [maker.problem(counted) for counted in SUMS]
    is_small = len(maker.states) < dynamic.MANY_NODES and not dynamic.is_entangled(problems[0])
    shapes = {parameter.path: parameter.shape for parameter in trace.parameters}
    paths: dict[int, list[str]] = {}  # of the variables of each node
    for kind, tensor in zip(maker.classes, trace.tensors, strict=True):
        if tensor.path:
            paths.setdefault(maker.node_of[kind], []).append(tensor.path)

    def predicted(choice: Choice) -> Prediction:
        return predict(trace, maker.layouts(choice), setting, maker.recomputed(choice))

    def with_others_free(node: int, state: int, memory: float) -> Prediction | None:
        solvers = [dynamic.Solver(replace(problem, kept={node: state})) for problem in problems]
        step = within(memory, solvers, predicted)
        return None if step is None else step[1]

    @functools.cache
    def beside_others(node: int, state: int) -> Prediction:
        layouts = {**best.layouts, **dict.fromkeys(paths[node], maker.states[node][state])}
        return predict(trace, layouts, setting, best.recomputed)

    def with_others_kept(node: int, state: int, memory: float) -> Prediction | None:
        found = beside_others(node, state)
        return found if found.num_bytes <= memory else None

    def alternative(node: int) -> Alternative | None:
        path, *more = paths[node]
        states = maker.states[node]
        chosen = best.layouts.get(path, (None,) * len(states[0]))
        is_free = is_small and time.monotonic() < until
        ask = with_others_free if is_free else with_others_kept
        for memory in (found.memory, math.inf):
            asked = ((ask(node, state, memory), axes) for state, axes in enumerate(states) if axes != chosen)
            steps = [(prediction.seconds, axes, prediction) for prediction, axes in asked if prediction is not None]
            if steps:
                _, axes, prediction = min(steps, key=operator.itemgetter(0))
                pattern = pattern_of(path) if more else re.escape(path)
                return Alternative(pattern, shapes[path], chosen, axes, prediction, is_free)
        return None

    nodes = [node for node in maker.variable_nodes if len(maker.states[node]) > 1]
    return list(filter(None, map(alternative, nodes[:CLASSES])))
