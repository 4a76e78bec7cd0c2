"""Which branches of keras_par each test takes, on its ranks and in all it starts: what CI must run, and what not.

make branches
"""

import json
import os
import re
import sqlite3
import sys
from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

MEASURED = "COVERAGE_PROCESS_START"  # by which coverage begins to measure a process
SHOWN_SECONDS = 3.0  # a function of tests that takes less is not worth a line


def note_test(test: str) -> None:
    """What this process does from here on is noted as this test's, where branches are measured."""
    if os.environ.get(MEASURED):
        import coverage

        measuring = coverage.Coverage.current()
        if measuring is not None:
            measuring.switch_context(test)


def test_of(context: str) -> str:
    """The test's name in what coverage calls a context: how a process began, and what it was told since."""
    return re.sub(r" \((setup|call|teardown)\)$", "", context.rpartition("|")[2])


def read(folder: Path) -> dict[str, set[tuple]]:
    """For each test the branches that it took: a file, and two lines that followed one another."""
    found: dict[str, set[tuple]] = defaultdict(set)
    query = (
        "select context, path, fromno, tono from arc "
        "join context on context.id = context_id join file on file.id = file_id"
    )
    for path in folder.glob("of.*"):
        for context, *branch in sqlite3.connect(path).execute(query):
            found[test_of(context)].add(tuple(branch))
    return found


def enough(branches: dict[str, set[tuple]], seconds: Counter) -> list[str]:
    """Tests that take all branches together: one after another that which takes most new ones in a second."""
    missing, chosen = set().union(*branches.values()), []
    left = {test: taken for test, taken in branches.items() if test in seconds}
    missing &= set().union(*left.values())
    while missing:
        left = {test: taken for test, taken in ((each, taken & missing) for each, taken in left.items()) if taken}
        chosen.append(max(left, key=lambda test: len(left[test]) / (seconds[test] + 0.02)))
        missing -= left[chosen[-1]]
    return chosen


def show(branches: dict[str, set[tuple]], seconds: Counter) -> None:
    """Prints how many branches are taken, by what time of tests, and which functions of tests take long besides."""
    chosen = enough(branches, seconds)
    taken: set[tuple] = set()
    all_taken = set().union(*branches.values())
    share = Table("branches", "by tests of, s", title=f"{len(all_taken):,} branches, {sum(seconds.values()):.0f} s")
    for number, test in enumerate(chosen, start=1):
        taken |= branches[test]
        if number % max(1, len(chosen) // 12) == 0:
            spent = sum(seconds[each] for each in chosen[:number])
            share.add_row(f"{100 * len(taken) / len(all_taken):.2f} %", f"{spent:.0f}")
    besides = Counter({test: spent for test, spent in seconds.items() if test not in set(chosen)})
    by_function: dict[str, list[float]] = defaultdict(list)
    for test, spent in besides.items():
        by_function[test.partition("[")[0]].append(spent)
    rest = Table("takes no branch that the others do not", "cases", "s")
    for name, spent in sorted(by_function.items(), key=lambda each: -sum(each[1])):
        if sum(spent) > SHOWN_SECONDS:
            rest.add_row(name, str(len(spent)), f"{sum(spent):.0f}")
    for table in (share, rest):
        Console().print(table)


if __name__ == "__main__":
    durations: Counter[str] = Counter()
    for line in Path(sys.argv[2]).read_text().splitlines():
        test, _, _, spent = json.loads(line)
        durations[test] += spent
    measured = read(Path(sys.argv[1]))
    if not measured:
        sys.exit(f"Nothing was measured: there is no file in '{sys.argv[1]}'.")
    show(measured, durations)
