"""Lays variables and the state of optimizers out over the ranks with other rows, as the option `zero` says."""

from collections.abc import Iterator

import keras

from keras_par.comm.broadcast import broadcast_variables
from keras_par.keras_patches.models.binding import Binding, optimizers_of
from keras_par.keras_patches.update.optimizer_slots import axes_of, slots_by_variable
from keras_par.keras_patches.update.variable_update import is_elementwise
from keras_par.keras_patches.variables.division import is_table, over_rows
from keras_par.keras_patches.variables.layouts import mesh_of_rows
from keras_par.keras_patches.variables.sharded_variable import divide, lie, make_whole
from keras_par.plan.options import Options
from keras_par.plan.placement import Placement, alike
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.variable_views import is_sharded, placement_of


def lay_out_state(model: keras.Model, binding: Binding) -> None:
    """Says of each trainable variable how ranks with other rows divide it, and divides what is there so.

    A variable stays whole that is small or has a gradient of single rows. What is there becomes rank 0's where the
    strategy has it so. Costs one all-reduce of a number, a broadcast of what is to be divided, and one all-gather for
    each variable that was divided otherwise.

    Args:
        model: built.
        binding: its strategy.
    """
    mesh, stage = mesh_of_rows(binding.strategy), binding.options.zero
    if stage:
        build_where_another_has(model, binding)
    wanted = placements(model, mesh, binding.options if stage else None, stage == 0 or is_elementwise_only(model))
    goals = [(variable, placement.stored) for variable, placement in wanted]
    for optimizer in optimizers_of(model):
        slots = slots_by_variable(optimizer, with_accumulators=True)
        goals += [(slot, axes_of(slot, how)) for variable, how in wanted for slot in slots.get(id(variable), ())]
    changing = [(variable, axes) for variable, axes in goals if placement_of(variable).stored != axes]
    if binding.options.broadcast_variables:
        whole = [variable for variable, _ in changing if not is_sharded(variable)]
        broadcast_variables(whole, communicator=binding.communicator)
    for variable, axes in changing:
        lay_out(variable, alike(axes, mesh.batch_axis), mesh)
    for variable, placement in wanted:
        lie(variable, placement, mesh)
    if wanted:
        for optimizer in optimizers_of(model):
            find_again(optimizer)


def is_elementwise_only(model: keras.Model) -> bool:
    """True if all optimizers of a model can update parts."""
    return all(is_elementwise(each) for optimizer in optimizers_of(model) for each in inner_of(optimizer))


def build_where_another_has(model: keras.Model, binding: Binding) -> None:
    """Makes the state of the model's optimizer if another rank has some already, as from a file that it alone read."""
    optimizer = getattr(model, "optimizer", None)
    is_built = optimizer is not None and optimizer.built
    nobody_has = binding.communicator.all_agree(not is_built, "kp.zero")
    if optimizer is not None and not is_built and not nobody_has:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)


def placements(
    model: keras.Model, mesh: RankMesh, options: Options | None, by_elements: bool
) -> list[tuple[keras.Variable, Placement]]:
    """How the variables are to lie that ranks with other rows divide, or did before.

    Args:
        model: built.
        mesh: of the strategy.
        options: the strategy's, None if nothing is to be divided.
        by_elements: False if an optimizer of the model looks beyond single elements.
    """
    tables = {id(weight) for layer in model._flatten_layers() if is_table(layer) for weight in layer.weights}
    found = []
    for variable in model.trainable_variables:
        stored = placement_of(variable).stored
        placement = None
        if options is not None and id(variable) not in tables:
            placement = over_rows(variable, tuple(variable.shape), stored, mesh, options, by_elements)
        if placement is None and placement_of(variable).divides_state:
            placement = alike(stored, mesh.batch_axis)
        if placement is not None:
            found.append((variable, placement))
    return found


def inner_of(optimizer: keras.optimizers.Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """The optimizers that do the work of one that hands it on."""
    inner = getattr(optimizer, "optimizers", None) or [getattr(optimizer, "inner_optimizer", None)]
    for each in inner:
        yield from [optimizer] if each is None else inner_of(each)


def lay_out(variable: keras.Variable, placement: Placement, mesh: RankMesh) -> None:
    """Divides a variable that is divided otherwise, or makes it whole."""
    if is_sharded(variable):
        make_whole(variable)
    if any(placement.stored):
        divide(variable, placement, mesh)


def find_again(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets optimizers that are built find variables that have other values now."""
    for each in {id(each): each for each in (optimizer, *inner_of(optimizer))}.values():
        if each.built:
            each._trainable_variables_indices = {each._var_key(v): i for i, v in enumerate(each._trainable_variables)}
