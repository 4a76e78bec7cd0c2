"""`kp.ray.run`: calls a function on ranks that Ray places on its nodes, and returns what each returned."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from keras_par.agent import remote_function
from keras_par.launch import engines
from keras_par.launch.function_call import carry_out, engine_of, prepared, signals_passed_on
from keras_par.ray.actors import RayPlan, places_of

Placement = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@signals_passed_on()
def run(
    train: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_workers: int = 2,
    resources_per_worker: Mapping[str, float] | None = None,
    placement: Placement = "PACK",
    env: Mapping[str, str] | None = None,
    start_timeout: float = 120.0,
    log_dir: str | Path | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Calls a function on several ranks, each below an actor of Ray's, and returns what it returned on each.

    Example:
        ```python
        def train(step):
            kp.init()
            return kp.rank() * step

        kp.ray.run(train, args=(10,), num_workers=2)  # -> [0, 10]
        ```

    It uses the cluster that `ray.init()` has connected to; without that call Ray decides, as always. The actors are on
    a placement group, which is removed at the end. Each starts an agent as `keras-par run` does, so that the ranks'
    output, and which of them failed or hangs, is shown where this is called. Horovod connects the ranks over Gloo, or
    TensorFlow where KERAS_PAR_ENGINE, here or in `env`, says so, or Horovod is not installed here. They have the
    variables of their actor. A GPU that Ray gives a worker is its rank's.

    Args:
        train: the function that each rank calls, which begins with `kp.init()`.
        args: its arguments, the same for each rank.
        kwargs: its arguments by name.
        num_workers: number of ranks.
        resources_per_worker: what each takes of its node, such as `{"CPU": 4, "GPU": 1}`; None takes one CPU.
            TensorFlow gets as many threads as it has CPUs.
        placement: how Ray spreads the workers over nodes: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        env: variables that the ranks get besides.
        start_timeout: seconds that the workers may wait for free resources, and their actors then take to start.
        log_dir: a folder to which the ranks' output is written, too, on each rank's node.
        verbose: True shows all output, as `-v` does.

    Returns:
        What the function returned, a list in the order of the ranks. It was pickled on the way.

    Raises:
        RuntimeError: a rank failed, or its node died, with the sentences that say which, and with what error; Ray has
            no place for the workers or is not installed; or this process is itself a rank.
        TypeError: the function or an argument cannot be pickled.
        ValueError: `placement` or `num_workers` is impossible.
        KeyboardInterrupt: the call was interrupted.

    Costs no collective of its own.
    """
    content = prepared("kp.ray.run", "num_workers", num_workers, train, args, kwargs)
    engine: engines.Engine = "tensorflow" if engine_of(None, env) == "tensorflow" else "gloo"
    resources = dict(resources_per_worker or {"CPU": 1})
    with placed([dict(resources) for _ in range(num_workers)], placement, start_timeout) as group:
        places, bundles = places_of(group)
        command = remote_function.program("", "")  # each worker has files of its own
        given = {**(env or {}), engines.VARIABLE_OF_ENGINE: engine}  # nodes need not have this shell's variables
        plan = RayPlan(engine, places, command, given, None, group, bundles, resources, content, start_timeout)
        return carry_out(plan, command, log_dir, verbose, plan.results.get)


@contextlib.contextmanager
def placed(bundles: list[dict[str, float]], placement: Placement, seconds: float) -> Iterator[Any]:
    """A placement group that is there within the `with`, once Ray has the resources for it.

    Raises:
        RuntimeError: Ray has none in that time, or is not installed.
        ValueError: there is no such placement.
    """
    try:
        import ray
        from ray.util import placement_group, remove_placement_group
    except ImportError as error:
        raise RuntimeError(f"keras-par: kp.ray.run needs Ray ({error}): run 'pip install ray'.") from None
    group = placement_group(bundles, strategy=placement)
    try:
        if not group.wait(seconds):
            free = {name: ray.available_resources().get(name, 0.0) for name in bundles[0]}
            raise RuntimeError(
                f"keras-par: Ray had no place for {len(bundles)} worker(s) of {bundles[0]} by {placement} within "
                f"{seconds:g} s; free are {free} on {len(ray.nodes())} node(s): ask for less, or start more nodes."
            )
        yield group
    finally:
        remove_placement_group(group)
