"""How the state of optimizers lies: each slot as its variable's placement says, and known by its variable."""

import contextlib

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from keras_par.keras_patches.variables.abstract_variable import OpenVariable
from keras_par.keras_patches.variables.division import beside
from keras_par.plan.layout import Axes
from keras_par.plan.placement import WHOLE, Placement
from keras_par.sharding.variable_views import local_view, placement_of
from keras_par.sharding.zero_parts import Part

ACCUMULATOR = "gradient_accumulator"  # what Keras calls the sum of some steps' gradients


def add_variable_from_reference(original):
    """Slots have the whole variable's shape and its layout, and know which variable they are for."""

    def made(optimizer, reference, name, initializer):
        placement = placement_of(reference)
        if placement == WHOLE and not isinstance(reference, OpenVariable):
            return original(optimizer, reference, name, initializer)
        with contextlib.ExitStack() as within:
            if placement != WHOLE:
                axes = placement.accumulator if name == ACCUMULATOR else placement.slots
                within.enter_context(local_view(False))
                within.enter_context(beside(reference, axes))
            return BaseOptimizer.add_variable_from_reference(optimizer, reference, name, initializer)

    def replacement(self, reference_variable, name=None, initializer="zeros"):
        slot = made(self, reference_variable, name, initializer)
        slot.reference = reference_variable
        return slot

    return replacement


def slots_by_variable(optimizer: BaseOptimizer, with_accumulators: bool = False) -> dict[int, list[keras.Variable]]:
    """For variables, by their ids, the state that an update needs; sums of steps' gradients only if asked for."""
    found: dict[int, list[keras.Variable]] = {}
    for slot in optimizer.variables:
        reference = getattr(slot, "reference", None)
        if reference is not None and (with_accumulators or not is_accumulator(slot)):
            found.setdefault(id(reference), []).append(slot)
    return found


def is_accumulator(slot: keras.Variable) -> bool:
    """True for the sum of some steps' gradients."""
    return slot.name.endswith(ACCUMULATOR)


def axes_of(slot: keras.Variable, placement: Placement) -> Axes:
    """How a slot of a variable that lies so is divided."""
    return placement.accumulator if is_accumulator(slot) else placement.slots


def var_key(original):
    """A variable is known by what this rank stores of it, one without a value by itself."""

    def replacement(self, variable):
        if isinstance(variable, OpenVariable):
            return id(variable)
        if isinstance(variable, Part):
            variable = variable.variable
        return original(self, variable if placement_of(variable) == WHOLE else variable._value)

    return replacement
