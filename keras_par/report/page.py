"""Puts the parts of the page into its template."""

import shlex
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from keras_par.report import events, head, number_format
from keras_par.report.run_folder import Run
from keras_par.report.sections import sections


def render(run: Run, table: str = "ranks.csv") -> str:
    """The whole page as HTML; `table` is the name of the file beside it that has all ranks, where the page has not."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=head.title(run),
        command=number_format.clipped(shlex.join(run.command)),
        ending=head.ending(run),
        culprit=head.culprit(run),
        facts=head.facts(run),
        cards=head.cards(run),
        sections=sections(run, table),
        events=events.rows(run),
        num_events=len(events.shown(run)),
        timeline=events.timeline(run) if events.shown(run) else None,
        notes=run.notes,
    )
