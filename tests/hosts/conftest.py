"""What tests on hosts share: the hosts that a file names, with OpenSSH servers, and jobs that leave nothing there."""

from pathlib import Path

import pytest

from tests.hosts import jobs
from tests.hosts.losing import left_alone
from tests.hosts.namespaces import hosts
from tests.hosts.openssh import NOT_INSTALLED, SERVER, servers


@pytest.fixture(scope="module")
def cluster(request):
    """The hosts that the test's file names, each with an OpenSSH server, and the folder of their keys."""
    assert Path(SERVER).exists(), NOT_INSTALLED
    with hosts(*request.module.NAMES) as named, servers(named) as keys:
        yield named, keys


@pytest.fixture(scope="module")
def hosts_up(cluster):
    """The hosts alone."""
    return cluster[0]


@pytest.fixture
def job(hosts_up):
    """A function that starts a job on the first host; at the end nothing of it may be left on any host."""
    with jobs.starter(hosts_up) as start:
        yield start


@pytest.fixture
def residents(hosts_up):
    """What is on the hosts before a job; at the end nothing else may be there."""
    before = jobs.Residents(hosts_up)
    yield before
    left = before.left()
    for name in hosts_up.names:
        hosts_up.end(name, before.of(name))
    assert not left


@pytest.fixture(scope="module")
def undisturbed(hosts_up, tmp_path_factory):
    """The last weights of a training on two hosts, neither of which is lost."""
    return left_alone(hosts_up, tmp_path_factory.mktemp("undisturbed"))
