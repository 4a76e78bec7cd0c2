"""Ties a model to the strategy it was compiled under."""

import contextlib
import contextvars
import logging
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.distribution import distribution_lib

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.comm.counted import Call, CountedCommunicator
from keras_par.keras_patches.models.layer_recompute import recompute
from keras_par.keras_patches.step.metric_states import MetricStates
from keras_par.keras_patches.variables.layer_outputs import OutputRow, outputs_noted
from keras_par.keras_patches.variables.layouts import layout_of, mesh_of
from keras_par.keras_patches.variables.sharded_variable import MADE_UNDER
from keras_par.plan.options import Options, Reduction
from keras_par.sharding.compute import keeping
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.variable_views import is_sharded, sharded
from keras_par.sharding.zero_parts import has_own_part

logger = logging.getLogger("keras_par")

ATTRIBUTE = "_keras_par_binding"
FUNCTIONS = ("train_function", "test_function", "predict_function")  # that Keras keeps on a model once they are made
TRAINING = ("fit", "train_on_batch")

_is_independent: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_par_apart", default=False)


class Binding:
    """One model's strategy, kept on the model and handed to its steps."""

    def __init__(self, strategy, options: Options):
        self.strategy = strategy
        self.options = options
        self.prepared = False  # initial state was compared and broadcast
        self.shares_weights = True  # as long as nobody wanted ranks to begin with other ones
        self.weighted_at_tape: set[int] = set()  # `identity`s of variables whose gradients own steps have weighted
        self.summed_at_tape: set[int] = set()  # the same, summed over ranks
        self.sliced_at_tape: set[int] = set()  # of those, where the sums were slices
        self.probed: set[str] = set()  # methods whose first batch was looked at
        self.kinds_of_losses: dict[int, Any] = {}  # by the `id`s of losses that are not Keras's, the same on all ranks
        self.sums_losses = False  # losses of the user's own were found to be sums over rows
        self.numbers: dict[str, dict[Any, Reduction]] = {}  # what those of own steps are, by methods and keys
        self.said: set[str] = set()  # sentences about its steps that were logged
        self.announced = False  # how it trains was said
        self.collectives: dict[str, list[Call]] = {}  # of the steps traced, by the method's name
        self.outputs: dict[str, list[OutputRow]] = {}  # the same
        self.metric_states = MetricStates()
        self.metric_probe: Any = None  # once the model's metrics are built
        self._own_functions: dict[str, Any] = dict.fromkeys(FUNCTIONS)  # those made and used on this rank alone

    @property
    def communicator(self) -> Communicator:
        return world.current().routed_by(self.options.reduce_by)

    def say(self, sentence: str, *values) -> None:
        """Logs a sentence about the model's steps, once for each model and on the job's first rank."""
        if sentence not in self.said:
            self.said.add(sentence)
            if self.communicator.rank == 0:
                logger.warning(f"keras-par: {sentence}", *values)

    @property
    def custom_loss(self) -> Reduction:
        """What scalars are that no loss function of Keras's reduces: as the strategy says, or as was found."""
        return "sum" if self.sums_losses or self.options.custom_loss == "sum" else "mean"

    @property
    def mesh(self) -> RankMesh | None:
        """The mesh of a model-parallel strategy, None in data parallel."""
        return mesh_of(self.strategy)

    @property
    def data(self) -> Communicator:
        """The ranks that have other rows: all in data parallel, else those along the mesh's batch axis."""
        mesh = self.mesh
        return self.communicator if mesh is None else mesh.rows

    def scope(self):
        """Within it variables and outputs get the layouts of a model-parallel strategy, wherever `fit` was called."""
        return contextlib.nullcontext() if self.mesh is None else self._scope_of_layouts()

    @contextlib.contextmanager
    def _scope_of_layouts(self) -> Iterator[None]:
        with self.strategy.scope(), keeping(self.options.propagate):
            yield

    @property
    def num_shards(self) -> int:
        """Into how many parts the rows of a batch are cut."""
        return self.communicator.size if self.mesh is None else self.mesh.num_places

    def describe(self) -> dict[str, Any]:
        """What must be equal on all ranks, as JSON can carry it."""
        found: dict[str, Any] = {"strategy": "data parallel" if self.mesh is None else "model parallel"}
        if self.mesh is not None:
            plan = self.mesh.plan
            layouts = {pattern: list(layout.axes) for pattern, layout in self.strategy._layout_map.items()}
            found |= {
                "mesh shape": list(plan.shape),
                "mesh axes": list(plan.axis_names),
                "mesh ranks": list(plan.ranks),
            }
            found |= {"batch axis": self.strategy.batch_dim_name, "layout map": layouts}
        return found | {f"strategy's {name}": value for name, value in vars(self.options).items()}

    @property
    def is_distributed(self) -> bool:
        return self.communicator.size > 1

    @contextlib.contextmanager
    def counted(self, method: str):
        """Within it collectives and outputs are noted as those of a step, if its graph is traced for the first time."""
        if tf.executing_eagerly() or method in self.collectives:
            yield
            return
        counting = CountedCommunicator(self.communicator)
        before = world.replace(counting)
        try:
            with outputs_noted() as outputs:
                yield
        finally:
            world.replace(before)
        self.collectives[method], self.outputs[method] = counting.calls, outputs

    @contextlib.contextmanager
    def own_functions(self, model: keras.Model) -> Iterator[None]:
        """Within it the model has the functions of this rank alone, which are made when they are first needed."""
        shared = {name: getattr(model, name) for name in FUNCTIONS}
        for name, function in self._own_functions.items():
            setattr(model, name, function)
        try:
            yield
        finally:
            self._own_functions = {name: getattr(model, name) for name in FUNCTIONS}
            for name, function in shared.items():
                setattr(model, name, function)

    def times(self, weight: tf.Tensor) -> tf.Tensor:
        """`weight` as the strategy's reduction wants it: times the number of ranks for "sum"."""
        return weight * self.communicator.size if self.options.reduction == "sum" else weight


def bound(model: keras.Model) -> Binding | None:
    """The binding of a model, whatever the number of ranks."""
    return getattr(model, ATTRIBUTE, None)


def of(model: keras.Model) -> Binding | None:
    """The binding of a model, None where there is none, only one rank, or this rank works alone."""
    if _is_independent.get() or not is_distributed():
        return None
    return bound(model)


def is_distributed() -> bool:
    """True in a job of several ranks."""
    return world.is_started() and world.current().size > 1


def is_single_rank() -> bool:
    """True in a job of one rank."""
    return world.is_started() and world.current().size == 1


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Within it models have no binding, so that this rank uses them alone."""
    token = _is_independent.set(True)
    try:
        yield
    finally:
        _is_independent.reset(token)


def is_independent() -> bool:
    """True within `independent`."""
    return _is_independent.get()


def for_call(model: keras.Model, call: str) -> Binding | None:
    """The binding by which a trainer method works, made now for a model that has none; None to work on this rank alone.

    A strategy that has a method `keras_par_divide` divides the model before it is used.

    Raises:
        ValueError: there are several ranks and no strategy, or the model does not fit to it; or its variables are
            divided, or are to be trained with a divided state, and this rank is to work alone.
    """
    if not is_distributed():
        return None
    if _is_independent.get():
        in_parts = call in TRAINING and any(map(has_own_part, model.trainable_variables))
        if in_parts or sharded(model.variables):
            what = "its optimizer's state is" if in_parts else "its variables are"
            raise ValueError(
                f"keras-par: {call} of '{model.name}' needs all ranks, because {what} divided: call it outside of "
                "kp.independent(), on every rank."
            )
        return None
    if bound(model) is None:
        bind(model)
    binding = bound(model)
    if binding is None:
        raise ValueError(
            f"keras-par: {call} of '{model.name}' would work on each of the {world.current().size} ranks by itself, "
            "because no strategy is set: call keras.distribution.set_distribution(kp.DataParallel()) before, or use "
            "'with kp.independent():' if each rank is to have a model of its own."
        )
    if hasattr(binding.strategy, "keras_par_divide"):
        binding.strategy.keras_par_divide(model, binding)
    return binding


def bind(model: keras.Model) -> None:
    """Binds a model to the active strategy, or to the one its weights were made under; does nothing without any.

    Its weights may be older than the strategy, unless that divides them.

    Raises:
        ValueError: the strategy would have divided a weight that is whole, or the other way round; it is of a kind
            that does not work here; or the model is one of a strategy of tf.distribute with several devices.
    """
    strategy = strategy_of(model)
    options = options_of(strategy)
    if options is None:
        return
    require_fitting(model, strategy)
    for name in FUNCTIONS:
        setattr(model, name, None)  # one may have been made for this rank alone
    setattr(model, ATTRIBUTE, Binding(strategy, options))
    recompute(model, strategy, options.recompute)


def require_fitting(model: keras.Model, strategy) -> None:
    """Raises ValueError if a weight is not divided as the strategy would have made it, or lies on several devices."""
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"keras-par: model '{model.name}' was made in the scope of tf.distribute's "
            f"{type(model.distribute_strategy).__name__}, which trains on several devices by itself: make the model "
            "outside of that scope, and start one rank a device."
        )
    if mesh_of(strategy) is None:
        divided = sharded(model.weights)
        if divided:
            raise ValueError(
                f"keras-par: variable '{divided[0].path}' of model '{model.name}' is divided, but the strategy that is "
                "set now is data parallel: compile and train the model under the strategy it was built under."
            )
        return
    others = [weight for weight in model.weights if getattr(weight, MADE_UNDER, None) is not strategy]
    for weight in others:
        if not is_sharded(weight) and layout_of(weight, strategy, weight.shape) is not None:
            raise ValueError(
                f"keras-par: the strategy was set after model '{model.name}' was built, but it divides its variable "
                f"'{weight.path}': first keras.distribution.set_distribution(strategy) or 'with strategy.scope():', "
                "then build or load the model."
            )


def strategy_of(model: keras.Model):
    """The active strategy, else the one that the model's weights were made under, else None."""
    made = (getattr(weight, MADE_UNDER, None) for weight in model.weights)
    return distribution_lib.distribution() or next((strategy for strategy in made if strategy is not None), None)


def options_of(strategy) -> Options | None:
    """The strategy's options; the defaults for Keras's own DataParallel, None for no strategy."""
    if strategy is None:
        return None
    if hasattr(strategy, "keras_par_options"):
        return strategy.keras_par_options
    if isinstance(strategy, (distribution_lib.DataParallel, distribution_lib.ModelParallel)):
        return Options()
    raise ValueError(
        f"keras-par: {type(strategy).__name__} is a strategy that does not work on TensorFlow: use kp.DataParallel() "
        "or kp.ModelParallel(layout_map=...)."
    )


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """All optimizers among the model's attributes, also in lists and dicts, as training steps of users' own have."""
    found: dict[int, keras.optimizers.Optimizer] = {}
    for value in vars(model).values():
        members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        found |= {id(each): each for each in members if isinstance(each, keras.optimizers.Optimizer)}
    return list(found.values())
