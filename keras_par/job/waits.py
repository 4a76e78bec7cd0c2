"""Finds ranks that give other tensors to one collective, by what they wait in: TensorFlow would wait for ever."""

import math
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_par.comm.communicator import COLLECTIVES, Request

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 8.0  # between two looks; the pause doubles while a rank waits in the same
ASKS_A_SECOND = 500  # of all ranks together, where there are many
STOP_SECONDS = 5.0  # that a look may take yet
MOST_WAITS, MOST_TENSORS = 16, 64  # of a rank that are told; of a collective that are compared one by one

Shape = tuple[int | None, ...]  # None where a length is not known, or may be another on each rank


class Call(NamedTuple):
    """A collective as it is asked for, known while a graph is traced.

    Args:
        group: which ranks take part, empty for all.
        name: of the collective.
        what: it does, in words.
        tensors: the dtype and shape of each.
    """

    group: str
    name: str
    what: str
    tensors: tuple[tuple[str, Shape], ...]

    @property
    def num_elements(self) -> int | None:
        """Of all tensors, None where that is not known."""
        known = [[length for length in shape if length is not None] for _, shape in self.tensors]
        is_known = all(len(lengths) == len(shape) for lengths, (_, shape) in zip(known, self.tensors, strict=True))
        return sum(map(math.prod, known)) if is_known else None


class Wait(NamedTuple):
    """A collective that a rank waits in, as JSON can carry it.

    Args:
        group: as in `Call`.
        name: as in `Call`.
        number: how often this rank has come to a collective of this name.
        what: as in `Call`.
        tensors: the first of them.
        num_tensors: how many there are.
        num_elements: of all of them, None where ranks may have others.
    """

    group: str
    name: str
    number: int
    what: str
    tensors: Sequence[tuple[str, Sequence[int | None]]]
    num_tensors: int
    num_elements: int | None


def group_of(ranks: Sequence[int], size: int) -> str:
    """What tells some ranks of a job from others."""
    return "" if len(ranks) == size else f"{zlib.crc32(repr(tuple(ranks)).encode()):x}"


def has_any_rows(request: Request) -> bool:
    """True if each rank may give another number of rows."""
    return request.kind == "all_gather"


def call_of(group: str, request: Request, tensors: Sequence[tf.Tensor]) -> Call:
    """What is asked for."""
    what = request.kind
    if COLLECTIVES[request.kind].is_reduced:
        what += f" ({request.op if request.sent_as is None else f'{request.op}, sent as {request.sent_as.name}'})"
    elif request.kind == "broadcast":
        what += f" (from rank {request.root_rank})"
    given = []
    for tensor in tensors:
        lengths: Shape = tuple(tensor.shape) if tensor.shape.rank is not None else (None,)
        given.append((tensor.dtype.name, (None, *lengths[1:]) if has_any_rows(request) else lengths))
    return Call(group, request.name, what, tuple(given))


def wait_in(call: Call, number: int, num_elements: int | None) -> Wait:
    """What a rank tells that waits in a collective."""
    group, name, what, tensors = call
    return Wait(group, name, number, what, tensors[:MOST_TENSORS], len(tensors), num_elements)


class Comparison:
    """What ranks have told that they wait in, of which rank 0 keeps the newest of each collective."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], tuple[int, Wait]] = {}  # who came first, and with what
        self._awaited: dict[int, list[Wait]] = {}  # by ranks that wait for all others
        self.difference: str | None = None  # the first one, in a sentence

    def note(self, rank: int, waits: Sequence[Sequence[Any]]) -> None:
        """Takes in what a rank waits in now."""
        found = [Wait(*each) for each in waits]
        self._awaited.pop(rank, None)
        if of_all := [wait for wait in found if not wait.group]:
            self._awaited[rank] = of_all
        for wait in found:
            other, before = self._first.get((wait.group, wait.name), (rank, wait))
            if wait.number >= before.number:
                self._first[wait.group, wait.name] = (other, before) if wait.number == before.number else (rank, wait)
            if wait.number == before.number and self.difference is None:
                pair = sorted([(other, before), (rank, wait)], key=lambda each: each[0])
                self.difference = difference(*pair[0], *pair[1])

    @property
    def awaited(self) -> list[tuple[str, int]]:
        """In what ranks wait for all others, by name and number."""
        found = dict.fromkeys((wait.name, wait.number) for waits in self._awaited.values() for wait in waits)
        return list(found)[:MOST_WAITS]


def difference(one: int, here: Wait, other: int, there: Wait) -> str | None:
    """What two ranks give otherwise to one collective, in a sentence; None if they give the same."""
    if here.what != there.what:
        told = f"rank {one} came to {here.what} and rank {other} to {there.what}"
    elif here.num_tensors != there.num_tensors:
        told = f"rank {one} gave {here.num_tensors} tensor(s) and rank {other} {there.num_tensors}"
    else:
        pairs = zip(here.tensors, there.tensors, strict=True)
        found = next((i for i, (own, its) in enumerate(pairs) if differ(own, its)), None)
        if found is not None:
            place = f", as number {found + 1} of {here.num_tensors}" if here.num_tensors > 1 else ""
            given = [shown(*wait.tensors[found]) for wait in (here, there)]
            told = f"rank {one} gave {given[0]} and rank {other} {given[1]}{place}"
        elif None not in (here.num_elements, there.num_elements) and here.num_elements != there.num_elements:
            told = f"rank {one} gave {here.num_elements} element(s) in all and rank {other} {there.num_elements}"
        else:
            return None
    return (
        f"keras-par: in the collective '{here.name}' {told}: let all ranks make the same calls, with tensors of the "
        "same shapes and dtypes."
    )


def differ(one: tuple[str, Sequence[int | None]], other: tuple[str, Sequence[int | None]]) -> bool:
    """True if two tensors cannot be alike, so far as their shapes are known."""
    (dtype, here), (its_dtype, there) = one, other
    lengths = zip(here, there, strict=False)
    return dtype != its_dtype or len(here) != len(there) or any(a != b and None not in (a, b) for a, b in lengths)


def shown(dtype: str, shape: Sequence[int | None]) -> str:
    """A tensor in words."""
    lengths = ["?" if length is None else str(length) for length in shape]
    return f"{dtype} of shape ({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"


class WaitWatch:
    """Tells rank 0 in a thread what this rank waits in for longer than from one look to the next.

    Args:
        size: number of ranks.
        waits: gives what this rank waits in.
        tell: tells that, or nothing if it is the same still; gives the difference that is known.
        end: ends all collectives of this rank with a sentence.
    """

    def __init__(
        self,
        size: int,
        waits: Callable[[], list[Wait]],
        tell: Callable[[list[Wait] | None], str | None],
        end: Callable[[str], None],
    ):
        self._pause, self._waits, self._tell, self._end = max(PAUSE_SECONDS, size / ASKS_A_SECOND), waits, tell, end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kp-waits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._stopped.set()
        self._thread.join(STOP_SECONDS)

    def _watch(self) -> None:
        pause, before = self._pause, list[Wait]()
        told = before
        while not self._stopped.wait(pause):
            now = self._waits()
            lasting = [wait for wait in now if wait in before]
            before = now
            is_same = lasting == told
            pause = min(2 * pause, max(LONGEST_PAUSE_SECONDS, self._pause)) if is_same and told else self._pause
            if is_same and not told:
                continue
            difference = self._tell(None if is_same else lasting)
            told = lasting
            if difference is not None:
                return self._end(difference)
