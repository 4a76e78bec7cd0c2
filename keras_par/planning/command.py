"""The command line of `keras-par plan`; TensorFlow is loaded when it runs, not before."""

import argparse
import json
import os
import sys
from pathlib import Path

from keras_par.base.arguments import not_negative, positive, shown, whole
from keras_par.base.backend import require_tensorflow
from keras_par.plan.options import Search, values_of

DESCRIPTION = """Shows what a rank would hold and send: the layout of each variable, the layouts of the layers' outputs
that follow from them, bytes, and the collectives of a training step. One process traces the step as a rank would; no
rank is started. FUNCTION, in FILE, returns the model, compiled or not."""


def add_parser(commands) -> None:
    """Adds `plan` to the commands of `keras-par`."""
    parser = commands.add_parser(
        "plan", help="show what each rank of a strategy would hold and send", description=DESCRIPTION
    )
    parser.add_argument(
        "strategy", metavar="STRATEGY", nargs="?", help="a name of the catalogue, or the path of a .toml file"
    )
    parser.add_argument(
        "model", metavar="FILE:FUNCTION", help="where the model is built, as model.py:build; directly after STRATEGY"
    )
    parser.add_argument("--ranks", type=positive, required=True, metavar="N", help="number of ranks of the job")
    parser.add_argument("--rank", type=not_negative, default=0, metavar="R", help="the rank to show (default 0)")
    parser.add_argument("--mesh", metavar="AxB", help="sizes of the mesh's axes, as 2x4, instead of the strategy's")
    parser.add_argument(
        "--batch-size", type=positive, default=32, metavar="B", help="rows of a global batch (default 32)"
    )
    parser.add_argument(
        "--input-shape", metavar="AxB", help="sizes that the model's inputs leave open, in their order, as 128x64"
    )
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="what time is predicted for: a file by 'keras-par calibrate', or a name that ships; default: what that "
        "measured here",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PAGE", help="write a page with pictures of mesh, time and memory")
    add_search(parser.add_argument_group("to find the strategy instead"))
    parser.set_defaults(run=run)


def add_search(searching: argparse._ArgumentGroup) -> None:
    searching.add_argument(
        "--search",
        choices=values_of(Search),
        help="find the fastest layouts; those of STRATEGY stay, from which 'propagation' goes on",
    )
    searching.add_argument("--memory", metavar="SIZE", help="of a rank, as 8GB; default: the machine's")
    searching.add_argument(
        "--axes", type=positive, default=2, metavar="N", help="that a mesh may have, 2 or 3 (default 2)"
    )
    searching.add_argument("--write", type=Path, metavar="FILE", help="write the strategy that is found")


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan; returns the exit status.

    Raises:
        ValueError: the arguments do not make one.
        RuntimeError: Keras will choose another backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # tracing needs no device
    require_tensorflow()
    mesh = numbers("mesh", arguments.mesh) or None
    sizes = numbers("input-shape", arguments.input_shape)
    require_together(arguments)
    if arguments.search is not None:
        from keras_par.planning.found import search

        return search(arguments, mesh, sizes)
    from keras_par.planning.dry_run import plan

    if arguments.strategy is None:
        raise ValueError("keras-par: plan needs a strategy before the model: name one, or let --search find it.")
    found = plan(
        arguments.strategy,
        arguments.model,
        arguments.ranks,
        arguments.rank,
        mesh,
        arguments.batch_size,
        sizes,
        arguments.machine,
    )
    if arguments.html:
        from keras_par.planning.page import write_plan

        write_plan(found, arguments.html)
        print(f"keras-par: wrote {arguments.html}", file=sys.stderr)
    print(json.dumps(found.as_json(), indent=1) if arguments.json else found)
    return 0


def require_together(arguments: argparse.Namespace) -> None:
    """Refuses options that would do nothing.

    Raises:
        ValueError: one is for a search and there is none, or the other way round.
    """
    options = ("memory", "write") if arguments.search is None else ("rank",)
    idle = next((option for option in options if getattr(arguments, option)), None)
    if idle == "rank":
        raise ValueError("keras-par: --rank is for one strategy: --write what is found, and plan that.")
    if idle is not None:
        raise ValueError(f"keras-par: --{idle} is for a search: add --search dynamic, or leave it out.")


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    """The numbers of an option such as 2x4; none if it is not given.

    Raises:
        ValueError: they cannot be read.
    """
    if text is None:
        return ()
    try:
        return tuple(-1 if part == "-1" else whole(part, 1) for part in text.split("x"))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"keras-par: --{option} {shown(text)} has no sizes ({error}): give them as 2x4.") from None
