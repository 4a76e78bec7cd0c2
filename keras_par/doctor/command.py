"""The command `keras-par doctor`: says what is here for training, what is broken, and how to repair it."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from keras_par.base.arguments import several


def add_parser(commands) -> None:
    """Adds the sub-command `doctor` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "doctor",
        help="check that ranks can train here, and say how to repair what is broken",
        description=(
            "Looks at what is installed and at this host, lets ranks sum over each engine and "
            "measures how fast they do it (20 seconds), and recommends how to start jobs. The exit status is 1 if "
            "something is broken; the last lines then name the fix."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--np", type=several, default=2, metavar="N", help="ranks of the self-test (%(default)s)")
    parser.add_argument("--engine", choices=("mpi", "gloo", "tensorflow"), help="look at one engine alone")
    parser.add_argument("--no-self-test", dest="self_test", action="store_false", help="leave out the self-test")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints what `arguments` ask for; returns 0, or 1 if something is broken."""
    from keras_par.doctor import diagnosis, tables  # not needed by the other commands, whose start they would delay

    report = diagnosis.examine(arguments.engine, arguments.np, arguments.self_test)
    if arguments.json:
        print(json.dumps(as_json(report), indent=2))
    else:
        tables.show(report, arguments.self_test)
    return 0 if report.is_healthy else 1


def as_json(report) -> dict[str, Any]:
    """The report as docs/doctor.md describes it."""
    facts = asdict(report)
    return {"ok": report.is_healthy} | facts | {"self_test": {each.pop("engine"): each for each in facts["self_test"]}}
