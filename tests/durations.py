"""Shows where the suite's time goes: by kind of test, by phase and by file, from the reports that runs have left.

make durations
"""

import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

DURATIONS = "KERAS_PAR_TEST_DURATIONS"  # the variable that names the file of a run
JOBS = ("tests.launcher", "tests.jobs", "tests.worlds", "tests.hosts", "tests.browser")
POOLS = {"ranks", "ranks_of_tensorflow", "plain"}  # fixtures
KINDS = ("pure", "pools of ranks", "started jobs", "hosts")
PHASES = ("setup", "call", "teardown")


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules of tests that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@cache
def asking_for_pools(path: Path) -> frozenset[str]:
    """The tests and fixtures of a file that ask for plain Keras or several ranks."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    asked = {node.name: {each.arg for each in node.args.args} for node in nodes}
    found = {node.name for node in nodes if "plain" in asked[node.name] or asks_for_several(node)}
    while more := {name for name, arguments in asked.items() if arguments & found} - found:
        found |= more
    return frozenset(found)


def asks_for_several(node: ast.FunctionDef) -> bool:
    """True if a function uses its argument `ranks` for more than one rank, or gives it to another."""
    nodes = list(ast.walk(node))
    num_uses = sum(isinstance(each, ast.Name) and each.id == "ranks" for each in nodes)
    calls = [ast.unparse(each) for each in nodes if isinstance(each, ast.Call)]
    return "ranks" in {each.arg for each in node.args.args} and num_uses > calls.count("ranks(1)")


def kind_of(item) -> str:
    """What a test needs: nothing, pools of ranks, jobs that it starts, or hosts."""
    if item.get_closest_marker("cluster"):
        return "hosts"
    if POOLS & set(item.fixturenames):
        return "pools of ranks"
    return "started jobs" if imports(item.path) & set(JOBS) else "pure"


class Recorder:
    """A plugin that notes how long each phase of each test took, one line of JSON each.

    Args:
        path: of the file that it appends to, which the processes of a run share.
    """

    def __init__(self, path: Path):
        self._path, self._kinds = path, {}

    def pytest_collection_modifyitems(self, items):
        self._kinds |= {item.nodeid: kind_of(item) for item in items}

    def pytest_runtest_logreport(self, report):
        if report.nodeid in self._kinds:  # the process that ran it tells, not the one that collects
            about = [report.nodeid, self._kinds[report.nodeid], report.when, round(report.duration, 3)]
            with self._path.open("a") as file:
                file.write(json.dumps(about) + "\n")


def show(rows: Iterable[tuple[str, str, str, float]], num_files: int = 25) -> None:
    """Prints the tables of what was noted."""
    by_kind: dict[str, Counter] = defaultdict(Counter)
    by_file: Counter[str] = Counter()
    for test, kind, phase, seconds in rows:
        by_kind[kind][phase] += seconds
        by_kind[kind]["tests"] += phase == "call"
        by_file[test.partition("::")[0]] += seconds
    kinds = Table("kind", "tests", *(f"{phase}, s" for phase in PHASES), "together, s")
    for kind in KINDS:
        found = by_kind[kind]
        seconds = [found[phase] for phase in PHASES]
        kinds.add_row(kind, str(found["tests"]), *(f"{each:.0f}" for each in (*seconds, sum(seconds))))
    files = Table("file", "s")
    for name, seconds in by_file.most_common(num_files):
        files.add_row(name, f"{seconds:.0f}")
    for table in (kinds, files):
        Console().print(table)


if __name__ == "__main__":
    show(json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines())
