"""What a variable costs beside the operations that read it: gathers, the sum of its gradient, update and memory."""

import functools
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from keras_par.plan.case import Collective, Sent
from keras_par.plan.layout import Axes
from keras_par.plan.operation_cost import PRODUCTS
from keras_par.plan.options import Options
from keras_par.plan.placement import Placement, alike, in_parts
from keras_par.plan.reading import CAST, seen
from keras_par.plan.trace import Operation, Parameter, Trace, shape_at
from keras_par.plan.training_setup import Setting

TAKE = "numpy.take"
INDEX_BYTES = 4  # of the number of a row
BUCKET_BYTES = int(Options.fusion_mb * 2**20)  # of gradients that are summed at a time


@dataclass(frozen=True)
class Use:
    """How the operations of a step read a variable.

    Args:
        reads: for each that needs the whole: bytes of an element in the dtype that computes, and how often a weight
            that is let go is gathered for it.
        sparse_rows: that a rank reads, None if it is read as a whole, too.
    """

    reads: tuple[tuple[int, int], ...] = ()
    sparse_rows: int | None = None


def uses(trace: Trace, num_rows: int, recomputed: Collection[str] = ()) -> dict[str, Use]:
    """How the variables are read, by path.

    Args:
        trace: of the model.
        num_rows: on a rank.
        recomputed: names of layers that are computed once more in the backward pass.
    """
    sparse = sparse_rows(trace, num_rows)
    readers: dict[int, list[Operation]] = defaultdict(list)
    for operation in trace.operations:
        for number in dict.fromkeys(operation.operands):
            readers[number].append(operation)
    found = {}
    for number, tensor in enumerate(trace.tensors):
        if not tensor.path:
            continue
        direct = [operation for operation in readers[number] if operation.name != CAST]
        pairs = [(tensor.item_bytes, operation) for operation in direct]
        for cast in (operation for operation in readers[number] if operation.name == CAST):
            [result] = cast.results
            pairs += [(trace.tensors[result].item_bytes, operation) for operation in readers[result]]
        # A product gathers it forward and for its gradient; others share what is gathered once.
        products = [(size, 3 if each.block in recomputed else 2) for size, each in pairs if each.name in PRODUCTS]
        others = {(size, 1): None for size, each in pairs if each.name not in PRODUCTS}
        found[tensor.path] = Use((*products, *others), sparse.get(tensor.path))
    return found


def sparse_rows(trace: Trace, num_rows: int) -> dict[str, int]:
    """For each table that is read by rows only, how many a rank reads in a step."""
    found: dict[str, int] = {}
    others: set[str] = set()
    for operation in trace.operations:
        for number in operation.operands:
            path = trace.tensors[number].path if number >= 0 else ""
            if not path:
                continue
            if operation.name == TAKE and number == operation.operands[0]:
                result = trace.tensors[operation.results[0]]
                width = math.prod(trace.tensors[number].shape[1:])
                found[path] = found.get(path, 0) + math.prod(shape_at(result.shape, num_rows)) // width
            else:
                others.add(path)
    return {path: rows for path, rows in found.items() if path not in others}


class Upkeep:
    """Of one variable that lies in one way.

    Args:
        parameter: the variable.
        stored: how its layout divides it.
        setting: where it is trained, which says the stage of ZeRO.
        use: how operations read it.
    """

    def __init__(self, parameter: Parameter, stored: Axes, setting: Setting, use: Use):
        self.parameter, self.setting, self.use = parameter, setting, use
        self.placement = placed(parameter, stored, setting, use)

    @property
    def seconds(self) -> float:
        """Of its gathers, its update and its gradient's sum, which shares messages with others, but in stage 2."""
        if not self.parameter.is_trainable:
            return 0
        machine, axis = self.setting.machine, self.setting.data_axis
        updated, slots = self._bytes(self.placement.gradient), self._slot_bytes
        seconds = update_bytes(updated, slots) / machine.update_bytes_per_second + machine.kernel_seconds
        reach, size = self.setting.reach(axis), self.setting.mesh[axis]
        sums = sum(machine.byte_seconds(kind, sent, size, reach) for kind, sent in self.sums)
        seconds += machine.overlap * sums + sum(map(self._gather_seconds, self.use.reads))
        if self.placement.is_scattered_at_once:  # by a message of its own
            seconds += machine.send_seconds("reduce_scatter", 0, size, reach, True)
        return seconds

    @property
    def sums(self) -> list[tuple[Collective, int]]:
        """How the gradients of ranks with other rows become one: of a table of which rows are read these are gathered.

        Of a variable that is updated in parts each rank gets its part of the sum, and gives its part of the new value.
        Of one that is updated as a whole each rank gives its part of the state. Of one that ranks with other rows store
        in parts, that belongs to its gathers.
        """
        parameter, axis = self.parameter, self.setting.data_axis
        if not parameter.is_trainable or self.setting.mesh[axis] == 1 or axis in self.placement.stored:
            return []
        own = self._bytes(self.placement.stored)
        if self.placement.part_dim is not None:
            return [("reduce_scatter", own), ("all_gather", self._bytes(self.placement.gradient))]
        if self.placement.divides_state:
            return [("all_reduce", own), ("all_gather", self._slot_bytes)]
        if self.use.sparse_rows is None:
            return [("all_reduce", own)]
        row = self.setting.local_elements(parameter.shape[1:], self.placement.stored[1:]) * parameter.item_bytes
        return [("all_gather", self.use.sparse_rows * (row + INDEX_BYTES))]

    @property
    def gathers(self) -> list[tuple[Collective, int]]:
        """Of a weight that is gathered on use; and the reduce-scatters of its gradient."""
        if not self.placement.is_gathered_on_use:
            return []
        own, whole = self.setting.elements(self.parameter.shape, self.placement.stored), self.whole_bytes
        found: list[tuple[Collective, int]] = []
        for item_bytes, times in self.use.reads:
            found += [("all_gather", own * item_bytes)] * times
            found.append(("reduce_scatter", whole))
        return found

    @functools.cached_property
    def held(self) -> dict[str, int]:
        """Bytes of it, its gradient and its slots on a rank; and of its gradient while that is summed by itself."""
        gradient = self._bytes(self.placement.accumulator) if self.parameter.is_trainable else 0
        return {
            "variables": self._bytes(self.placement.stored),
            "gradients": gradient,
            "slots": self._slot_bytes,
            "sums": self.whole_bytes if self._is_summed_by_itself else 0,
        }

    @property
    def shared_bytes(self) -> int:
        """Of its gradient's sum that are in a message with others."""
        alone = self.is_whole_at_times or self._is_summed_by_itself
        return 0 if alone else sum(size for _, size in self.sums)

    @property
    def _is_summed_by_itself(self) -> bool:
        is_backward = self.placement.is_summed_backward and self.parameter.is_trainable
        return is_backward and not self.is_whole_at_times

    @property
    def is_whole_at_times(self) -> bool:
        """True if its weight, or its gradient, is whole for two layers only, as in the later stages of ZeRO."""
        return self.placement.is_gathered_on_use or self.placement.is_scattered_at_once

    @property
    def whole_bytes(self) -> int:
        """Of it, or its gradient, before ranks with other rows divide that."""
        return self._bytes(seen(self.placement.stored, self.setting.data_axis))

    def _bytes(self, axes: Axes) -> int:
        return self.setting.elements(self.parameter.shape, axes) * self.parameter.item_bytes

    @property
    def _slot_bytes(self) -> int:
        """The optimizer's state of it."""
        num_elements = math.prod(self.parameter.shape)
        own = self.setting.elements(self.parameter.shape, self.placement.slots)
        return self.parameter.slot_bytes * own // num_elements if num_elements else 0

    def _gather_seconds(self, read: tuple[int, int]) -> float:
        """Of the collectives by which one operation reads a weight that is gathered on use."""
        if not self.placement.is_gathered_on_use:
            return 0
        item_bytes, times = read
        own = self.setting.elements(self.parameter.shape, self.placement.stored)
        after = self.whole_bytes // self.parameter.item_bytes
        dim = self.placement.stored.index(self.setting.data_axis)
        sent = Sent("gather_and_enter", self.setting.data_axis, own, after, item_bytes, True, None, True, dim)
        return self.setting.sent_seconds(sent) + (times - 1) * self.setting.forward_seconds(sent)


def placed(parameter: Parameter, stored: Axes, setting: Setting, use: Use) -> Placement:
    """How a variable lies that its layout divides so, in the setting's stage of ZeRO."""
    axis, num_parts = setting.data_axis, setting.mesh[setting.data_axis]
    placement = None
    is_large = setting.local_elements(parameter.shape, stored) * parameter.item_bytes >= setting.zero_min_kb * 2**10
    is_divisible = parameter.is_trainable or (setting.zero == 3 and parameter.item_bytes == 1)  # what is quantized
    can_be = is_divisible and is_large and num_parts > 1 and axis not in stored and use.sparse_rows is None
    if setting.zero and can_be:
        placement = in_parts(parameter.shape, stored, axis, num_parts, setting.zero, parameter.is_elementwise)
    return placement or alike(stored, axis)


def update_bytes(num_bytes: int, slot_bytes: int) -> int:
    """What is read and written at least to update a variable: it and its slots both ways, its gradient one way."""
    return 3 * num_bytes + 2 * slot_bytes
