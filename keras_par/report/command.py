"""The sub-command `keras-par report`, which loads what makes the page only when it runs."""

import argparse
from pathlib import Path


def add_parser(commands) -> None:
    """Adds the sub-command `report` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "report",
        help="make one HTML page of a run: losses, step times, slow ranks, events",
        description=(
            "Makes one HTML page of what `keras-par run --log-dir` wrote, also of a run that crashed or still goes "
            "on. The page is a single file that needs neither a server nor the network. Prints its path."
        ),
    )
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="the folder given to --log-dir")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page (default: RUN_FOLDER/report.html)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page, beside it a table if the page has not all ranks, and prints its path; returns 0.

    Raises:
        ValueError: jinja2 is not installed, or the folder holds no run.
        OSError: the folder cannot be read, or the page not be written.
    """
    from keras_par.report import many_ranks, page, run_folder

    folder, output = arguments.folder, arguments.output or arguments.folder / "report.html"
    if not folder.is_dir():
        raise ValueError(f"keras-par: there is no folder '{folder}': give the one that the run had as --log-dir.")
    if not run_folder.holds_run(folder):
        raise ValueError(f"keras-par: '{folder}' holds no run: it has no run.json, no events.jsonl and no rank.0.")
    found, table = run_folder.read(folder), output.with_suffix(".ranks.csv")
    output.write_text(page.render(found, table.name), encoding="utf-8")
    if many_ranks.is_many(found):
        many_ranks.write_table(found, table)
    print(output)
    return 0
