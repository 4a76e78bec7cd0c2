"""`keras-par run` over hosts that only ssh and the network join: the result is one process's, what is wrong is said.

The hosts are network namespaces with OpenSSH servers of their own, which only root may make.
"""

import json
import re
import secrets
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from keras_par.base.version import VERSION
from tests.hosts.clock import clock_ahead
from tests.hosts.jobs import ENDED_WITHIN, began
from tests.hosts.namespaces import FILES, write_names
from tests.hosts.openssh import PLAIN_SHELL, server
from tests.launcher import Ended, program, run
from tests.onlookers import onlooker, require_kept
from tests.patience import here
from tests.ranks.pool import REPOSITORY

pytestmark = pytest.mark.cluster
FIRST, SECOND, THIRD = NAMES = ("kp-ssh-0", "kp-ssh-1", "kp-ssh-2")
ENGINES = ("mpi", "gloo")
SPREAD = (FIRST, SECOND, FIRST)  # where ranks are by a table that is in no order of hosts
TOGETHER = ("-H", f"{FIRST}:1,{SECOND}:1")
PORT = "2222"  # of a server with something that the others do not have
WIDE = "512"  # units, whose gradients are longer than what a narrow link lets through at once


@pytest.fixture
def another_server(cluster):
    """A function that gives the second host one more server, see `server`."""
    all_three, keys = cluster
    return lambda *lines, **covers: server(all_three, SECOND, keys, int(PORT), lines, **covers)


@pytest.fixture(scope="module")
def one_host():
    """A function that says what ranks' last weights are where all are on this host."""
    known = {}

    def weights_of(num_ranks=2, engine="mpi", width="4"):
        place = (num_ranks, engine, width)
        if place not in known:
            options = ("-np", num_ranks, "--engine", engine)
            known[place] = weights(run(*options, program("train"), "none", 1, KERAS_PAR_SHARED_MEMORY="0", WIDTH=width))
        return known[place]

    return weights_of


def weights(ended: Ended) -> list[str]:
    """The hashes of the ranks' last weights."""
    assert ended.status == 0, ended.stderr
    return sorted(re.findall(r"\[\d\] weights (\w+)", ended.stdout))


@pytest.mark.parametrize(
    ("option", "places", "engine"),
    [
        ("-H", NAMES[:2], "gloo"),
        ("-H", NAMES[:2], "tensorflow"),
        ("-H", NAMES, "mpi"),
        pytest.param("-H", NAMES, "gloo", marks=pytest.mark.slow),
        ("--hostfile", NAMES[:2], "mpi"),
        ("--rank-table", SPREAD, "mpi"),
        ("--rank-table", SPREAD, "gloo"),
        pytest.param("--rank-table", SPREAD, "tensorflow", marks=pytest.mark.slow),
    ],
)
def test_ranks_train_over_hosts(option, places, engine, hosts_up, job, one_host, tmp_path):
    """A rank table may spread a host's ranks."""
    where, ranks = tmp_path / "hosts", range(len(places))
    own = {host: [rank for rank in ranks if places[rank] == host] for host in dict.fromkeys(places)}
    if option == "--rank-table":
        where.write_text(json.dumps(rank_table({hosts_up.address(host): held for host, held in own.items()})))
    else:
        where.write_text("".join(f"{host} slots={len(held)}\n" for host, held in own.items()))
    given = ",".join(f"{host}:1" for host in places) if option == "-H" else where
    options = ("--engine", engine, option, given, "--log-dir", tmp_path / "out", "--tee")
    found = weights(job(*options, program("train"), "none", 1).wait())
    assert len(found) == len(places) and len(set(found)) == 1
    if places != SPREAD:
        assert found == one_host(len(places), engine if len(places) > 2 else "mpi")
    described = json.loads((tmp_path / "out" / "run.json").read_text())
    assert described["hosts"] == {str(rank): places[rank] for rank in ranks} and described["engine"] == engine


def rank_table(ranks: dict[str, list[int]]) -> dict:
    """That of hosts, by their addresses, which have a device for each rank."""
    devices = {host: [{"device_id": str(rank), "rank_id": str(rank)} for rank in own] for host, own in ranks.items()}
    listed = [{"server_id": host, "device": found} for host, found in devices.items()]
    return {"version": "1.0", "server_count": str(len(ranks)), "server_list": listed, "status": "completed"}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_secret_is_shown_on_any_host(engine, job, tmp_path):
    secret = secrets.token_hex(16)
    with onlooker() as seen:
        options = ("--engine", engine, *TOGETHER, "--log-dir", tmp_path / "out", "--tee")
        started = job(*options, program("plain"), "hold", 0, tmp_path, "KP_TEST_TOKEN", KP_TEST_TOKEN=secret)
        require_kept(started, seen, tmp_path, secret, 2)


@pytest.mark.parametrize("engine", ["mpi", pytest.param("gloo", marks=pytest.mark.slow)])
def test_a_slow_link_that_loses_packets_changes_nothing(engine, hosts_up, job, one_host):
    expected = one_host(width=WIDE)
    hosts_up.limit(SECOND, 20, "4kb", 1)
    try:
        ended = job("--engine", engine, *TOGETHER, program("train"), "none", 1, WIDTH=WIDE).wait()
    finally:
        lost = hosts_up.free(SECOND)
    assert weights(ended) == expected
    assert lost > 100


@pytest.fixture
def as_debian_has_it(hosts_up):
    """Hosts that find a loopback address for their own names."""
    for name in NAMES:
        hosts_up.name_itself(name, "127.0.1.1")
    yield
    for name in NAMES:
        hosts_up.name_itself(name, hosts_up.address(name))


def test_over_mpi_hosts_may_find_a_loopback_address_for_their_names(as_debian_has_it, job):
    ended = job("--engine", "mpi", *TOGETHER, program("train"), "none", 1, "error@9").wait()
    assert f"Rank 1 on host {SECOND} exited with status 1, at step 9 of epoch 1" in ended.last_panel
    # On a busy machine the launcher may be there before the rank has heard of the failure.
    assert re.search("Then rank 0 (exited with status 1|was ended by the launcher)", ended.last_panel)


@pytest.mark.parametrize("is_told", [pytest.param(False, marks=pytest.mark.slow), True])
def test_over_mpi_a_link_may_lead_to_the_environment(is_told, job, one_host, tmp_path):
    """As where homes are links to a shared disk; its user may have told Open MPI of it, too."""
    (tmp_path / "home").symlink_to(sys.prefix)
    python, told = str(tmp_path / "home/bin/python"), str(tmp_path / "home") if is_told else None
    begin = f"import os, sys; os.execv({python!r}, [{python!r}, '-m', 'keras_par.launch', *sys.argv[1:]])"
    options = ("--engine", "mpi", *TOGETHER)
    ended = job(*options, program("train"), "none", 1, launcher=("-c", begin), OPAL_PREFIX=told).wait()
    assert weights(ended) == one_host()


def test_over_gloo_they_are_told_how_to_change_that(as_debian_has_it, job):
    ended = job("--engine", "gloo", *TOGETHER, program("train"), "none", 1).wait()
    assert ended.status == 1 and "the job did not start" in ended.last_panel
    assert re.search(r"Host kp-ssh-\d finds 127\.0\.1\.1 for its own name, where Horovod's Gloo", ended.last_panel)


def test_over_gloo_a_host_that_does_not_find_its_own_name_is_told(hosts_up, job):
    write_names(FIRST, {})
    try:
        ended = job("--engine", "gloo", "-np", 2, program("train"), "none", 1).wait()
    finally:
        hosts_up.name_itself(FIRST, hosts_up.address(FIRST))
    assert ended.status == 1 and f"host {FIRST} finds no address for its own name" in ended.last_panel


@pytest.mark.parametrize("engine", ENGINES)
def test_a_port_and_a_key_of_their_own(engine, another_server, job, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with another_server(f"AuthorizedKeysFile {key}.pub"):
        options = ("--engine", engine, *TOGETHER, "--ssh-port", PORT)
        given = ("--env", "OWN=a b", "--env", "SHELLS", "env")
        ended = job(*options, "--ssh-identity-file", key, *given, SHELLS="of the shell").wait()
        assert ended.status == 0, ended.stderr
        for rank in range(2):
            assert f"[{rank}] OWN=a b\n" in ended.stdout and f"[{rank}] SHELLS=of the shell\n" in ended.stdout
        refused(job(*options, "env"), f"host {SECOND} cannot be reached (", "Permission denied (publickey)", PORT)


def refused(started, *sayings: str) -> None:
    """Fails unless a job ends at once, with these words in one sentence."""
    ended = started.wait()
    assert ended.status == 2 and len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    for each in sayings:
        assert each in ended.stderr


def test_a_port_where_nobody_listens(job):
    said = f"host {SECOND} cannot be reached (ssh: connect to host {SECOND} port 2223: Connection refused)"
    refused(job(*TOGETHER, "-p", "2223", "env"), said, f"'ssh -p 2223 {SECOND} true' works without a password")


def test_a_host_that_is_off(hosts_up, job):
    hosts_up.unplug(SECOND)
    try:
        refused(job(*TOGETHER, "env"), f"host {SECOND} cannot be reached (ssh: connect to host {SECOND} port 22: ")
    finally:
        hosts_up.plug(SECOND)


def test_a_name_that_is_no_hosts(job):
    name = "kp-nobody"
    refused(
        job("-H", f"{FIRST}:1,{name}:1", "env"),
        f"host {name} cannot be reached (ssh: Could not resolve hostname {name}: ",
    )


def test_a_host_that_was_never_met(hosts_up, job):
    """Whose own key this user has not accepted yet."""
    settings = FILES / FIRST / "ssh" / "ssh_config"
    known = settings.read_text()
    settings.write_text(known.replace("StrictHostKeyChecking no", "StrictHostKeyChecking yes"))
    try:
        refused(job(*TOGETHER, "env"), f"host {SECOND} cannot be reached (Host key verification failed.)")
    finally:
        settings.write_text(known)


def test_a_host_without_the_environment(another_server, job, tmp_path):
    (tmp_path / "empty").mkdir()
    with another_server(covers={Path(sys.executable).parent: tmp_path / "empty"}):
        refused(job(*TOGETHER, "-p", PORT, "env"), f"host {SECOND} has no {sys.executable}: install the same")


def older(package: str, folder: Path) -> dict[Path, Path]:
    """What covers a package so that it says to be an older one."""
    if package == "keras-par":
        path = REPOSITORY / "keras_par" / "base" / "version.py"
        (folder / "version.py").write_text(path.read_text().replace(VERSION, "0.0.1"))
        return {path: folder / "version.py"}
    found = distribution(package)
    path = Path(str(found.locate_file(f"{package}-{found.version}.dist-info")))
    shutil.copytree(path, folder / "older")
    metadata = folder / "older" / "METADATA"
    metadata.write_text(metadata.read_text().replace(f"\nVersion: {found.version}\n", "\nVersion: 0.0.1\n"))
    return {path: folder / "older"}


@pytest.mark.parametrize(("package", "engine"), [("keras-par", "mpi"), ("horovod", "gloo")])
def test_a_host_with_other_packages(package, engine, another_server, job, tmp_path):
    with another_server(covers=older(package, tmp_path)):
        ended = job("--engine", engine, *TOGETHER, "-p", PORT, program("plain"), "sleep", 0, tmp_path).wait()
    assert ended.status == 1 and "the job did not start" in ended.last_panel
    assert f"Host {SECOND} has {package} 0.0.1, this host has " in ended.last_panel
    assert not (tmp_path / "ready.1").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_host_without_the_script(engine, another_server, job, tmp_path):
    for name in ("here", "empty"):
        (tmp_path / name).mkdir()
    script = shutil.copy(program("plain"), tmp_path / "here")
    with another_server(covers={tmp_path / "here": tmp_path / "empty"}):
        ended = job("--engine", engine, *TOGETHER, "-p", PORT, script, "sleep", 0, tmp_path).wait()
    assert ended.status == 2 and "rank 1 failed first" in ended.last_panel
    assert f"Rank 1 on host {SECOND} exited with status 2" in ended.last_panel
    assert "can't open file" in ended.last_panel and "No such file or directory" in ended.last_panel


@pytest.mark.parametrize(("seconds", "engine"), [(1000, "mpi"), (-1000, "gloo")])
def test_a_rank_fails_on_a_host_whose_clock_is_off(seconds, engine, another_server, job, tmp_path):
    """That it failed first is known nevertheless."""
    with another_server(f"SetEnv {PLAIN_SHELL} LD_PRELOAD={clock_ahead(seconds, tmp_path)}"):
        options = ("--engine", engine, *TOGETHER, "-p", PORT)
        ended = job(*options, program("train"), "none", 1, "error@9").wait()
    how = "ahead of" if seconds > 0 else "behind"
    [told] = re.findall(rf"the clock of host {SECOND} is (\d+) s {how} this host's", ended.stderr)
    assert abs(int(told) - abs(seconds)) <= 1
    assert ended.status == 1 and "rank 1 failed first" in ended.last_panel
    assert f"Rank 1 on host {SECOND} exited with status 1, at step 9 of epoch 1" in ended.last_panel
    assert "Error: ValueError: this is the trouble" in ended.last_panel
    assert ended.end - (began("error", ended) - seconds) < here(ENDED_WITHIN)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_is_called_over_hosts(engine, job, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, keras_par as kp\nfrom tests.launcher import rank_of_this_process\n"
        "def where(x):\n    return os.uname().nodename, x + rank_of_this_process()\n"
        f"print(kp.run(where, [5], np=2, hosts='{FIRST}:1,{SECOND}:1', engine='{engine}'))\n"
    )
    ended = job(script, launcher=()).wait()
    assert ended.status == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == str([(FIRST, 5), (SECOND, 6)])
