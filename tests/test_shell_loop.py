"""Jobs started by a plain shell loop: ranks that find each other without a launcher, and launches that are no job."""

import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from keras_par.base import host_memory, rank_variables
from keras_par.base.addresses import require_own_address
from keras_par.base.slots import slots
from keras_par.comm.routes import why_no_nccl
from keras_par.job import gpu, launch_environment, rendezvous
from keras_par.job.launch_environment import Launch, MeetingPoint
from keras_par.job.rendezvous import Register
from tests.jobs import start, write_script
from tests.launcher import run_all
from tests.ranks.pool import environment

TRAINING = """
import keras, numpy as np, keras_par as kp

def test_training():
    kp.init()
    assert kp.size() == kp.local_size() == 2
    assert kp.rank() == kp.local_rank()
    keras.utils.set_random_seed(3)
    with kp.DataParallel().scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    rows = np.random.default_rng(5).normal(size=(70, 4)).astype("float32")
    history = model.fit(rows, rows.sum(1), batch_size=16, epochs=3, verbose=0)
    print("\\n".join(f"rank {kp.rank()} loss {loss:.9g}." for loss in history.history["loss"]), flush=True)
"""

OF_TENSORFLOW = {"KERAS_PAR_ENGINE": "tensorflow"}
LOOP = """
for i in 0 1; do
    mkdir device_$i
    cd device_$i
    export RANK_SIZE=2 RANK_ID=$i DEVICE_ID=$i
    env > env.log
    python -m pytest -q -s -p no:cacheprovider ../script.py > train.log 2>&1 &
    cd ..
done
wait
"""


@pytest.mark.long
def test_a_shell_loop_trains_as_mpirun_does(tmp_path):
    """Rows L5, L7 and L9: a folder, an environment dump and a log for each rank, and a pytest file as the script."""
    script = write_script(tmp_path, TRAINING)
    loop = ["timeout", "180", "sh", "-c", LOOP]  # which ends the whole loop, unlike subprocess's own timeout
    subprocess.run(loop, cwd=tmp_path, env=environment(MASTER_PORT=str(free_port())), check=True)
    under_mpirun = start("mpirun", 2, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", script)
    for rank in (0, 1):
        folder = tmp_path / f"device_{rank}"
        assert f"RANK_ID={rank}\n" in (folder / "env.log").read_text()
        log = (folder / "train.log").read_text()
        assert "1 passed" in log
        losses = [line for line in log.splitlines() if " loss " in line]
        assert len(losses) == 3, log
        assert all(line.startswith(f"rank {rank} ") for line in losses)
        assert all(line in under_mpirun.output for line in losses), (losses, under_mpirun.output)


REFUSED = """
import os
import tensorflow as tf
import keras_par as kp

taken = []
tf.config.list_physical_devices = lambda kind=None: ["gpu 0", "gpu 1"]
tf.config.set_visible_devices = lambda device, kind: taken.append((device, kind))
tf.config.get_logical_device_configuration = lambda device: None
tf.config.experimental.set_memory_growth = lambda device, on: None

for variables in ({"RANK_SIZE": "2", "RANK_ID": "2"}, {"RANK_SIZE": "2", "RANK_ID": "1"}, {"DEVICE_ID": "2"}):
    os.environ.update(variables)
    try:
        kp.init()
    except RuntimeError as error:
        print(error, flush=True)
    for name in variables:
        del os.environ[name]
os.environ["DEVICE_ID"] = "1"
kp.init()
print(f"{kp.size()} rank took {taken}", flush=True)
"""


def test_init_refuses_what_is_no_job_and_takes_the_gpu_of_device_id(tmp_path):
    script = write_script(tmp_path, REFUSED)
    port = str(free_port())
    job = start("python", 1, script, MASTER_PORT=port, HOROVOD_START_TIMEOUT="1")
    assert job.status == 0, job.output
    assert "RANK_ID='2' is no whole number from 0 to 1: RANK_SIZE is 2" in job.output
    assert f"rank 0 of 2 did not come to 127.0.0.1:{port} within 1 s" in job.output
    assert "DEVICE_ID='2' is no whole number from 0 to 1: this process sees 2 GPU(s)" in job.output
    assert "1 rank took [('gpu 1', 'GPU')]" in job.output


PINNED = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
import keras_par as kp

def take(device, what):
    if context.context()._initialized:
        raise RuntimeError("Visible devices cannot be modified after being initialized")  # as TensorFlow's own does
    taken.append((device, what))

taken = []
tf.config.list_physical_devices = lambda kind=None: ["gpu 0", "gpu 1", "gpu 2"]
tf.config.get_logical_device_configuration = lambda device: None
tf.config.set_visible_devices = tf.config.experimental.set_memory_growth = take
if "early" in sys.argv:
    tf.Variable(0)
kp.init()
print(f"rank {kp.rank()} took {taken}\\n", end="", flush=True)
"""


def test_ranks_of_a_host_take_one_gpu_each_unless_there_was_a_tensor_before(tmp_path):
    """By stand-ins for GPUs. Nothing of keras_par's makes a tensor before, after which none can be taken."""
    script = write_script(tmp_path, PINNED)
    jobs = {"two": ("-np", 2, script), "one": ("-np", 1, "--env", "DEVICE_ID=2", script)}
    jobs = run_all(jobs | {"early": ("-np", 2, script, "early")})
    for name, taken in (("two", (0, 1)), ("one", (2,))):
        assert jobs[name].status == 0, (name, jobs[name].stderr)
        for rank, own in enumerate(taken):
            assert f"rank {rank} took [('gpu {own}', 'GPU'), ('gpu {own}', True)]" in jobs[name].stdout, name
    assert jobs["early"].status != 0
    said = r"TensorFlow had started its GPUs, so that rank (\d) cannot have GPU \1 for itself: call kp\.init\(\) before"
    assert re.search(f"came after {said}", jobs["early"].last_panel)


@pytest.mark.parametrize(
    ("gpus", "missing", "said"),
    [
        ([("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")], None, None),
        ([("a", "0"), ("a", "1")], "Horovod was built without NCCL", "Horovod was built without NCCL"),
        ([("a", "0"), ("a", None)], None, "not every rank has a GPU"),
        ([("a", "0"), ("b", "0"), ("b", "0")], None, "ranks 1 and 2 share GPU 0"),
    ],
)
def test_nccl_sums_where_each_rank_has_a_gpu_of_its_own(gpus, missing, said):
    why = why_no_nccl(gpus, missing)
    assert why is None if said is None else why.startswith(said)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK_SIZE": "two", "RANK_ID": "0"}, "RANK_SIZE='two' is no whole number of at least 1"),
        ({"RANK_SIZE": "0", "RANK_ID": "0"}, "RANK_SIZE='0' is no whole number of at least 1"),
        ({"RANK_SIZE": "-2", "RANK_ID": "0"}, "RANK_SIZE='-2' is no whole number of at least 1"),
        ({"RANK_SIZE": "", "RANK_ID": "0"}, "RANK_SIZE='' is no whole number of at least 1"),
        ({"RANK_SIZE": "2.0", "RANK_ID": "0"}, "RANK_SIZE='2.0' is no whole number"),
        ({"RANK_SIZE": "9" * 5000, "RANK_ID": "0"}, "is no whole number of at least 1"),
        ({"RANK_SIZE": "4"}, "RANK_SIZE=4 is set but RANK_ID is not: set it to this process's number, from 0 to 3"),
        ({"RANK_SIZE": "4", "RANK_ID": "4"}, "RANK_ID='4' is no whole number from 0 to 3: RANK_SIZE is 4"),
        ({"RANK_SIZE": "4", "RANK_ID": "-1"}, "RANK_ID='-1' is no whole number from 0 to 3"),
        ({"RANK_SIZE": "4", "RANK_ID": "one"}, "RANK_ID='one' is no whole number from 0 to 3"),
        ({"RANK_SIZE": "1", "RANK_ID": "1"}, "RANK_ID='1' is no whole number from 0 to 0"),
        ({"RANK_ID": "0"}, "RANK_ID=0 is set but RANK_SIZE is not: set it to the number of processes of the job"),
        ({"RANK_ID": "1"}, "RANK_ID=1 is set but RANK_SIZE is not: set it to the number of processes of the job"),
    ],
)
def test_impossible_ranks_are_refused(variables, said):
    with pytest.raises(RuntimeError) as caught:
        launch_environment.by_hand(variables)
    assert said in str(caught.value)
    assert str(caught.value).startswith("keras-par: ")


GARBAGE = {
    "OMPI_COMM_WORLD_SIZE": launch_environment.detect,
    "PMI_SIZE": launch_environment.detect,
    "OMPI_COMM_WORLD_RANK": lambda: rank_variables.number("rank"),
    "HOROVOD_LOCAL_SIZE": lambda: rank_variables.number("local_size"),
    "KERAS_PAR_RESTART_COUNT": host_memory.attempt,
    "KERAS_PAR_JOB": host_memory.folder,
}


@pytest.mark.parametrize("text", ["two", "-1", "9" * 31, "1.5", "a/../b", " "])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_in_a_launchers_variable_is_named(name, text, monkeypatch):
    monkeypatch.setenv(name, text)
    if name == "KERAS_PAR_JOB" and text in ("two", "-1", "9" * 31):
        return
    with pytest.raises(RuntimeError, match=f"keras-par: {name}='.*' is no (whole number|job's name)"):
        GARBAGE[name]()


def test_garbage_in_what_horovodrun_sets_is_named(monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    for text in ("two", "0", ""):
        monkeypatch.setenv("HOROVOD_SIZE", text)
        with pytest.raises(RuntimeError, match=rf"keras-par: HOROVOD_SIZE='{text}' is no whole number of at least 1"):
            launch_environment.detect()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch(1, "solo")),
        ({"RANK_SIZE": "1"}, Launch(1, "solo")),
        ({"RANK_SIZE": "1", "RANK_ID": "0"}, Launch(1, "solo")),
        ({"RANK_SIZE": "8", "RANK_ID": "7"}, Launch(8, "gloo", 7)),
        ({"RANK_SIZE": "8", "RANK_ID": "7", "OMPI_COMM_WORLD_SIZE": "2"}, Launch(2, "mpi")),
        ({"RANK_SIZE": "bad", "PMI_SIZE": "2"}, Launch(2, "mpi")),
        ({"RANK_SIZE": "8", "HOROVOD_SIZE": "3", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, Launch(3, "gloo")),
        (OF_TENSORFLOW | {"RANK_SIZE": "8", "RANK_ID": "7"}, Launch(8, "tensorflow", 7)),
        (
            OF_TENSORFLOW | {"RANK_ID": "7", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
            Launch(2, "tensorflow", 1),
        ),
        (
            OF_TENSORFLOW | {"HOROVOD_SIZE": "3", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"},
            Launch(3, "tensorflow"),
        ),
        (OF_TENSORFLOW, Launch(1, "solo")),
        ({"KERAS_PAR_ENGINE": "gloo", "OMPI_COMM_WORLD_SIZE": "2"}, Launch(2, "mpi")),  # which kp.init() then refuses
    ],
)
def test_a_launcher_wins_over_a_shell_loop(variables, expected, monkeypatch):
    for name in ("RANK_SIZE", "RANK_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch_environment.detect() == expected


def test_ranks_meet_where_torchrun_would():
    assert launch_environment.meeting_point({}) == MeetingPoint("127.0.0.1", 29500, 120)
    named = {"MASTER_ADDR": "node-1", "MASTER_PORT": "1234", "HOROVOD_START_TIMEOUT": "7"}
    assert launch_environment.meeting_point(named) == MeetingPoint("node-1", 1234, 7)
    for name, value in (("MASTER_PORT", "http"), ("MASTER_PORT", "70000"), ("HOROVOD_START_TIMEOUT", "0")):
        with pytest.raises(RuntimeError, match=f"{name}='{value}' is no whole number"):
            launch_environment.meeting_point({name: value})


def test_the_device_is_a_gpu_where_there_are_any():
    assert gpu.device({}, 4) is None
    assert gpu.device({"DEVICE_ID": "3"}, 4) == 3
    assert gpu.device({"DEVICE_ID": "3"}, 0) == 3
    for value in ("4", "-1", "gpu"):
        with pytest.raises(RuntimeError, match=f"DEVICE_ID='{value}' is no whole number from 0 to 3.*4 GPU"):
            gpu.device({"DEVICE_ID": value}, 4)


@pytest.mark.parametrize(
    ("device", "num_gpus", "size", "taken"),
    [
        (None, 4, 4, [0, 1, 2, 3]),
        (None, 8, 2, [0, 1]),
        (None, 1, 2, [0, 0]),  # each process sees one of its own, by CUDA_VISIBLE_DEVICES
        (3, 4, 2, [3, 3]),
        (None, 0, 2, [None, None]),
        (1, 0, 2, [None, None]),
        (None, 2, 1, [None]),
        (1, 2, 1, [1]),
    ],
)
def test_what_each_rank_pins(device, num_gpus, size, taken):
    assert [gpu.own_gpu(device, num_gpus, rank, size) for rank in range(size)] == taken


@pytest.fixture
def meeting(monkeypatch):
    """A free port, at which ranks wait two seconds for each other."""
    for name in ("HOROVOD_HOSTNAME", "HOROVOD_GLOO_IFACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rendezvous, "HEARD_SECONDS", 0.5)
    return MeetingPoint("127.0.0.1", free_port(), 2)


def meet(meeting, *ranks) -> list:
    """What each (rank, size, host) gets, all coming at the same time: its variables, or why it is refused."""

    def one(rank):
        try:
            return rendezvous.meet(rank[0], rank[1], meeting, rank[2])
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(one, ranks))


def test_ranks_that_meet_know_their_places(meeting):
    found = meet(meeting, (1, 3, "b"), (2, 3, "a"), (0, 3, "a"))
    places = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    assert [[variables[f"HOROVOD_{name}"] for name in places] for variables in found] == [
        ["1", "3", "0", "1", "1", "2", "b"],
        ["2", "3", "1", "2", "0", "1", "a"],
        ["0", "3", "0", "2", "0", "2", "a"],
    ]
    for variables in found:
        assert variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
        assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == str(meeting.port)
        assert variables["HOROVOD_CONTROLLER"] == variables["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert variables["HOROVOD_GLOO_IFACE"] == "lo"


def test_a_chosen_interface_is_kept(meeting, monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "ib0")
    [variables] = meet(meeting, (0, 1, "a"))
    assert variables["HOROVOD_GLOO_IFACE"] == "ib0"


def test_places_are_those_of_horovods_launcher():
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    theirs = get_host_assignments(parse_hosts("a:2,b:1,c:3"), 6)
    ours = slots(["a", "a", "b", "c", "c", "c"])
    assert [vars(slot) for slot in ours] == [vars(slot) for slot in theirs]


def enter_three(own_address: str) -> tuple[list, int | None]:
    """What the ranks of two hosts are told when the second finds `own_address` for itself, and how many may meet."""
    register = Register(3, MeetingPoint("localhost", 0, 1))
    ranks = [
        ("node-1", "10.0.0.1", "127.0.0.1"),
        ("node-1", "10.0.0.1", "127.0.1.1"),  # what a host often has for its own name
        ("node-2", own_address, "10.0.0.1"),
        ("node-1", "10.0.0.1", "127.0.0.1"),
    ]
    told = [
        register.enter(number % 3, 3, process=str(number % 3), engine="gloo", host=host, own_address=own, reached=to)
        for number, (host, own, to) in enumerate(ranks)
    ]
    register.close()
    return told, register._sizes.get("global")


def test_ranks_connect_by_the_address_that_other_hosts_reach():
    told, size = enter_three("10.0.0.2")
    places = slots(["node-1", "node-1", "node-2"])
    missing = [{"missing": [1, 2], "others": 0}, {"missing": [2], "others": 0}]
    assert told == [*missing, *({"slot": vars(places[rank]), "address": "10.0.0.1"} for rank in (2, 0))]
    assert size == 3


@pytest.mark.parametrize("own_address", ["127.0.1.1", "::1", "no address"])
def test_a_host_that_gloo_cannot_reach_by_its_name_is_named_on_all_ranks(own_address):
    told, size = enter_three(own_address)
    assert told[2] == told[3]
    assert f"Host node-2 finds {own_address} for its own name" in told[2]["refused"]
    assert size is None


def test_over_gloo_a_host_must_find_its_own_name(monkeypatch):
    require_own_address()
    monkeypatch.setattr("socket.gethostname", lambda: "nowhere.invalid")
    with pytest.raises(RuntimeError, match=r"host nowhere\.invalid finds no address for its own name, which Horovod's"):
        require_own_address()


# Who comes, how many of them are refused, and what they are told.
REFUSALS = {
    "a second process with a rank": (
        [(0, 2), (1, 2), (1, 2)],
        (1, "another process has RANK_ID=1 already at {place}: give every process"),
    ),
    "a second rank 0": (
        [(0, 2), (0, 2), (1, 2)],
        (1, "found port {port} busy, by another job or by a second process with RANK_ID=0"),
    ),
    "different sizes, at once": (
        [(0, 3), (1, 3), (2, 4)],
        (3, "rank 2 was started with RANK_SIZE=4 but rank 0 at {place} with RANK_SIZE=3"),
    ),
    "a missing rank": (
        [(0, 3), (1, 3)],
        (2, "rank 2 of 3 did not come to {place} within 2 s: start a process for each RANK_ID"),
    ),
    "a missing rank 0": (
        [(1, 2)],
        (1, "rank 0 of 2 did not come to {place} within 2 s", "Connection refused", "MASTER_ADDR", "MASTER_PORT"),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_ranks_that_make_no_job_are_refused(name, meeting):
    ranks, (num_refused, *said) = REFUSALS[name]
    begin = time.monotonic()
    found = meet(meeting, *((*rank, "a") for rank in ranks))
    assert "at once" not in name or time.monotonic() - begin < meeting.seconds
    sentences = [answer for answer in found if isinstance(answer, str)]
    assert len(sentences) == num_refused, found
    for words in said:
        words = words.format(place=f"127.0.0.1:{meeting.port}", port=meeting.port)
        assert all(words in sentence for sentence in sentences), found


def test_a_host_without_an_address_is_named():
    [sentence] = meet(MeetingPoint("no-such-host.invalid", 29500, 0.1), (1, 2, "a"))
    assert "did not come to no-such-host.invalid:29500" in sentence


def test_a_rank_0_that_ends_early_is_told_from_one_that_never_came(meeting):
    answers = iter([{"missing": [0, 2], "others": 0}, ConnectionRefusedError()])

    def enter():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(RuntimeError, match="rank 0 has ended, and ranks 0, 2 of 3 had not come"):
        rendezvous.wait(enter, 1, 3, meeting)


def test_a_busy_port_is_refused_at_once(meeting):
    """By another program, which a rank other than 0 notices too."""
    with HTTPServer(("127.0.0.1", meeting.port), BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        begin = time.monotonic()
        first, second = meet(meeting, (0, 2, "a"), (1, 2, "a"))
        assert time.monotonic() - begin < meeting.seconds
        other.shutdown()
    assert f"rank 0 found port {meeting.port} busy" in first and "set MASTER_PORT to a free port" in first
    assert f"rank 1 found another program than rank 0 at 127.0.0.1:{meeting.port}: set MASTER_PORT" in second


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
