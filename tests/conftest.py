"""The pools of ranks that the tests of a process share, and the closing lines: how many ranks ran what, how exactly."""

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

from keras_par.comm import native
from tests import launcher
from tests.branches import note_test
from tests.budget import Budget
from tests.durations import DURATIONS, Recorder, asking_for_pools, kind_of
from tests.ranks.pool import RankPool
from tests.sweeps import ALONE, EVERY, LONG_EVERY, NONE

RAN, DISTANCES, YARDSTICKS = "keras_par_ran", "keras_par_distances", "keras_par_yardsticks"  # what a worker tells
BUDGET = "keras_par_budget"

_pools: dict[tuple[str, int], RankPool] = {}
_ran: Counter[str] = Counter()  # tasks by kind and size of pools
_distances: list[tuple[float, str]] = []


@pytest.fixture(scope="session", autouse=True)
def library():
    """Has the library for shared memory compiled before any job, which would do without it."""
    with contextlib.suppress(RuntimeError):  # there is no compiler, as tests of shared memory will say
        native.library()


@pytest.fixture(scope="session")
def ranks():
    """A function that returns the pool of a world size, started when it is first asked for."""
    return lambda size: pool(os.environ.get("KERAS_PAR_TEST_RANKS", "ranks"), size)


@pytest.fixture(scope="session")
def ranks_of_tensorflow():
    """As `ranks`, connected by TensorFlow."""
    return lambda size: pool("tensorflow", size)


@pytest.fixture(scope="session")
def plain():
    """One process in which keras_par is never imported: the oracle."""
    return pool("plain", 1)


@pytest.fixture
def exactness(request):
    """Notes a measured relative distance for the summary and asserts that it is within the tolerance."""

    def note(distance: float, tolerance: float) -> None:
        _distances.append((float(distance), request.node.name))
        assert distance <= tolerance, f"relative distance {distance:.2e} from one process, more than {tolerance:.0e}"

    return note


def pool(kind: str, size: int) -> RankPool:
    if (kind, size) not in _pools:
        _pools[kind, size] = RankPool(size, kind)
    return _pools[kind, size]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    note_test(item.nodeid)
    RankPool.has_grappler = item.get_closest_marker("grappler") is not None


def pytest_runtest_teardown(item):
    """Between tests, because fixtures and tests hold on to a pool."""
    launcher.kill_all()
    for each in _pools.values():
        each.renew()
    if ("plain", 1) in _pools:
        item.config.pluginmanager.get_plugin(BUDGET).time(pool("plain", 1))


def pytest_sessionfinish(session):
    """Ends the pools. A worker tells the process that began it what its pools have run."""
    for (kind, size), each in _pools.items():
        each.close()
        _ran[f"{kind} {size}"] += each.num_tasks
    if hasattr(session.config, "workeroutput"):
        yardsticks = session.config.pluginmanager.get_plugin(BUDGET).yardsticks
        session.config.workeroutput.update({RAN: dict(_ran), DISTANCES: _distances, YARDSTICKS: yardsticks})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks what is fast, what `sweeps` leaves to `make test-long`, and what that leaves to `make test-all`."""
    for item in items:
        if kind_of(item) == "pure" or item.path.name == "test_exactness.py":
            item.add_marker(pytest.mark.fast)
    for every, mark in ((EVERY, pytest.mark.long), (LONG_EVERY, pytest.mark.slow)):
        seen: Counter[str] = Counter()
        for item in items:
            name = f"{item.path.name}::{item.originalname}"
            is_left = every is EVERY or any(map(item.get_closest_marker, ("long", "cluster")))
            if name in every and is_left and item.get_closest_marker("slow") is None:
                case = item.name.removeprefix(item.originalname)[1:-1]
                is_alone = every is LONG_EVERY and case in ALONE.get(name, ())
                if not is_alone and (every[name] == NONE or seen[name] % every[name]):
                    item.add_marker(mark)
                seen[name] += 1
    if not any("::" in argument for argument in config.args):
        require_cases_alone(items)


def require_cases_alone(items) -> None:
    """Ends the run if `sweeps` names a case that is not there any more, which nothing else would notice."""
    names = {f"{item.path.name}::{item.name}" for item in items}
    functions = {f"{item.path.name}::{item.originalname}" for item in items}
    named = {f"{name}[{case}]" for name, cases in ALONE.items() if name in functions for case in cases}
    if named - names:
        raise pytest.UsageError(f"tests/sweeps.py: ALONE has cases that are not there any more: {named - names}")


def pytest_addoption(parser):
    parser.addoption("--budget", type=int, help="trainings in plain Keras that the run may last as long as")


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")  # whose time the process that began it counts
    config.pluginmanager.register(Budget(None if is_worker else config.getoption("budget")), BUDGET)
    if path := os.environ.get(DURATIONS):
        config.pluginmanager.register(Recorder(Path(path)))
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Workers())


class Workers:
    """Collects what pools in other processes have run, where tests run in several."""

    def pytest_testnodedown(self, node):
        output = getattr(node, "workeroutput", {})
        _ran.update(output.get(RAN, {}))
        _distances.extend(output.get(DISTANCES, []))
        node.config.pluginmanager.get_plugin(BUDGET).yardsticks.extend(output.get(YARDSTICKS, []))

    def pytest_xdist_make_scheduler(self, config, log):
        """One process runs the tests that use pools of several, each of which it starts once; others run the rest.

        Ranks poll, so that those of two such processes would keep each other from the cores.
        """
        if config.getvalue("dist") != "load":  # as `--numprocesses` alone has it
            return None
        from xdist.scheduler import LoadScopeScheduling

        class Scheduling(LoadScopeScheduling):
            def _split_scope(self, nodeid: str) -> str:
                path, _, name = nodeid.partition("::")
                asks = name.partition("[")[0] in asking_for_pools(config.rootpath / path)
                return "pools of ranks" if asks else path

        return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter):
    for pool_of, num_tasks in sorted(_ran.items()):
        kind, size = pool_of.split()
        name = {"plain": "plain Keras", "ranks": f"{size} ranks"}.get(kind, f"{size} ranks of TensorFlow")
        terminalreporter.write_line(f"{name}: {num_tasks} tasks")
    worst: dict[str, float] = {}
    for distance, name in _distances:
        worst[name] = max(distance, worst.get(name, 0.0))
    for name, distance in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        terminalreporter.write_line(f"relative distance from one process {distance:.2e}: {name}")
