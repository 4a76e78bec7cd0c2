"""What tests on hosts share: hosts that a file names, with OpenSSH servers or a SLURM, and jobs that leave nothing."""

import os
from pathlib import Path

import pytest

from tests.hosts import jobs, slurm
from tests.hosts.losing import left_alone
from tests.hosts.namespaces import hosts
from tests.hosts.openssh import NOT_INSTALLED, SERVER, servers
from tests.hosts.slurm_jobs import PAGE, WEIGHTS, left_in_queue
from tests.launcher import program
from tests.launcher import run as run_here
from tests.tutorials import File, run, steps_of, write


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


@pytest.fixture(scope="module")
def slurm_hosts(request):
    """A host with SLURM's controller, the first that the test's file names, and one with a node for each other."""
    assert all(map(os.path.exists, slurm.PROGRAMS)), slurm.NOT_INSTALLED
    with hosts(*request.module.NAMES) as made, slurm.cluster(made):
        yield made


@pytest.fixture
def shell(slurm_hosts, tmp_path):
    """A function that gives what a command prints on the first host; at the end no job and no process may be left."""
    before = jobs.Residents(slurm_hosts)

    def said(line: str) -> str:
        return run(line, tmp_path, slurm_hosts.within(slurm_hosts.names[0]))

    yield said
    queued = left_in_queue(said)
    said("scancel --user=root")
    left = before.left()
    for name in slurm_hosts.names:
        slurm_hosts.end(name, before.of(name))
    assert not queued and not left, (queued, left)


@pytest.fixture
def scripts(tmp_path):
    """A function that puts the page's batch scripts there, with one of the tests' programs for the page's.

    It takes the program's name, its arguments and variables.
    """

    def put(name: str, *arguments, **variables: str) -> None:
        for step in steps_of(PAGE):
            if isinstance(step, File):
                write(step, tmp_path / step.name)
        given = [program(name), *map(str, arguments)]
        text = f"import os, runpy, sys\nos.environ |= {variables}\nsys.argv = {given}\n"
        text += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        (tmp_path / "train.py").write_text(text)

    return put


@pytest.fixture(scope="module")
def one_host():
    """A function that says what ranks' last weights are where both are on this host."""
    known = {}

    def weights_of(num_epochs):
        if num_epochs not in known:
            ended = run_here("-np", 2, program("train"), "none", num_epochs, PAUSE="0")
            assert ended.status == 0, ended.stderr
            known[num_epochs] = WEIGHTS.findall(ended.stdout)
        return known[num_epochs]

    return weights_of
