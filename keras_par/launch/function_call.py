"""`kp.run`: calls a function on several new ranks, from a notebook or a script, and returns what each returned."""

import contextlib
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from keras_par.agent import remote_function
from keras_par.base import rank_variables
from keras_par.base.arguments import MOST
from keras_par.cluster.hosts import Host, parse_hosts, places
from keras_par.cluster.reach import AS_SET, require_reachable
from keras_par.launch import engines
from keras_par.launch.attempts import Attempts, noted_signals
from keras_par.launch.console import Console
from keras_par.launch.engines import Plan
from keras_par.launch.job import Job
from keras_par.launch.next_world import FixedWorlds
from keras_par.launch.run_folder import RunFolder


class Interrupted(KeyboardInterrupt):
    """The user has ended the ranks by a signal, also where the caller takes no notice of it."""

    def __init__(self, number: int):
        super().__init__(f"by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def signals_passed_on() -> Iterator[None]:
    """Gives a signal to the caller's own handler, which may end the process, once all within has been taken away."""
    try:
        yield
    except Interrupted as interrupt:
        signal.raise_signal(interrupt.number)
        raise


@signals_passed_on()
def run(
    train: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 2,
    hosts: str | None = None,
    engine: engines.Engine | None = None,
    env: Mapping[str, str] | None = None,
    log_dir: str | Path | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Calls a function on several ranks, which are new processes, and returns what it returned on each.

    Example:
        ```python
        def train(step):
            kp.init()
            return kp.rank() * step

        kp.run(train, args=(10,), np=2)  # -> [0, 10]
        ```

    It is for notebooks and plain scripts. The ranks are started and watched as by `keras-par run`: their output, and
    the errors of those that fail, are shown where this is called. The function is pickled with what it uses, so that it
    may be a lambda or a notebook's own, and a script needs no `if __name__ == "__main__"`. What the caller has imported
    or has in memory, such as a model, the ranks do not share. Interrupting the call ends the ranks as Ctrl-C does.

    Args:
        train: the function that each rank calls, which begins with `kp.init()`.
        args: its arguments, the same for each rank.
        kwargs: its arguments by name.
        np: number of ranks.
        hosts: where they run, as "node1:4,node2:4"; None for this host. Other hosts must see this Python environment
            and the folder in which the caller works.
        engine: what connects them: "mpi", "gloo" or "tensorflow"; None takes KERAS_PAR_ENGINE, else MPI if Horovod was
            built with it, and TensorFlow where Horovod is not installed.
        env: variables that the ranks get besides those of this process.
        log_dir: a folder to which their output is written, too, and what `keras-par report` reads.
        verbose: True shows all output, as `-v` does.

    Returns:
        What the function returned, a list in the order of the ranks. It was pickled on the way.

    Raises:
        RuntimeError: a rank failed, with the sentences that say which, and with what error; Horovod is missing; or this
            process is itself a rank.
        TypeError: the function or an argument cannot be pickled.
        ValueError: np is no number of ranks, or they do not fit on the hosts.
        KeyboardInterrupt: the call was interrupted.

    Costs no collective of its own.
    """
    content = prepared("kp.run", "np", np, train, args, kwargs)
    where = places(np, [Host("localhost", np)] if hosts is None else parse_hosts(hosts))
    chosen = engine_of(engine, env)
    shared = None if engines.are_here(where) else os.getcwd()
    require_reachable([place.host for place in where])
    with tempfile.TemporaryDirectory(prefix=".keras-par-", dir=shared) as folder:
        function, result = Path(folder) / "function", f"{folder}/result.{remote_function.RANK}"
        function.write_bytes(content)
        command = remote_function.program(str(function), result)
        plan = engines.plan(chosen, where, command, os.environ, env or {}, AS_SET)
        return carry_out(plan, command, log_dir, verbose, lambda rank: kept(remote_function.result_file(result, rank)))


def prepared(
    what: str, name: str, number: Any, train: Callable, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> bytes:
    """The function that each rank calls, packed, once it is sure that ranks may be started.

    Args:
        what: would start them.
        name: of the number of ranks.
        number: of ranks.
        train: the function.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        RuntimeError: this process is a rank.
        TypeError: the function or an argument cannot be pickled.
        ValueError: it is no number of ranks.
    """
    if (variable := rank_variables.told()) is not None:
        raise RuntimeError(
            f"keras-par: {what} starts ranks, but this process is a rank itself ({variable} is set): call the function "
            "directly, or start the script by plain 'python'."
        )
    if isinstance(number, bool) or not isinstance(number, Integral) or not 1 <= int(number) <= MOST:
        raise ValueError(
            f"keras-par: {name}={repr(number)[:40]} is no number of ranks: give a whole number of at least 1."
        )
    return remote_function.packed(train, args, kwargs or {})


def engine_of(wanted: str | None, env: Mapping[str, str] | None) -> engines.Engine:
    """What connects the ranks: the caller's choice, else KERAS_PAR_ENGINE's of the ranks' own variables, else of these.

    Raises:
        RuntimeError: there is no such engine, or it is not complete here.
    """
    try:
        return engines.choose(wanted or (env or {}).get(engines.VARIABLE_OF_ENGINE))
    except engines.EngineError as error:
        raise RuntimeError(f"keras-par: {error}") from None


def carry_out(
    plan: Plan,
    command: Sequence[str],
    log_dir: str | Path | None,
    verbose: bool,
    result: Callable[[int], bytes | None],
) -> list[Any]:
    """Runs a job within this process, whose output is the caller's; what its ranks have returned.

    Args:
        plan: of the job.
        command: what each rank runs.
        log_dir: a folder for the output, or None.
        verbose: True shows all of it.
        result: gives what a rank returned, pickled, None if it did not.

    Raises:
        RuntimeError: a rank failed.
        Interrupted: the user has ended it.
    """
    folder, console = RunFolder(None if log_dir is None else Path(log_dir)), CallersConsole()
    try:
        with noted_signals() as interrupts:
            worlds = FixedWorlds(plan.places)
            job = Job(command, plan.engine, worlds, lambda _: plan, folder, console, interrupts, verbose=verbose)
            status = Attempts(job).run()
    finally:
        console.close()
    if interrupts:
        raise Interrupted(interrupts[0])
    if status != 0:
        raise RuntimeError("\n".join(["keras-par: " + (console.told or "the ranks were ended"), *console.why]))
    return [loaded(rank, result(rank)) for rank in range(len(plan.places))]


class CallersConsole(Console):
    """A console that leaves it to an exception to say why the job failed."""

    told = ""  # who failed
    why: Sequence[str] = ()

    def panel(self, title: str, lines: Sequence[str], stacks: dict[int, str] | None = None) -> None:
        self.told, self.why = title, lines
        if stacks:
            super().panel(title, lines, stacks)


def kept(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def loaded(rank: int, result: bytes | None) -> Any:
    """What a rank has returned.

    Raises:
        RuntimeError: it has not, or it is nothing that this process can have.
    """
    if result is None:
        raise RuntimeError(
            f"keras-par: rank {rank} ended with status 0 before its function returned: let it return in place of "
            "sys.exit()."
        )
    try:
        return pickle.loads(result)
    except Exception as error:
        raise RuntimeError(
            f"keras-par: what rank {rank} returned cannot be read here ({remote_function.reason(error)}): return "
            "numbers, arrays, or of a History its 'history'."
        ) from error
