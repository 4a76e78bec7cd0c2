"""How many ranks run where, by torchrun's options and MindSpore's tables; what cannot be is told before any start."""

import json
import os

import pytest

from keras_par.cluster.binding import cores, devices
from keras_par.cluster.hosts import ClusterError, Place
from keras_par.cluster.rank_table import read_rank_table
from keras_par.launch.cli import main
from tests.launcher import program

CORES = len(cores(os.sched_getaffinity(0)))


@pytest.fixture
def shown(capsys, monkeypatch):
    """A function that gives status, standard output and the last line of standard error of a dry run."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RANK_"))]:
        monkeypatch.delenv(name)

    def show(*arguments, script=None):
        try:
            status = main(["run", *map(str, arguments), "--dry-run", script or program("plain")])
        except SystemExit as left:
            status = left.code
        said = capsys.readouterr()
        return status, said.out, (said.err.splitlines() or [""])[-1]

    return show


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--nproc_per_node", 3], "mpirun -np 3 "),
        (["--nproc-per-node=auto"], f"mpirun -np {CORES} "),
        (["--nproc_per_node", 2, "-H", "a,b:5"], "-np 4 * -H a,a,b,b "),
        (["--nproc_per_node", 2, "--nnodes", 1, "-H", "a,b:5"], "-np 2 * -H a,a "),
        (["--nnodes", 1, "--nproc_per_node", 2], "mpirun -np 2 "),
        (["--nnodes", 1, "--node_rank", 0, "--nproc-per-node", 2], "mpirun -np 2 "),
        (["--nnodes=2", "-H", "a:2,b:1,c:4"], "-np 3 * -H a,a,b "),
        (["-np", 3, "-H", "a:2,b:5"], "-np 3 * -H a,a,b "),
    ],
    ids=str,
)
def test_ranks_on_each_host(arguments, wanted, shown, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    status, command, _ = shown("--engine", "mpi", *arguments)
    assert status == 0
    for part in wanted.split(" * "):
        assert part in command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nproc_per_node", "2", "-np", "2"], "argument -np: not allowed with argument --nproc"),
        (["--nproc_per_node", "gpu"], "'gpu' must be a whole number of at least 1"),
        (["--nnodes", 2, "--nproc_per_node", 2], "--nnodes 2 does not fit 1 host(s): name all by -H or --hostfile"),
        (["--nnodes", 2, "--node_rank", 1, "--nproc_per_node", 2], "--node_rank is not needed: one command starts"),
        (["-m"], "there is no module 'no_such_module.x'"),
        ([], "there is no script or program 'no_such_module.x'"),
    ],
    ids=str,
)
def test_what_cannot_be_gets_a_sentence(arguments, said, shown):
    status, _, line = shown(*arguments, script="no_such_module.x" if arguments in ([], ["-m"]) else None)
    assert status == 2 and line.startswith("keras-par run: ") and said in line


def test_a_launcher_that_srun_has_started_several_times_is_refused(shown, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")  # a batch script has it, too
    assert shown("-np", 2)[0] == 0
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    status, _, last = shown("-np", 2)
    assert status == 2 and "srun has started this command 2 times, and each would start all ranks: call" in last
    monkeypatch.setenv("SLURM_PTY_PORT", "40000")  # the shell of `srun --pty bash`
    assert shown("-np", 2)[0] == 0


def test_in_an_allocation_of_slurm_mpirun_gets_to_other_hosts_by_srun(shown, monkeypatch):
    assert "SLURM_" not in shown("--engine", "mpi", "-H", "a,b")[1]
    monkeypatch.setenv("SLURM_JOBID", "7")
    command = shown("--engine", "mpi", "-H", "a,b")[1]
    assert "SLURM_OVERLAP=1" in command and "--oversubscribe" in command


def test_auto_counts_the_gpus_of_a_host(tmp_path, monkeypatch):
    """By stand-ins for their files."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices(tmp_path) == CORES
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert devices(tmp_path) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert devices(tmp_path) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices(tmp_path) == CORES


def old_table() -> dict:
    """A table of three ranks on two servers, as in the tutorial of MindSpore 0.2."""

    def rank(number, server, device):
        devices = [{"device_id": device, "device_ip": f"192.168.100.10{number}"}]
        return {"devices": devices, "rank_id": str(number), "server_id": server}

    group = {
        "device_num": "3",
        "server_num": "2",
        "group_name": "",
        "instance_count": "3",
        "instance_list": [rank(2, "10.0.0.2", "0"), rank(0, "10.0.0.2", "3"), rank(1, "node-1", "0")],
    }
    about = {"board_id": "0x0000", "chip_info": "910", "deploy_mode": "lab", "para_plane_nic_num": "3"}
    return {**about, "group_count": "1", "group_list": [group], "status": "completed"}


def written(folder, content):
    path = folder / "table.json"
    path.write_text(json.dumps(content))
    return path


def test_an_older_rank_table_is_read(tmp_path):
    expected = [Place(0, "10.0.0.2", "3"), Place(1, "node-1", "0"), Place(2, "10.0.0.2", "0")]
    assert read_rank_table(written(tmp_path, old_table())) == expected


def new_table() -> dict:
    devices = [{"device_id": str(number), "rank_id": str(number)} for number in range(2)]
    servers = [{"server_id": "127.0.0.1", "device": devices}]
    return {"version": "1.0", "server_count": "1", "server_list": servers, "status": "completed"}


GONE = object()  # a field that is not there
GROUP, RANK, DEVICE = ("group_list", 0), ("group_list", 0, "instance_list", 1), ("server_list", 0, "device")
# A place in either table, the value there, and what is said of it.
WRONG = [
    (("group_count",), "2", "group_count is 2, but group_list has 1 group(s): write that number"),
    ((*GROUP, "instance_count"), "8", "group_list[0].instance_count is 8, but instance_list has 3 rank(s)"),
    (("status",), "initializing", "status is 'initializing', but must be the text 'completed'"),
    ((*RANK, "rank_id"), "2", "instance_list[1].rank_id is 2, which group_list[0].instance_list[0] has already"),
    ((*RANK, "rank_id"), "3", "instance_list[1].rank_id is 3, but the table has 3 device(s) and none with rank 0"),
    ((*RANK, "server_id"), "-oX", "instance_list[1].server_id is '-oX', but must be a host's name"),
    ((*RANK, "devices"), [], "instance_list[1].devices is empty, but must be a list with the one device of a rank"),
    ((*RANK, "devices"), [{}, {}], "instance_list[1].devices has 2 devices, but must be a list with the one device"),
    ((*RANK, "devices", 0, "device_id"), "0", "devices[0].device_id is 0, which group_list[0].instance_list[0]"),
    ((*RANK, "devices", 0, "device_id"), None, "devices[0].device_id is null, but must be a device's number"),
    ((*DEVICE, 0, "rank_id"), "1", "server_list[0].device[1].rank_id"),
    ((*DEVICE, 0, "rank_id"), GONE, "server_list[0].device[0].rank_id is missing"),
    ((*DEVICE, 0, "device_id"), GONE, "server_list[0].device[0].device_id is missing"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_a_wrong_value_of_a_table_is_named(path, value, said, tmp_path):
    content = place = new_table() if path[0] == "server_list" else old_table()
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    if value is GONE:
        del place[path[-1]]
    with pytest.raises(ClusterError) as caught:
        read_rank_table(written(tmp_path, content))
    assert str(caught.value).startswith(f"keras-par: {tmp_path}/table.json: ") and said in str(caught.value)


def test_the_variable_of_mindspores_scripts_names_a_table(tmp_path, shown, monkeypatch):
    path = written(tmp_path, old_table())
    monkeypatch.setenv("RANK_TABLE_FILE", str(path))
    status, command, _ = shown("--engine", "mpi")
    assert status == 0 and "-H 10.0.0.2,node-1,10.0.0.2 " in command
    assert "-H a,a " in shown("--engine", "mpi", "-H", "a:2")[1]
    status, _, line = shown("-np", 2)
    assert status == 2 and f"-np 2 does not fit RANK_TABLE_FILE='{path}', which has 3 ranks" in line
    status, _, line = shown("--nproc_per_node", 2)
    assert status == 2 and "--nproc_per_node 2 does not fit" in line
    assert shown("--nnodes", 2, "-np", 3)[0] == 0
    monkeypatch.setenv("RANK_TABLE_FILE", str(tmp_path / "nowhere.json"))
    assert "nowhere.json cannot be read" in shown()[2]
