"""Files of models that ranks divide: rank 0 reads and writes whole values as one process would, the others serve it.

What rank 0 wants is not known before: it says which variable it reads or assigns, and the other ranks, which do
nothing else meanwhile, take part in that. So anything that saves or loads works, and whole values come one at a time.
"""

import contextlib
import contextvars
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.agreed import AgreedRuntimeError, AgreedValueError
from keras_par.comm.broadcast import from_bytes, to_bytes
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.job import failures
from keras_par.keras_patches.files.atomic_save import making_folders
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.models.foreign_callbacks import refuse
from keras_par.keras_patches.models.model_state import is_partial, state_of
from keras_par.keras_patches.variables.sharded_variable import ShardedVariable
from keras_par.plan.layout import shard_of
from keras_par.sharding.collectives import gather
from keras_par.sharding.variable_views import leader, led_by, local_view, sharded

_is_told: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_par_is_told", default=False)

DONE = -1


def divided(model: keras.Model) -> list[ShardedVariable]:
    """The variables of a model, its metrics and its optimizers that ranks divide, in an order all ranks share."""
    return sharded(state_of(model)) if world.is_started() and isinstance(model, keras.Model) else []


def saved_together(original):
    """Lets rank 0 write the ordinary file of a model that is divided, for which all ranks must call it."""
    what = f"Model.{original.__name__.removesuffix('_model')}"
    is_export = what == "Model.export"
    if is_export:
        original = making_folders(original)

    def replacement(model, *args, **kwargs):
        if leader() is not None:
            return original(model, *args, **kwargs)
        if not divided(model):
            if not is_export:
                warn_of_accumulators(model, what)
            with told_of_accumulators():
                return original(model, *args, **kwargs)

        def write():
            whole = in_one_piece(model) if is_export else model
            return original(whole, *args, **kwargs)

        return together(model, what, write, sums_accumulators=True)

    return replacement


def warn_of_accumulators(model: keras.Model, what: str) -> None:
    """Says once a save that a file gets this rank's part of gradients that are being accumulated."""
    is_alone = not isinstance(model, keras.Model) or bindings.of(model) is None or world.current().size == 1
    if is_alone or _is_told.get():
        return
    partial = [variable for variable in state_of(model) if is_partial(variable)]
    if any(bool(tf.reduce_any(variable.value != 0)) for variable in partial):
        warnings.warn(
            f"keras-par: {what} of '{model.name}' saves gradients that are half accumulated, of which this rank has "
            "those of its own rows, so that training that goes on from the file differs from one process's: save after "
            "a multiple of gradient_accumulation_steps, or by RankCheckpoint.",
            stacklevel=3,
        )


@contextlib.contextmanager
def told_of_accumulators() -> Iterator[None]:
    """Within, nothing is said of accumulated gradients: it was, or they are those of all ranks."""
    token = _is_told.set(True)
    try:
        yield
    finally:
        _is_told.reset(token)


def accumulated_once(original):
    """Lets accumulated gradients that all ranks load from a file, which has those of all rows, count on one rank only.

    A model that has not begun to train keeps them: `prepare` does the same then.
    """

    def replacement(model, *args, **kwargs):
        binding = bindings.of(model) if isinstance(model, keras.Model) else None
        if binding is None or not binding.prepared or binding.data.rank == 0:
            return original(model, *args, **kwargs)
        partial = [variable for variable in state_of(model) if is_partial(variable)]
        with local_view():
            before = [tf.identity(variable.value) for variable in partial]
        result = original(model, *args, **kwargs)
        with local_view():
            for variable, value in zip(partial, before, strict=True):
                if tf.reduce_any(variable.value != value):  # the file had it
                    variable.assign(tf.zeros_like(value))
        return result

    return replacement


def together(model: keras.Model, what: str, act: Callable[[], Any], sums_accumulators: bool = False) -> Any:
    """What `act` returns on rank 0, where all variables of the model look whole; the others serve and return None.

    Every rank must call it. Costs four all-gathers of a few bytes, and for each read or assignment of a variable that
    is divided one broadcast of a number, besides one all-gather for each divided dim or one broadcast of each shard.

    Args:
        model: whose variables are divided.
        what: the call, for messages.
        act: what rank 0 does.
        sums_accumulators: True lets gradients that are being accumulated look like those of all ranks, which costs
            one all-reduce of them.

    Raises:
        ValueError: on every rank, if the ranks have other models, or `act` raised one on rank 0.
        RuntimeError: on every rank, if `act` raised something else; here, if a rank has left the job instead.
    """
    communicator, variables = world.current(), divided(model)
    named = f"{what} of '{model.name}'" + (", whose variables the ranks divide," if variables else "")
    refuse(named.removesuffix(","))
    try:
        # Under this name calls of fit and the like begin, too, so that a rank that is there instead is found out.
        calls = gather_or_raise(communicator, "kp.run", {"call": what, "divided variables": len(variables)}, None)
    except tf.errors.OpError as error:
        if not failures.is_consequence(error):
            raise
        raise RuntimeError(
            f"keras-par: {named} needs all ranks, but another one has left: call it on every rank, not on rank 0 only."
        ) from failures.explain(error)
    other = next((rank for rank, call in enumerate(calls) if call != calls[0]), None)
    if other is not None:
        raise AgreedValueError(
            f"keras-par: rank 0 calls {shown(calls[0])} while rank {other} calls {shown(calls[other])}: call "
            f"{named} on every rank."
        )
    files, binding = Files(communicator, variables), bindings.of(model)
    with whole_accumulators(model, binding.data) if binding and sums_accumulators else contextlib.nullcontext():
        result, failure = files.lead(act) if communicator.rank == 0 else files.serve()
    own = failure and [isinstance(failure, ValueError), f"{type(failure).__name__}: {failure}"]
    told = communicator.all_gather_object(own, f"kp.{what}.done")[0]
    if told:
        kind = AgreedValueError if told[0] else AgreedRuntimeError
        text = f"{what} of model '{model.name}' failed on rank 0, which acts for all: {told[1]}"
        raise kind(f"keras-par: {text}") from failure
    return result


def shown(call: dict[str, Any]) -> str:
    number = call.get("divided variables")
    return call["call"] if number is None else f"{call['call']} of a model with {number} divided variables"


class Files:
    """Whole values of sharded variables for code that runs on rank 0, which the other ranks wait for.

    Args:
        communicator: the job's.
        variables: the same on every rank; rank 0 can have the whole values of no others.
    """

    def __init__(self, communicator: Communicator, variables: list[ShardedVariable]):
        self._communicator, self._variables = communicator, variables
        self._places = {id(variable): place for place, variable in enumerate(variables)}
        for variable in variables[:1]:
            variable.mesh.along(variable.mesh.plan.axis_names[0])  # makes the groups of all axes, on all ranks

    def lead(self, act: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """On rank 0, what `act` returns or raises."""
        try:
            with led_by(self):
                return act(), None
        except Exception as error:
            return None, error
        finally:
            self._order(DONE)

    def serve(self) -> tuple[None, None]:
        """On other ranks, takes part in what rank 0 wants until it is done."""
        while (order := self._order(DONE)) != DONE:
            is_assigned, place = divmod(order, len(self._variables))
            if is_assigned:
                self._scatter(self._variables[place], None)
            else:
                self._gather(self._variables[place])
        return None, None

    def read(self, variable: ShardedVariable) -> tf.Tensor:
        """On rank 0, a whole value."""
        self._order(self._place(variable))
        return self._gather(variable)

    def assign(self, variable: ShardedVariable, value: tf.Tensor) -> None:
        """On rank 0, gives all ranks their shards of a whole value."""
        self._order(len(self._variables) + self._place(variable))
        self._scatter(variable, tf.cast(value, variable.dtype))

    def _order(self, order: int) -> int:
        [told] = self._communicator.broadcast([tf.constant(order)], "kp.files.order")
        return int(told)

    def _place(self, variable: ShardedVariable) -> int:
        if id(variable) not in self._places:
            raise ValueError(
                f"keras-par: variable '{variable.path}' is divided and not one of the model's whose file this is, so "
                "that the other ranks do not know of it: make it an attribute of a layer of the model."
            )
        return self._places[id(variable)]

    def _gather(self, variable: ShardedVariable) -> tf.Tensor | None:
        """The whole value on the ranks that have the same shards as rank 0's neighbours; others have nothing to do."""
        if any(place for axis, place in variable.mesh.coordinates.items() if axis not in variable.axes):
            return None
        shard = tf.convert_to_tensor(variable.local)
        for dim, axis in enumerate(variable.axes):
            if axis is not None:
                shard = gather(shard, dim, variable.mesh.along(axis), variable._shape[dim])
        return shard

    def _scatter(self, variable: ShardedVariable, value: tf.Tensor | None) -> None:
        """Sends one shard after the other, of which each rank takes its own."""
        shape, axes, plan = variable._shape, variable.axes, variable.mesh.plan
        shards = [shard_of(shape, axes, plan, rank) for rank in plan.ranks]
        own = variable.mesh.shard(shape, axes)
        dtype = tf.as_dtype(variable.dtype)
        for number, shard in enumerate(shards):
            if shard in shards[:number]:
                continue
            like = tf.TensorSpec([part.stop - part.start for part in shard], dtype)
            nothing = tf.zeros([like.shape.num_elements() * dtype.size], tf.uint8)
            piece = nothing if value is None else to_bytes(value[shard])
            [piece] = self._communicator.broadcast([piece], "kp.files.shard")
            if shard == own:
                variable.local.assign(from_bytes(piece, like))


def memory_is_sufficient(original: Callable) -> Callable:
    """Files of models that are divided are never in memory as a whole."""

    def replacement(model):
        return not divided(model) and original(model)

    return replacement


@contextlib.contextmanager
def whole_accumulators(model: keras.Model, data: Communicator) -> Iterator[None]:
    """Within, the gradients accumulated so far are those of all ranks.

    Args:
        model: whose optimizers accumulate.
        data: the ranks that have other rows.

    Costs one all-reduce of the gradients for each dtype.
    """
    partial = [variable for variable in state_of(model) if is_partial(variable)]
    with local_view():
        own = [tf.identity(variable.value) for variable in partial]
        dtypes: defaultdict[str, list[int]] = defaultdict(list)
        for i, variable in enumerate(partial):
            dtypes[variable.dtype].append(i)
        for dtype, members in dtypes.items():
            totals = data.all_reduce([own[i] for i in members], f"kp.accumulators.{dtype}")
            for i, total in zip(members, totals, strict=True):
                partial[i].assign(total)
    try:
        with told_of_accumulators():
            yield
    finally:
        with local_view():
            for variable, value in zip(partial, own, strict=True):
                variable.assign(value)


def in_one_piece(model: keras.Model) -> keras.Model:
    """A copy of a model on this rank that is not divided, for what needs all variables at once.

    Raises:
        ValueError: the model's configuration does not make one like it.
    """
    config = keras.saving.serialize_keras_object(model)
    config["compile_config"] = None
    strategy = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        copy = keras.saving.deserialize_keras_object(config)
    finally:
        keras.distribution.set_distribution(strategy)
    if [tuple(weight.shape) for weight in copy.weights] != [tuple(weight.shape) for weight in model.weights]:
        raise ValueError(
            f"the configuration of '{model.name}' does not build it: save it by model.save_weights, and export it in "
            "one process that has loaded them."
        )
    for ours, theirs in zip(copy.weights, model.weights, strict=True):
        ours.assign(theirs.value)
    return copy
