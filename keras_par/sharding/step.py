"""The training or test step that is being traced or run: its rows here and on all ranks."""

import contextlib
import contextvars
from typing import Any

import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.sharding.collective_names import num_functions, numbered, within_step


class LossUnknown(BaseException):
    """Ends the first trace of a step at a loss that must be looked at; a step's own `except Exception` lets it pass."""


class Probed:
    """What a probe that runs a step finds: losses of which it takes gradients, and numbers that it only shows.

    Numbers have keys, of which one may have several.

    Args:
        kinds_of_losses: where it is noted what losses of `compile` give, by their `id`s; None if that is not asked.
    """

    def __init__(self, kinds_of_losses: dict[int, Any] | None = None):
        self.losses: list[tf.Tensor] = []
        self.numbers: list[tuple[tuple[str, ...], Any]] = []
        self.kinds_of_losses = kinds_of_losses


class Step:
    """What hooks deep inside a step need to know, valid while the step's Python code runs.

    Args:
        binding: the `Binding` of the model whose step it is.
        local: an int or a scalar integer tensor, rows of the batch on this rank; may be 0.
        total: an int or a scalar integer tensor, rows of the batch on all ranks that have other rows, which are those
            of `communicator`.
        thin: True if `local` may be 0 and the batch a stand-in, whose values must not count even if they are NaN.
        compiled: True inside a function that XLA compiles, where no collective can be.
        rows: where this rank's rows lie, for its random numbers; None if each rank draws what is asked for.
        captured: where an optimizer's apply leaves its arguments instead of acting on them; None if it acts.
        probed: what a probe that runs the step finds.
        first_trace: how many functions of TensorFlow's the step itself is, 1 or 0, while nobody has looked at losses,
            so that one that is not known ends its trace; None later.
        communicator: the ranks that have other rows, if not those of the binding.
        method: the name of the model's method that it is.
        keys_of_metrics: under which what metrics are updated by is known, by the metrics' ids.
        is_blind: True if nobody can look at its scalars, which is said if they are not known from its trace.
    """

    def __init__(
        self,
        binding,
        local,
        total,
        thin: bool,
        compiled: bool = False,
        rows=None,
        captured: list[tuple] | None = None,
        probed: Probed | None = None,
        communicator: Communicator | None = None,
        first_trace: int | None = None,
        method: str = "",
        keys_of_metrics: dict[int, tuple[str, ...]] | None = None,
        is_blind: bool = False,
    ):
        self.binding = binding
        self.communicator: Communicator = communicator or binding.data
        self.local, self.total, self.thin = local, total, thin
        self.compiled = compiled
        self.rows = rows
        self.is_stock = False  # inside Keras's own train_step or test_step, not one of the user's
        self.targets: list[tf.Tensor] = []  # losses weighted and scaled, whose gradients are reduced by apply
        self.captured, self.probed = captured, probed
        self.first_trace, self.method, self.is_blind = first_trace, method, is_blind
        self.keys_of_metrics = keys_of_metrics or {}
        self.handled: list[tf.Tensor] = []  # what Keras's own losses gave: those of the batch's rows as they are
        self.reduced: frozenset[int] | None = None  # inside an optimizer's apply, whose gradients are summed already
        self.lookups: dict[str, Any] = {}  # by the names of indices, how gradients lie that a compiled function gave

    def share(self, dtype) -> tf.Tensor:
        """This rank's rows divided by all rows: the weight of its mean in the mean of the batch."""
        return tf.cast(tf.cast(self.local, tf.float64) / tf.cast(self.total, tf.float64), dtype)

    @property
    def sums_now(self) -> bool:
        """True if gradients that Keras's own step computes may be summed over ranks where it does."""
        return self.is_stock and bool(self.targets) and not self.compiled and self.captured is None

    @property
    def adds_up(self) -> bool:
        """True if the scalars that the step computes are sums over rows, which add up, and not means.

        Raises:
            LossUnknown: that is not known yet, within a function whose trace TensorFlow would keep.
        """
        if self.is_stock:
            return False
        if self.first_trace is not None and num_functions() > self.first_trace:
            raise LossUnknown
        return self.binding.custom_loss == "sum"

    def weight(self, dtype) -> tf.Tensor:
        """What a scalar of this step is multiplied by, so that the ranks' add up to that of the batch."""
        return tf.cast(self.local > 0, dtype) if self.adds_up else self.share(dtype)

    def inverse_share(self, dtype) -> tf.Tensor:
        """All rows divided by this rank's rows, 0 where it has none."""
        return tf.math.divide_no_nan(tf.cast(self.total, dtype), tf.cast(self.local, dtype))

    def times(self, value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """`value` times `weight`, which is 0 where this rank has no rows, whatever the value is."""
        return tf.math.multiply_no_nan(value, weight) if self.thin else value * weight

    def sum(self, tensor: tf.Tensor, kind: str, what: str) -> tf.Tensor:
        """`tensor` summed over the ranks, not differentiable. Costs one all-reduce.

        Raises:
            ValueError: XLA compiles this step; `what` names the part of the model that needs the sum.
        """
        self.require_plain(what)
        return self.communicator.all_reduce([tensor], numbered(kind))[0]

    def require_plain(self, what: str) -> None:
        if self.compiled:
            raise ValueError(
                f"keras-par: {what} needs other ranks' values inside the step, where XLA allows no collective: "
                "compile the model with jit_compile=False."
            )

    def say(self, sentence: str, *values) -> None:
        """As `Binding.say`."""
        self.binding.say(sentence, *values)

    @contextlib.contextmanager
    def stock(self):
        """Within it Keras's own step runs, whatever called it."""
        before, self.is_stock = self.is_stock, True
        try:
            yield
        finally:
            self.is_stock = before

    @contextlib.contextmanager
    def current(self):
        """Makes this the step that `current()` returns."""
        token = _current.set(self)
        try:
            with within_step():
                yield self
        finally:
            _current.reset(token)


_current: contextvars.ContextVar[Step | None] = contextvars.ContextVar("keras_par_step", default=None)


def current() -> Step | None:
    """The step whose code is running in this thread, None outside of `fit`, `evaluate` and `*_on_batch`."""
    return _current.get()
