"""What the ranks of a pool do for the tests of other layouts than those that a search has found."""

import contextlib

import keras

from tests import search_tasks


def compare_named(name: str, num_ranks: int, mesh: tuple[int, int], machine: str, memory: float | None = None) -> list:
    """For each class of a model of the table its alternative, and the best where the class is said to lie so.

    `memory` is what a rank may hold, as a part of what the fastest plan does.
    """
    from keras_par.plan.layout import matches
    from keras_par.searching.find import find
    from keras_par.searching.meshes import DATA, MODEL
    from keras_par.searching.model_trace import look_at

    known, sizes = search_tasks.machine_from(machine), dict(zip((DATA, MODEL), mesh, strict=True))
    trace = look_at(search_tasks.MODELS[name])

    def best(said: dict, capacity: float | None):
        return find(trace, known, num_ranks, 8, "dynamic", capacity, sizes, said)

    found = best({}, None)
    capacity = None if memory is None else memory * found.best.prediction.num_bytes
    found = best({}, capacity)
    rows = []
    for each in alternatives_of(trace, known, found):
        paths = [parameter.path for parameter in trace.parameters if matches(each.pattern, parameter.path)]
        others = []
        for axes in options_of(trace, known, found, each.shape):
            if axes != each.chosen:
                try:
                    others.append(best(dict.fromkeys(paths, axes), capacity).best.prediction.seconds)
                except ValueError:  # it does not fit
                    continue
        fits = each.prediction.num_bytes <= found.memory
        rows.append({"pattern": each.pattern, "seconds": each.prediction.seconds, "others": others, "fits": fits})
        rows[-1] |= {"is_free": each.is_free, "best": found.best.prediction.seconds}
    return rows


def alternatives_of(trace, machine, found) -> list:
    """Of a plan for 8 rows."""
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.alternatives import alternatives
    from keras_par.searching.meshes import DATA

    return alternatives(trace, Setting(machine, found.best.mesh, DATA, 8), {}, found)


def options_of(trace, machine, found, shape) -> list:
    """All ways in which a variable of a shape may lie."""
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.meshes import DATA
    from keras_par.searching.problem_builder import options

    return options(shape, Setting(machine, found.best.mesh, DATA, 8))


def of_drawn(kind: str, parts, search: str, share: float, machine: str) -> dict:
    """The alternatives to what is found for a model of random parts in a share of the memory that it would take."""
    from keras_par.searching.find import find
    from keras_par.searching.model_trace import look_at

    trace, known = look_at(search_tasks.drawn(kind, parts)), search_tasks.machine_from(machine)
    keras.utils.clear_session(free_memory=False)
    found = find(trace, known, 4, 8, search)
    with contextlib.suppress(ValueError):  # nothing fits: the plan without a limit stays
        found = find(trace, known, 4, 8, search, share * found.best.prediction.num_bytes)
    best = found.best
    rows = [
        {
            "seconds": each.prediction.seconds,
            "fits": each.prediction.num_bytes <= found.memory,
            "is_other": each.axes != each.chosen and len(each.axes) == len(each.shape),
        }
        for each in alternatives_of(trace, known, found)
    ]
    return {"seconds": best.prediction.seconds, "alternatives": rows}
