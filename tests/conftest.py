"""The pools of ranks that all tests share, and the closing lines: how many ranks ran what, and the worst exactness."""

import pytest

from tests.ranks.pool import RankPool

_pools: dict[tuple[str, int], RankPool] = {}
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
        _distances.append((distance, request.node.name))
        assert distance <= tolerance, f"relative distance {distance:.2e} from one process, more than {tolerance:.0e}"

    return note


def pool(kind: str, size: int) -> RankPool:
    if (kind, size) not in _pools:
        _pools[kind, size] = RankPool(size, kind)
    return _pools[kind, size]


def pytest_sessionfinish():
    for each in _pools.values():
        each.close()


def pytest_terminal_summary(terminalreporter):
    for (kind, size), each in sorted(_pools.items()):
        name = "plain Keras" if kind == "plain" else f"{size} ranks"
        terminalreporter.write_line(f"{name}: {each.num_tasks} tasks")
    worst: dict[str, float] = {}
    for distance, name in _distances:
        worst[name] = max(distance, worst.get(name, 0.0))
    for name, distance in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        terminalreporter.write_line(f"relative distance from one process {distance:.2e}: {name}")
