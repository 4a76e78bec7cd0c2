"""Makes the page of a run: report.html.j2 says in words what measures, head and events count, page.js draws charts."""

import shlex
from collections import Counter
from pathlib import Path

from keras_par.base import html_page
from keras_par.base.sizes import size
from keras_par.report import charts, head, many_ranks, measures, number_format
from keras_par.report.answer import answer
from keras_par.report.progress import PHASES
from keras_par.report.run_folder import Run

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "uplot" / "uPlot.iife.min.js", FOLDER / "page.js"


def render(run: Run, table: str = "ranks.csv") -> str:
    """The whole page as HTML; `table` is the name of the file beside it that has all ranks, where the page has not."""
    shown = many_ranks.shown(run)
    values = {
        "run": run,
        "command": shlex.join(run.command),
        "begin": measures.span(run)[0],
        "sentence": answer(run),
        "shown": shown,
        "is_many": many_ranks.is_many(run),
        "table_name": table,
        "silent": [rank for rank in range(run.num_ranks) if rank not in run.progress] if run.progress else [],
        "times": sum((progress.step_times for progress in run.progress.values()), Counter()),
        "step_times": {rank: times for rank, progress in shown.items() if (times := progress.step_times)},
        "phases": {rank: spent for rank, progress in shown.items() if sum((spent := progress.seconds).values())},
        "ranking": measures.ranking(run),
        "peaks": {rank: progress.peak_rss for rank, progress in run.progress.items() if progress.peak_rss},
        **{"PHASES": PHASES, "OWN": measures.OWN, "MOST_NAMED": many_ranks.MOST_NAMED},
        **{"charts": charts, "head": head, "measures": measures, "show": number_format, "size": size},
    }
    return html_page.page(FOLDER / "report.html.j2", values, SCRIPTS)
