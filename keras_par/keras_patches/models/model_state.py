"""All that training changes in a model, under names every process shares, and how the ranks' values make one."""

import re
from typing import Literal, NamedTuple

import keras

from keras_par.keras_patches.models.binding import bound, optimizers_of
from keras_par.keras_patches.step.batch_normalization import synchronized_layers
from keras_par.keras_patches.step.metrics import is_float, layer_state
from keras_par.plan.fingerprint import canonical_names
from keras_par.plan.layout import Axes
from keras_par.plan.options import Options
from keras_par.sharding.variable_views import is_sharded, is_summed_backward

# How the values of ranks with other rows make one process's: they are the "same", add up ("sum"), are averaged
# ("mean"), or only the first's counts ("first").
# Ranks of one place have equal values, or other parts of one. Parts that ranks with other rows have are the "same".
AcrossRanks = Literal["same", "sum", "mean", "first"]
Section = Literal["model", "optimizer", "metrics"]


class Entry(NamedTuple):
    """A variable, its name in a checkpoint, and how the ranks' values of it belong together."""

    name: str
    variable: keras.Variable
    across_ranks: AcrossRanks

    @property
    def axes(self) -> Axes:
        """For each dim the axis of the mesh that divides it, or None; empty for a variable that is not divided."""
        return self.variable.axes if is_sharded(self.variable) else ()


def entries(model: keras.Model, section: Section) -> list[Entry]:
    """One section of a model's state, each variable once, in an order that all processes share."""
    if section == "model":
        binding = bound(model)
        of_all_rows = synchronized_layers(model, Options() if binding is None else binding.options)
        own = {id(variable) for variable in layer_state(model, of_all_rows)}
        metrics = {id(variable) for variable in model.metrics_variables}
        return named(
            section,
            [variable for variable in model.variables if id(variable) not in metrics],
            lambda v: "same" if id(v) not in own else "mean" if is_float(v) else "first",
        )
    if section == "optimizer":
        variables = [variable for each in optimizers_of(model) for variable in each.variables]
        return named(section, variables, lambda v: "sum" if is_partial(v) else "same")
    return named(
        section, model.metrics_variables, lambda v: v.aggregation if v.aggregation in ("sum", "mean") else "first"
    )


def named(section: Section, variables: list[keras.Variable], across_ranks) -> list[Entry]:
    variables = list({id(variable): variable for variable in variables}.values())
    paths = [variable.path for variable in variables]
    # An optimizer's slots have the numbers of layers in the middle of their names; their order tells them apart.
    slots = [f"{place}/{re.sub('_[0-9]+', '', path)}" for place, path in enumerate(paths)]
    names = slots if section == "optimizer" else canonical_names(paths)
    found: dict[str, int] = {}
    result = []
    for name, variable in zip(names, variables, strict=True):
        number = found[name] = found.get(name, -1) + 1
        suffix = f"~{number}" if number else ""
        how: AcrossRanks = "same" if is_summed_backward(variable) else across_ranks(variable)
        result.append(Entry(f"{section}/{name}{suffix}", variable, how))
    return result


def state_of(model: keras.Model) -> list[keras.Variable]:
    """All variables of the model, its metrics and its optimizers, each once, in an order all ranks share."""
    variables = [*model.variables, *model.metrics_variables]
    for optimizer in optimizers_of(model):
        variables += optimizer.variables
    return list({id(variable): variable for variable in variables}.values())


def is_partial(variable: keras.Variable) -> bool:
    """True for gradients that are being accumulated, of which each rank holds its own rows' part.

    Those of a variable that ranks with other rows divide among themselves have been summed over the rows.
    """
    return variable.name.endswith("gradient_accumulator") and not is_summed_backward(variable)
