"""`keras-par run` over hosts that only ssh and the network join: the result is one process's, and troubles are named.

The hosts are network namespaces with OpenSSH servers of their own, which only root may make.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.hosts.namespaces import ONLY_ROOT, address, hosts
from tests.hosts.openssh import NOT_INSTALLED, SERVER, servers
from tests.launcher import Job, of_kind, program, run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason=ONLY_ROOT),
]
FIRST, SECOND = NAMES = ("kp-ssh-0", "kp-ssh-1")
ENGINES = ("mpi", "gloo")
TOGETHER = ("-H", f"{FIRST}:1,{SECOND}:1")
GONE_SECONDS = 5.0


@pytest.fixture(scope="module")
def pair():
    """Two hosts with OpenSSH servers."""
    assert Path(SERVER).exists(), NOT_INSTALLED
    with hosts(*NAMES) as both, servers(both):
        yield both


@pytest.fixture
def job(pair):
    """A function that starts a job on the first host; at the end nothing of it may be left on any host."""
    before = {name: set(pair.pids(name)) for name in NAMES}
    started = []

    def start(*arguments, **variables) -> Job:
        started.append(Job(*arguments, within=pair.within(FIRST), **variables))
        return started[-1]

    yield start
    for each in started:
        each.kill()
    deadline = time.monotonic() + GONE_SECONDS
    while left := {name: set(pair.pids(name)) - before[name] for name in NAMES}:
        if not any(left.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    shown = [
        subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout
        for pids in left.values()
        for pid in pids
    ]
    assert not any(left.values()), shown


@pytest.fixture(scope="module")
def one_host():
    """What the ranks' last weights are where both ranks are on this host."""
    ended = run("-np", 2, program("train"), "none", 1, KERAS_PAR_SHARED_MEMORY="0")
    return weights(ended)


def weights(ended) -> list[str]:
    """The hashes of the ranks' last weights."""
    assert ended.status == 0, ended.stderr
    return sorted(re.findall(r"\[\d\] weights (\w+)", ended.stdout))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("named", ["by -H", "by a host file", "by a rank table"])
def test_ranks_train_over_hosts(engine, named, job, one_host, tmp_path):
    hostfile, table = tmp_path / "hosts", tmp_path / "table.json"
    hostfile.write_text(f"{FIRST} slots=1\n{SECOND} slots=1\n")
    devices = [[{"device_id": "0", "device_ip": address(rank), "rank_id": str(rank)}] for rank in range(2)]
    servers = [{"server_id": address(rank), "device": devices[rank]} for rank in range(2)]
    table.write_text(json.dumps({"version": "1.0", "server_count": "2", "server_list": servers, "status": "completed"}))
    where = {"by -H": TOGETHER, "by a host file": ("--hostfile", hostfile), "by a rank table": ("--rank-table", table)}
    ended = job("--engine", engine, *where[named], "--log-dir", tmp_path / "out", "--tee", program("train"), "none", 1)
    ended = ended.wait()
    assert weights(ended) == one_host
    described = json.loads((tmp_path / "out" / "run.json").read_text())
    assert described["hosts"] == {"0": FIRST, "1": SECOND} and described["engine"] == engine


@pytest.mark.parametrize("engine", ENGINES)
def test_a_port_and_a_key_of_their_own(engine, pair, job, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    settings = tmp_path / "sshd_config"
    settings.write_text(
        f"HostKey {key}\nAuthorizedKeysFile {key}.pub\nPort 2222\nPermitRootLogin yes\nStrictModes no\nPidFile none\n"
    )
    server = pair.start(SECOND, [SERVER, "-D", "-f", str(settings)], os.environ)
    try:
        options = ("--engine", engine, *TOGETHER, "--ssh-port", "2222", "--ssh-identity-file", key)
        ended = job(*options, "--env", "OWN=a b", "--env", "SHELLS", "env", SHELLS="of the shell").wait()
        assert ended.status == 0, ended.stderr
        assert all(
            f"[{rank}] {line}\n" in ended.stdout for rank in range(2) for line in ("OWN=a b", "SHELLS=of the shell")
        )
        ended = job("--engine", engine, *TOGETHER, "-p", "2223", "env").wait()
        assert ended.status == 2
        assert (
            f"host {SECOND} cannot be reached (ssh: connect to host {SECOND} port 2223: Connection refused)"
            in ended.stderr
        )
        assert f"'ssh -p 2223 {SECOND} true' works without a password" in ended.stderr
    finally:
        server.kill()
        server.wait()


def test_a_host_that_is_off(pair, job):
    pair.unplug(SECOND)
    try:
        ended = job(*TOGETHER, "env").wait(30)
    finally:
        pair.plug(SECOND)
    assert (
        ended.status == 2
        and f"host {SECOND} cannot be reached (ssh: connect to host {SECOND} port 22: " in ended.stderr
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_fails_on_another_host(engine, job):
    ended = job("--engine", engine, *TOGETHER, program("train"), "none", 1, "error@9").wait()
    assert ended.status == 1 and "rank 1 failed first" in ended.last_panel
    assert f"Rank 1 on host {SECOND} exited with status 1, at step 9 of epoch 1" in ended.last_panel
    assert "Error: ValueError: this is the trouble" in ended.last_panel
    [began] = re.findall(r"trouble error at ([\d.]+)", ended.stdout)
    assert ended.end - float(began) < 10


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_stopped_on_another_host(engine, job, tmp_path):
    options = ("--engine", engine, "--hang-after", 3, "--log-dir", tmp_path / "out", "--tee")
    ended = job(*options, *TOGETHER, program("train"), "none", 1, "stop@9").wait()
    [hang] = of_kind(tmp_path / "out", "hang")
    assert ended.status == 0 and hang["rank"] == 1 and "is stopped by a signal" in hang["text"]
    assert f"on host {SECOND}" in hang["text"] or SECOND in ended.stderr
    [began] = re.findall(r"trouble stop at ([\d.]+)", ended.stdout)
    assert 2 < hang["time"] - float(began) < 9


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_stops_ranks_on_all_hosts_after_the_same_step(engine, job, tmp_path):
    training = job(
        "--engine",
        engine,
        "--log-dir",
        tmp_path / "out",
        "--tee",
        *TOGETHER,
        program("train"),
        tmp_path / "checkpoints",
        20,
    )
    training.wait_for(tmp_path / "checkpoints" / "CKP-1_14.json", 90)
    training.signal(signal.SIGINT)
    ended = training.wait(30)
    assert ended.status == 130 and re.search(r"stopped at step \d+ of epoch \d+ on all ranks, by SIGINT", ended.stderr)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", ["unplug", "lose"])
def test_a_host_that_is_lost(engine, way, pair, job, tmp_path):
    """Its cable is pulled, or its power cut: the launcher names it, and ends what is left on hosts that it reaches."""
    servers_of_second = pair.pids(SECOND)
    training = job(
        "--engine",
        engine,
        "--log-dir",
        tmp_path / "out",
        "--tee",
        *TOGETHER,
        program("train"),
        tmp_path / "checkpoints",
        50,
    )
    training.wait_for(tmp_path / "checkpoints" / "CKP-1_14.json", 90)
    lost = time.monotonic()
    if way == "unplug":
        pair.unplug(SECOND)
    else:
        pair.lose(SECOND, kept=servers_of_second)
    try:
        ended = training.wait(120, leaves_nothing=False)
        assert ended.status != 0 and f"on host {SECOND} vanished together with the agent" in ended.last_panel
        assert time.monotonic() - lost < 75
        deadline = time.monotonic() + 90
        while any(is_rank(pid) for pid in pair.pids(SECOND)):
            assert time.monotonic() < deadline, "ranks of the host that was cut off go on"
            time.sleep(0.5)
    finally:
        pair.plug(SECOND)


def is_rank(pid: int) -> bool:
    try:
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_is_called_over_hosts(engine, job, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, keras_par as kp\n"
        "def train(x):\n    kp.init()\n    return os.uname().nodename, x + kp.rank(), kp.size()\n"
        f"print(kp.run(train, [5], np=2, hosts='{FIRST}:1,{SECOND}:1', engine='{engine}'))\n"
    )
    ended = job(script, launcher=()).wait()
    assert ended.status == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == str([(FIRST, 5, 2), (SECOND, 6, 2)])
