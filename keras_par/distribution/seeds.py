"""Lets the random generators of a script that has set no seed begin alike on all ranks."""

import hashlib
import json
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_par.base.after_import import after_import
from keras_par.base.generators import numpy_state, set_numpy, set_python
from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs import torch_loader

logger = logging.getLogger("keras_par")

Seed = Literal["shared", "own"]
TENSORFLOW = "TensorFlow"
UNSET_SEED = 87654321  # what TensorFlow reports while no global seed is set


class Generator(NamedTuple):
    """A global generator of random numbers.

    Args:
        name: for the user.
        state: returns its state, as JSON can carry it.
        begin: gives it a state that another rank's `state` returned.
    """

    name: str
    state: Callable[[], Any]
    begin: Callable[[Any], None]


def share(communicator: Communicator, seed: Seed) -> None:
    """Gives all ranks the states of rank 0's generators where they differ, and says so on rank 0.

    Generators that are alike have got the same seed, or none where they always begin alike, as torch's does. Those
    that differ are taken for unseeded, which only TensorFlow's tells. What the script sets later is kept. Costs two
    all-gathers of some bytes a rank, and as many of rank 0's states where they differ. torch, which begins with another
    number in each process, gets one that all ranks share when the script imports it later.

    Args:
        communicator: of all ranks.
        seed: "own" leaves each rank its own.
    """
    if communicator.size == 1 or seed == "own":
        return
    generators = global_generators()
    own = {each.name: digest(each.state()) for each in generators} | {TENSORFLOW: tensorflow_seed()}
    heard = communicator.all_gather_object(own, "kp.seed")
    seed_at_import("torch", some_seed(heard[0]))
    names = [name for name in heard[0] if name != TENSORFLOW and differ([digests.get(name) for digests in heard])]
    if names:
        begin_as_rank_0(communicator, generators, names)
    seeds = [digests[TENSORFLOW] for digests in heard]
    if None in seeds:
        names.append(TENSORFLOW)
        if own[TENSORFLOW] is None:
            tf.random.set_seed(some_seed(heard[0]) if seeds[0] is None else seeds[0])
    if names and communicator.rank == 0:
        logger.info(
            "keras-par: no seed was set before kp.init(), so all ranks begin with rank 0's random numbers (%s): "
            "kp.init(seed='own') leaves each rank its own, keras.utils.set_random_seed sets them",
            ", ".join(names),
        )


def begin_as_rank_0(communicator: Communicator, generators: Sequence[Generator], names: Sequence[str]) -> None:
    """Gives all ranks the states that rank 0's generators of these names have; only rank 0 sends its own."""
    is_first = communicator.rank == 0
    own = {each.name: each.state() for each in generators if each.name in names} if is_first else None
    states = communicator.all_gather_object(own, "kp.seed.states")[0]
    for each in generators:
        if each.name in names:
            each.begin(states[each.name])


def digest(state: Any) -> str:
    """What tells a generator's state from others."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]


def differ(digests: list) -> bool:
    """True if rank 0 has this generator, and another rank's is in another state."""
    return digests[0] is not None and any(each is not None and each != digests[0] for each in digests)


def global_generators() -> list[Generator]:
    """Those of Python, NumPy and, if the script has imported it, torch; Keras draws its seeds from Python's."""
    found = [Generator("Python", random.getstate, set_python), Generator("NumPy", numpy_state, set_numpy)]
    if torch_loader.global_state() is not None:
        found.append(Generator("torch", torch_loader.global_state, torch_loader.set_global_state))
    return found


def tensorflow_seed() -> int | None:
    seed = int(tf.compat.v1.get_seed(1)[0])
    return None if seed == UNSET_SEED else seed


def seed_at_import(name: str, seed: int) -> None:
    """Lets a package begin with `manual_seed(seed)` once it is imported; does nothing if it has been."""
    after_import(name, lambda module: module.manual_seed(seed))


def some_seed(digests: dict) -> int:
    """A seed that all ranks find in rank 0's states, and that is another one in each job."""
    return random.Random(digests["Python"]).randrange(1, 2**31)


def share_random_state(what: str) -> None:
    """Gives all ranks rank 0's generator of Python, if theirs differ, from which Keras draws seeds.

    Ranks that hold parts of one variable must draw the same initial values, as `keras.distribution.initialize` sees to
    on JAX. Costs two all-gathers of a few bytes.

    Args:
        what: wants it.
    """
    if world.current().size > 1:
        own = random.getstate() if world.current().rank == 0 else None
        state = world.current().all_gather_object(own, what)[0]
        if state is not None:  # a rank that is only planned hears nobody but itself
            set_python(state)
