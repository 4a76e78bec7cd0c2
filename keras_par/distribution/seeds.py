"""Lets the random generators of a script that has set no seed begin alike on all ranks."""

import logging
import random
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.communicator import Communicator

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
    all-gathers of some kilobytes a rank.

    Args:
        communicator: of all ranks.
        seed: "own" leaves each rank its own.
    """
    if communicator.size == 1 or seed == "own":
        return
    generators = global_generators()
    own = {each.name: each.state() for each in generators} | {TENSORFLOW: tensorflow_seed()}
    heard = communicator.all_gather_object(own, "kp.seed")
    shared = [each for each in generators if differ([states.get(each.name) for states in heard])]
    for each in shared:
        each.begin(heard[0][each.name])
    names = [each.name for each in shared]
    seeds = [states[TENSORFLOW] for states in heard]
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


def differ(states: list) -> bool:
    """True if rank 0 has this generator, and another rank's is in another state."""
    return states[0] is not None and any(state is not None and state != states[0] for state in states)


def global_generators() -> list[Generator]:
    """Those of Python, NumPy and, if the script has imported it, torch; Keras draws its seeds from Python's."""
    found = [Generator("Python", random.getstate, set_python), Generator("NumPy", numpy_state, set_numpy)]
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        found.append(Generator("torch", lambda: torch.get_rng_state().tolist(), set_torch))  # type: ignore[union-attr]
    return found


def set_python(state) -> None:
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def numpy_state() -> list:
    name, keys, *rest = np.random.get_state()
    return [name, np.asarray(keys).tolist(), *rest]


def set_numpy(state) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.array(keys, np.uint32), *rest))


def tensorflow_seed() -> int | None:
    seed = int(tf.compat.v1.get_seed(1)[0])
    return None if seed == UNSET_SEED else seed


def set_torch(state) -> None:
    import torch

    torch.set_rng_state(torch.tensor(state, dtype=torch.uint8))


def some_seed(states: dict) -> int:
    """A seed that all ranks find in rank 0's states, and that is another one in each job."""
    return random.Random(str(states["Python"])).randrange(1, 2**31)


def share_random_state(what: str) -> None:
    """Gives all ranks rank 0's generator of Python, if theirs differ, from which Keras draws seeds.

    Ranks that hold parts of one variable must draw the same initial values, as `keras.distribution.initialize` sees to
    on JAX. Costs two all-gathers of a few bytes.

    Args:
        what: wants it.
    """
    if world.current().size > 1:
        states = world.current().all_gather_object(random.getstate(), what)
        version, numbers, gauss = states[0]
        random.setstate((version, tuple(numbers), gauss))
