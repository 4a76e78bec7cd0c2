"""A function that ranks call: packed where it is defined, called by this program on each rank, its result kept."""

import io
import linecache
import pickle
import sys
import traceback
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

from keras_par.base.rank_variables import number

RANK = "{rank}"  # in a path: stands for the number of the rank


def program(function: str, result: str) -> list[str]:
    """The command that calls a function on each rank.

    Args:
        function: the file that has it, packed.
        result: the file for what a rank returns, with RANK in its path where ranks share a folder.
    """
    return [sys.executable, "-P", "-m", "keras_par.agent.remote_function", function, result]


def packed(train: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A function and its arguments, with the modules' path and the code of a notebook's cells, for other processes.

    Raises:
        TypeError: it cannot be called, or something that it uses cannot be sent.
    """
    if not callable(train):
        raise TypeError(f"keras-par: {train!r} is no function: give the function that each rank shall call.")
    try:
        content = pickled((train, tuple(args), dict(kwargs)))
    except Exception as error:
        raise TypeError(
            f"keras-par: {name_of(train)} cannot be sent to the ranks ({reason(error)}): let it make what it uses, or "
            "take it as an argument that can be pickled."
        ) from error
    return pickle.dumps({"path": sys.path, "sources": sources(), "function": content})


def pickled(value: Any) -> bytes:
    """A value by cloudpickle, whose functions keep the names of their files, which stacks and AutoGraph need."""
    import cloudpickle

    reduce = cloudpickle.Pickler.dispatch_table[CodeType]

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap(
            {CodeType: lambda code: (code_of, (reduce(code)[1], code.co_filename))}, cloudpickle.Pickler.dispatch_table
        )

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def code_of(arguments: tuple, filename: str) -> CodeType:
    """The code that was pickled."""
    return CodeType(*arguments).replace(co_filename=filename)


def sources() -> dict[str, Any]:
    """The code that is in no file, such as a notebook's cells: stacks show it, and AutoGraph reads it."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}


def name_of(train: Any) -> str:
    """What a function is called, with its line where that is known."""
    name, code = getattr(train, "__name__", type(train).__name__), getattr(train, "__code__", None)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if isinstance(code, CodeType) else name


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def result_file(result: str, rank: int) -> Path:
    """Where a rank's result is kept."""
    return Path(result.replace(RANK, str(rank)))


def main(function: str, result: str) -> None:
    """Calls the function, as a script's own code would run, and keeps what it returns.

    Raises:
        TypeError: its result cannot be sent.
        Exception: what the function raises.
    """
    call = pickle.loads(Path(function).read_bytes())
    sys.path[:] = [*call["path"], *(each for each in sys.path if each not in call["path"])]
    linecache.cache.update(call["sources"])
    sys.excepthook = traceback.print_exception  # which shows the lines of code that are in no file
    train, args, kwargs = pickle.loads(call["function"])
    returned = train(*args, **kwargs)
    try:
        content = pickled(returned)
    except Exception as error:
        raise TypeError(
            f"keras-par: {name_of(train)} returned a {type(returned).__name__}, which cannot be sent back "
            f"({reason(error)}): return numbers, arrays, or of a History its 'history'."
        ) from None
    result_file(result, number("rank")).write_bytes(content)


if __name__ == "__main__":
    from keras_par.agent import remote_function

    remote_function.main(*sys.argv[1:])  # whose functions are pickled by this name; those of __main__ are pickled whole
