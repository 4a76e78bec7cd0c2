"""Jobs that torchrun or srun started: each process knows its rank, and the shell of an allocation is no job."""

import os
import subprocess
import sys
import textwrap

import pytest

from keras_par.job import launch_environment
from keras_par.job.launch_environment import Launch, first_host
from tests.jobs import start, write_script
from tests.ranks.pool import WITHOUT_HOROVOD, environment

TRAINING = """
import keras, numpy as np, keras_par as kp
from keras_par.comm import world

kp.init()
keras.utils.set_random_seed(3 + kp.rank())  # the strategy makes the start values equal
with kp.DataParallel().scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
rows = np.random.default_rng(5).normal(size=(32, 4)).astype("float32")
model.fit(rows, rows.sum(1), batch_size=16, epochs=2, verbose=0, shuffle=False)
weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
total = weights.astype("float64").sum()
engine = world.current().engine
print(f"rank {kp.rank()} of {kp.size()}, here {kp.local_rank()}, by {engine}, sum {total:.12g}.\\n", end="")
"""
BY_TENSORFLOW = {"KERAS_PAR_ENGINE": "tensorflow"}
# By which engine ranks are connected that have no launcher of MPI's or Horovod's. A proxy, here one that is not there,
# is for what is outside.
ENGINES = {
    "gloo": {},
    "tensorflow": {**BY_TENSORFLOW, "http_proxy": "http://127.0.0.1:9", "no_proxy": "example.org"},
    "tensorflow, without Horovod": WITHOUT_HOROVOD,
}

# What srun gives its tasks, those of a PMI that no MPI here listens to among them.
SRUN = """
for task in 0 1; do
    SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 \\
    SLURM_STEP_NUM_NODES=1 SLURM_JOB_NODELIST=here PMI_RANK=$task PMI_SIZE=2 {python} {script} &
done
wait
"""


def require_two_equal_ranks(command, engine):
    """Runs a command that starts two processes, which must be two ranks that end with the same weights."""
    result = subprocess.run(
        ["timeout", "150", *command],
        env=environment(**ENGINES[engine]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = sorted(line for line in result.stdout.splitlines() if line.startswith("rank "))
    expected = [f"rank {rank} of 2, here {rank}, by {engine.partition(',')[0]}" for rank in (0, 1)]
    assert [line.partition(", sum")[0] for line in said] == expected, result.stdout
    assert len({line.partition(", sum")[2] for line in said}) == 1, said


@pytest.mark.long
@pytest.mark.parametrize("engine", ["gloo", "tensorflow, without Horovod"])
def test_torchrun_starts_a_job(engine, tmp_path):
    """Its agent listens at MASTER_PORT itself."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    require_two_equal_ranks([*torchrun, write_script(tmp_path, TRAINING)], engine)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["gloo", "tensorflow"])
def test_srun_starts_a_job(engine, tmp_path):
    """By a stand-in for srun."""
    script = textwrap.dedent(SRUN).format(
        job=os.getpid(), python=sys.executable, script=write_script(tmp_path, TRAINING)
    )
    require_two_equal_ranks(["sh", "-c", script], engine)


LATE = """
import os, time
if os.environ["HOROVOD_RANK"] == "1":
    time.sleep({seconds})
import keras_par as kp

kp.init()
print(f"rank {{kp.rank()}} of {{kp.size()}}.\\n", end="")
"""


@pytest.mark.long
def test_ranks_wait_for_one_that_loads_slowly(tmp_path):
    """Horovod's Gloo would let them die after 30 s."""
    job = start("horovodrun --gloo", 2, write_script(tmp_path, LATE.format(seconds=35)))
    assert job.status == 0 and sorted(job.find(r"rank \d of \d")) == ["rank 0 of 2", "rank 1 of 2"], job.output


TASK = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "8"}
GLOO = {"HOROVOD_SIZE": "3", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}
LAUNCHES = {
    "torchrun": (TORCHRUN, Launch(2, "gloo", 1)),
    "torchrun of one": ({"RANK": "0", "WORLD_SIZE": "1"}, Launch(1, "solo")),
    "srun": (TASK, Launch(4, "gloo", 3)),
    "srun with a PMI": (TASK | PMI, Launch(4, "gloo", 3)),
    "srun of one": (TASK | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, Launch(1, "solo")),
    "torchrun below srun": (TASK | TORCHRUN, Launch(2, "gloo", 1)),
    "a shell loop below srun": (TASK | {"RANK_SIZE": "8", "RANK_ID": "7"}, Launch(8, "gloo", 7)),
    "a batch script": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Launch(1, "solo")),
    "a batch script that has a step": (TASK | {"SLURM_STEP_ID": "4294967291"}, Launch(1, "solo")),
    "a batch step by name": (TASK | {"SLURM_STEP_ID": "batch"}, Launch(1, "solo")),
    "srun --pty bash": (TASK | {"SLURM_PTY_PORT": "1", "SLURM_TASK_PID": "1"}, Launch(1, "solo")),
    "srun --pty python": (TASK | {"SLURM_PTY_PORT": "1", "SLURM_TASK_PID": str(os.getpid())}, Launch(4, "gloo", 3)),
    "mpirun in a task": (TASK | MPIRUN, Launch(8, "mpi")),
    "mpirun in a batch script": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"} | MPIRUN, Launch(8, "mpi")),
    "horovodrun in a task": (TASK | GLOO, Launch(3, "gloo")),
    "MPICH's mpirun in a task of one": (
        TASK | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "PMI_RANK": "1", "PMI_SIZE": "2"},
        Launch(2, "mpi"),
    ),
    "mpirun where torchrun's variables are left": (TORCHRUN | MPIRUN, Launch(8, "mpi")),
    "torchrun, by TensorFlow": (TORCHRUN | BY_TENSORFLOW, Launch(2, "tensorflow", 1)),
    "srun with a PMI, by TensorFlow": (TASK | PMI | BY_TENSORFLOW, Launch(4, "tensorflow", 3)),
    "horovodrun in a task, by TensorFlow": (TASK | GLOO | BY_TENSORFLOW, Launch(3, "tensorflow")),
    "mpirun in a task, by TensorFlow": (
        TASK | MPIRUN | BY_TENSORFLOW | {"OMPI_COMM_WORLD_RANK": "5"},
        Launch(8, "tensorflow", 5),
    ),
}


@pytest.mark.parametrize(("variables", "expected"), LAUNCHES.values(), ids=LAUNCHES)
def test_launches(variables, expected, clean, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch_environment.detect() == expected


@pytest.fixture
def clean(monkeypatch):
    """An environment without any launcher's variables."""
    prefixes = ("SLURM_", "PMI_", "OMPI_", "HOROVOD_", "RANK", "WORLD_SIZE", "KERAS_PAR_ENGINE")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "1"}, "RANK=1 is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set but RANK is not: set it to this process's number, from 0 to 3"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK='4' is no whole number from 0 to 3: WORLD_SIZE is 4"),
        ({**TASK, "SLURM_PROCID": "4"}, "SLURM_PROCID='4' is no whole number from 0 to 3: SLURM_STEP_NUM_TASKS is 4"),
    ],
)
def test_impossible_ranks_are_refused(variables, said):
    with pytest.raises(RuntimeError) as caught:
        launch_environment.by_hand(variables)
    assert str(caught.value).startswith(f"keras-par: {said}")


STORE = {**TORCHRUN, "MASTER_ADDR": "node-1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
NODES = {**TASK, "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "n[004-007,9],x", "SLURM_JOB_NODELIST": "n[001-009]"}
MEETINGS = {
    "torchrun": ({**TORCHRUN, "MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}, "node-1:29500"),
    "torchrun, whose agent has the port": ({**STORE, "MASTER_PORT": "29500"}, "node-1:19500"),
    "the same, in the range that is taken instead": ({**STORE, "MASTER_PORT": "12345"}, "node-1:22345"),
    "srun": (NODES, "n004:12387"),
    "another step": ({**NODES, "SLURM_STEP_ID": "1"}, "n004:12388"),
    "srun on one host": ({**NODES, "SLURM_STEP_NUM_NODES": "1"}, "127.0.0.1:12387"),
    "srun without a list": ({**TASK, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}, "10.0.0.7:10000"),
    "srun with the user's own": ({**NODES, "MASTER_ADDR": "n9", "MASTER_PORT": "1234"}, "n9:1234"),
}


@pytest.mark.parametrize(("variables", "expected"), MEETINGS.values(), ids=MEETINGS)
def test_ranks_meet(variables, expected):
    assert str(launch_environment.meeting_point(variables)) == expected


HOSTS = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
OF_MPICH = {"PMI_SIZE": "8", "PMI_RANK": "5", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize("variables", [HOSTS, OF_MPICH], ids=["Open MPI", "MPICH"])
def test_where_ranks_of_mpiruns_hosts_meet_must_be_said(variables):
    with pytest.raises(RuntimeError, match="keras-par: mpirun has started 4 of 8 ranks on this host, and MASTER_ADDR"):
        launch_environment.meeting_point(variables)
    given = {**variables, "MASTER_ADDR": "n1", "MASTER_PORT": "1234"}
    assert str(launch_environment.meeting_point(given)) == "n1:1234"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("a-[1,3]", "a-1"), ("a[08-11],b", "a08"), ("r[2-3]n[7,9]-ib,x[1-2]", "r2n7-ib")],
)
def test_the_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


def test_a_launcher_that_connects_fewer_is_refused(monkeypatch):
    """As srun's PMI does with an MPI that does not listen to it: each process would be a job of its own."""
    from keras_par.comm import horovod

    class Operations:
        """Horovod where MPI knows one process."""

        mpi_built = init = staticmethod(lambda: True)
        size = staticmethod(lambda: 1)

    monkeypatch.setattr(horovod, "load", lambda engine: Operations())
    with pytest.raises(RuntimeError, match="keras-par: 3 processes were started together but mpi connects 1 of them"):
        horovod.HorovodCommunicator("mpi", 3)
