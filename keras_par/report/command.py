"""The sub-command `keras-par report`, which loads what draws the page only when it runs."""

import argparse
import importlib.util
import sys
from pathlib import Path

NEEDED = ("jinja2", "matplotlib")


class ReportError(RuntimeError):
    """No page can be made; the message is one sentence that says why and what to do."""


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
    """Writes the page and prints its path; returns 0, or 1 after one sentence about what is wrong."""
    try:
        print(write_page(arguments.folder, arguments.output or arguments.folder / "report.html"))
    except ReportError as error:
        print(f"keras-par report: {error}", file=sys.stderr)
        return 1
    return 0


def write_page(folder: Path, output: Path) -> Path:
    """Writes the page of the run in `folder` to `output` and returns that; beside it a table, if it has not all ranks.

    Raises:
        ReportError: the extra `report` is not installed, `folder` holds no run, or `output` cannot be written.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ReportError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: pip install {' '.join(missing)}"
        )
    from keras_par.report import many_ranks, page, run_folder

    if not folder.is_dir():
        raise ReportError(f"there is no folder '{folder}': give the one that the run had as --log-dir.")
    try:
        is_run = run_folder.holds_run(folder)
    except OSError as error:
        raise ReportError(f"'{folder}' cannot be read ({error.strerror}).") from error
    if not is_run:
        raise ReportError(f"'{folder}' holds no run: it has no run.json, no events.jsonl and no rank.0.")
    run, table = run_folder.read(folder), output.with_suffix(".ranks.csv")
    text = page.render(run, table.name)
    try:
        output.write_text(text, encoding="utf-8")
        if many_ranks.is_many(run):
            many_ranks.write_table(run, table)
    except OSError as error:
        raise ReportError(f"'{output}' cannot be written ({error.strerror}): name another file by -o.") from error
    return output
