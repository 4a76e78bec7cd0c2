"""Keras variables of which each rank holds a shard, and which show themselves whole to code that does not know."""

import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import standardize_shape
from keras.src.distribution import distribution_lib

from keras_par.comm.broadcast import own
from keras_par.keras_patches.variables import operations
from keras_par.keras_patches.variables.abstract_variable import become_open
from keras_par.keras_patches.variables.division import division_of
from keras_par.plan.layout import Axes
from keras_par.plan.placement import Placement
from keras_par.sharding.collectives import gather_and_enter
from keras_par.sharding.gather_on_use import GatheredOnUse
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.tensor import ShardedTensor
from keras_par.sharding.variable_views import (
    PLACEMENT,
    is_local,
    leader,
    local_view,
    note_whole,
    placement_of,
    whole_value,
)
from keras_par.sharding.zero_parts import scattered_backward

MADE_UNDER = "_keras_par_made_under"


class StoredVariable(keras.Variable):
    """A variable that gradients and optimizers know by what this rank stores of it, whatever `value` makes of that."""

    @property
    def handle(self):
        """Of what is stored."""
        return self._value.handle

    @property
    def _shared_name(self):
        return self._value._shared_name


class ScatteredVariable(StoredVariable):
    """A whole variable whose gradient is scattered in the backward pass, as the second stage of ZeRO has it."""

    mesh: RankMesh

    @property
    def value(self) -> Any:
        """As Keras's. Costs one reduce-scatter backward."""
        if in_stateless_scope() or in_symbolic_scope() or is_local() or self._value is None:
            return super().value
        return self._maybe_autocast(scattered_backward(self._value, self))


class ShardedVariable(StoredVariable):
    """A variable whose shape is the whole's and whose `value` is a ShardedTensor.

    Variables become one when they are made with a layout that divides them: they hold this rank's slice of what the
    initializer gives. What is assigned to one may be whole or sharded. Within `local_view` it looks like an ordinary
    variable of the shard's shape.
    """

    mesh: RankMesh
    checksum: int | None
    _shape: Any

    @property
    def axes(self) -> Axes:
        """For each dim the axis of `mesh` that divides it, or None."""
        return placement_of(self).stored

    @property
    def local(self) -> tf.Variable:
        """This rank's shard."""
        return self._value

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of this rank's shard."""
        return self.mesh.local_shape(self._shape, self.axes)

    @property
    def shape(self) -> tf.TensorShape:
        """Of the whole variable; of the shard within `local_view`."""
        return tf.TensorShape(self.local_shape if is_local() else self._shape)

    @property
    def value(self) -> Any:
        """The value as Keras's code sees it, see the class.

        Axes along which the ranks have other rows are gathered: by the operations that use the value if it lies so,
        else here, at the cost of one all-gather, and one reduce-scatter backward, which sums the rows' gradients.
        """
        if self._value is None or (in_stateless_scope() and not in_symbolic_scope()) or is_local():
            return super().value
        if in_symbolic_scope():
            return self._maybe_autocast(tf.zeros(self._shape, self._dtype))
        if (led := leader()) is not None and tf.executing_eagerly():
            return led.read(self)
        gathered = whole_value(self)
        if gathered is not None:
            return gathered
        placement, axes = placement_of(self), self.axes
        data_axis = placement.data_axis
        if data_axis is None or data_axis not in axes:
            shard = self._maybe_autocast(scattered_backward(tf.convert_to_tensor(self._value), self))
            return ShardedTensor(shard, axes, self.mesh)
        dim = axes.index(data_axis)
        rows, axes = self.mesh.along(data_axis), (*axes[:dim], None, *axes[dim + 1 :])
        stored, length = tf.convert_to_tensor(self._value), self._shape[dim]
        if placement.is_gathered_on_use and not tf.executing_eagerly():
            return GatheredOnUse(stored, dim, length, rows, axes, self.mesh, tf.as_dtype(self.dtype))
        gathered = gather_and_enter(self._maybe_autocast(stored), dim, rows, length)
        return ShardedTensor(gathered, axes, self.mesh) if any(axes) else gathered

    def _validate_shape(self, shape):
        return self._shape if self._shape is not None else super()._validate_shape(shape)

    def _initialize_shard(self, make_whole) -> None:
        """Creates the shard of what `make_whole` returns, which is dropped at once."""
        self.checksum, shard = None, self.mesh.shard(self._shape, self.axes)

        def make():
            value = tf.convert_to_tensor(make_whole(), dtype=self._dtype)
            self.checksum = checksum(value)
            return own(value[shard])

        self._initialize(make)

    def _initialize(self, value) -> None:
        """As Keras's, which from 3.16 on has TensorFlow see that what is stored has the variable's shape."""
        shape, self._shape = self._shape, self.local_shape
        try:
            super()._initialize(value)
        finally:
            self._shape = shape

    def assign(self, value):
        """As Keras's. Of a whole array, as a file has it, only the shard becomes a tensor."""
        is_whole = isinstance(value, np.ndarray) and value.shape == tuple(self._shape)
        if not is_whole or is_local() or leader() is not None or in_stateless_scope():
            return super().assign(value)
        self.checksum = checksum(value)
        with local_view():
            return super().assign(own(tf.convert_to_tensor(value[self.mesh.shard(self._shape, self.axes)])))

    def _direct_assign(self, value):
        if (led := leader()) is not None:
            return led.assign(self, value)
        if isinstance(value, ShardedTensor) and value.axes != self.axes:
            value = value.whole()
        if isinstance(value, ShardedTensor):
            value = value.local
        elif not is_local():
            value = tf.convert_to_tensor(value)
            note_whole(self, value)
            self.checksum = checksum(value)
            value = own(value[self.mesh.shard(self._shape, self.axes)])
        super()._direct_assign(value)


def checksum(value: tf.Tensor | np.ndarray) -> int | None:
    """A number that tells whole values apart; None while a graph is traced."""
    if tf.is_symbolic_tensor(value):
        return None
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def initialize_with_initializer(original):
    def replacement(self, initializer):
        if become_open(self):
            return None
        if not become_sharded(self, self._shape):
            return original(self, initializer)
        shape = self._shape
        return self._initialize_shard(lambda: initializer(shape, dtype=self._dtype))

    return replacement


def initialize(original):
    """Divides a variable that has a layout, and notes on each under which strategy it was made."""

    def replacement(self, value):
        setattr(self, MADE_UNDER, distribution_lib.distribution())
        if isinstance(self, ShardedVariable) or isinstance(value, tf.Variable) or callable(value):
            return original(self, value)
        shape = tuple(value.shape)
        if not become_sharded(self, shape):
            return original(self, value)
        self._shape = standardize_shape(shape)
        return self._initialize_shard(lambda: value)

    return replacement


def become_sharded(variable: keras.Variable, shape) -> bool:
    """Makes a variable that is being initialized a sharded one if its layout divides it."""
    found = division_of(variable, distribution_lib.distribution(), shape)
    if found is None:
        return False
    become(variable, *found)
    return True


def divide(variable: keras.Variable, placement: Placement, mesh: RankMesh) -> None:
    """Makes a whole variable, which is alike on all ranks, a sharded one of the same value."""
    value = tf.convert_to_tensor(variable.value)
    become(variable, placement, mesh)
    variable.checksum = checksum(value)
    variable._initialize(own(value[mesh.shard(variable._shape, placement.stored)]))


def make_whole(variable: ShardedVariable) -> None:
    """Makes a sharded variable a whole one of the same value, on all ranks. Costs one all-gather for each axis."""
    value = tf.convert_to_tensor(variable.value)
    variable.__class__ = keras.Variable
    delattr(variable, PLACEMENT)
    variable._initialize(value)


def become(variable: keras.Variable, placement: Placement, mesh: RankMesh) -> None:
    """Makes a variable a sharded one, which has no value of its own yet."""
    variable.__class__ = ShardedVariable
    lie(variable, placement, mesh)


def lie(variable: keras.Variable, placement: Placement, mesh: RankMesh) -> None:
    """Says how a variable lies whose value lies so already."""
    if placement.is_scattered_at_once and type(variable) is keras.Variable:
        operations.install()
        variable.__class__ = ScatteredVariable
    elif isinstance(variable, ScatteredVariable) and not placement.is_scattered_at_once:
        variable.__class__ = keras.Variable
    setattr(variable, PLACEMENT, placement)
    variable.mesh = mesh
