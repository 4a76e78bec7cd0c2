"""`keras-par plan --search`: finds a strategy for ranks that are not there, and writes its file and a page about it."""

import argparse
import json
import sys
from pathlib import Path

from keras_par.distribution.load_strategy import find as find_file
from keras_par.keras_patches.install import install
from keras_par.plan.strategy_file import read_strategy, strategy_text
from keras_par.planning.model_file import build_from
from keras_par.planning.page import write_found
from keras_par.searching.explain import as_json, explanation
from keras_par.searching.model_trace import look_at
from keras_par.searching.search import Asked, found_by


def search(arguments: argparse.Namespace, mesh: tuple[int, ...] | None, sizes: tuple[int, ...]) -> int:
    """Prints what was found; returns the exit status.

    Raises:
        ValueError: nothing fits, or an argument has no such value.
    """
    install()
    said = {}
    if arguments.strategy is not None:
        said = {entry.pattern: entry.axes for entry in read_strategy(find_file(arguments.strategy)).entries}
    given = arguments.batch_size, arguments.search, arguments.memory, mesh, arguments.machine
    asked = Asked(*given, said, arguments.axes)
    name = arguments.write.stem if arguments.write else Path(arguments.model.partition(":")[0]).stem
    answer = found_by(asked, lambda: look_at(lambda: build_from(arguments.model), sizes), arguments.ranks, name)
    if arguments.write:
        arguments.write.write_text(strategy_text(answer.strategy), encoding="utf-8")
        print(f"keras-par: wrote {arguments.write}", file=sys.stderr)
    if arguments.html:
        write_found(answer, arguments.model, arguments.html)
        print(f"keras-par: wrote {arguments.html}", file=sys.stderr)
    print(json.dumps(as_json(answer), indent=1) if arguments.json else explanation(answer))
    return 0
