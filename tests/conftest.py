"""The pools of ranks that the tests of a process share, and the closing lines: how many ranks ran what, how exactly."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.durations import DURATIONS, Recorder, kind_of
from tests.ranks.pool import RankPool
from tests.sweeps import EVERY, LONG_EVERY

RAN, DISTANCES = "keras_par_ran", "keras_par_distances"  # what a worker tells

_pools: dict[tuple[str, int], RankPool] = {}
_ran: Counter[str] = Counter()  # tasks by kind and size of pools
_distances: list[tuple[float, str]] = []


@pytest.fixture(scope="session")
def ranks():
    """A function that returns the pool of a world size, started when it is first asked for."""
    return lambda size: pool("ranks", size)


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


def pytest_runtest_teardown():
    """Between tests, because fixtures and tests hold on to a pool."""
    for each in _pools.values():
        each.renew()


def pytest_sessionfinish(session):
    """Ends the pools. A worker tells the process that began it what its pools have run."""
    for (kind, size), each in _pools.items():
        each.close()
        _ran[f"{kind} {size}"] += each.num_tasks
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[RAN], session.config.workeroutput[DISTANCES] = dict(_ran), _distances


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what is fast, what `sweeps` leaves to `make test-long`, and what that leaves to `make test-all`."""
    for item in items:
        if kind_of(item) == "pure" or item.path.name == "test_exactness.py":
            item.add_marker(pytest.mark.fast)
    for every, mark in ((EVERY, pytest.mark.long), (LONG_EVERY, pytest.mark.slow)):
        seen: Counter[str] = Counter()
        for item in items:
            name = f"{item.path.name}::{item.originalname}"
            is_left = every is EVERY or item.get_closest_marker("long") is not None
            if name in every and is_left and item.get_closest_marker("slow") is None:
                if seen[name] % every[name]:
                    item.add_marker(mark)
                seen[name] += 1


def pytest_configure(config):
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


def pytest_terminal_summary(terminalreporter):
    for pool_of, num_tasks in sorted(_ran.items()):
        kind, size = pool_of.split()
        name = "plain Keras" if kind == "plain" else f"{size} ranks"
        terminalreporter.write_line(f"{name}: {num_tasks} tasks")
    worst: dict[str, float] = {}
    for distance, name in _distances:
        worst[name] = max(distance, worst.get(name, 0.0))
    for name, distance in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        terminalreporter.write_line(f"relative distance from one process {distance:.2e}: {name}")
