"""What reads inputs from outside, and inputs for it: each target draws one from a seed and feeds it in this process."""

import contextlib
import dataclasses
import io
import json
import math
import os
import random
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from keras_par.agent.__main__ import Agent
from keras_par.agent.notes import KINDS
from keras_par.agent.states import State
from keras_par.base import host_memory, rank_variables
from keras_par.base.backend import keras_backend
from keras_par.base.environment import cache_folder
from keras_par.cluster import binding, hosts, slurm
from keras_par.cluster.rank_table import read_rank_table
from keras_par.job import gpu, launch_environment, rank_heartbeat
from keras_par.launch import cli
from keras_par.launch.goodput import Account
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.supervisor import Supervisor
from keras_par.plan.machine import read_machine
from keras_par.plan.mesh import sizes_for
from keras_par.plan.strategy_file import parse_strategy, read_strategy, strategy_text
from keras_par.report import run_folder
from tests.fuzz import mutations
from tests.launcher import program

REPOSITORY = Path(__file__).resolve().parents[2]
STRATEGIES = [path.read_text() for path in sorted((REPOSITORY / "strategies").glob("*.toml"))]
MACHINES = [path.read_text() for path in sorted((REPOSITORY / "keras_par/searching/machines").glob("*.toml"))]
SERVER = {"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}, {"device_id": 1, "rank_id": 1}]}
TABLE = {"version": "1.0", "server_count": "1", "server_list": [SERVER], "status": "completed"}
RANK = {"rank_id": "0", "server_id": "a", "devices": [{"device_id": "0"}]}
GROUP = {"instance_count": "1", "instance_list": [RANK]}
OLD_TABLE = {"group_count": "1", "group_list": [GROUP], "status": "completed"}


def strategy_file(draw: random.Random, folder: Path) -> None:
    path = folder / "mine.toml"
    path.write_bytes(mutations.text(draw, draw.choice(STRATEGIES)))
    strategy = read_strategy(path)
    assert parse_strategy(strategy_text(strategy), "again", "again").entries == strategy.entries
    sizes_for(strategy.mesh, draw.choice((1, 2, 8, 999_999)))


def machine_file(draw: random.Random, folder: Path) -> None:
    path = folder / "machine.toml"
    path.write_bytes(mutations.text(draw, draw.choice(MACHINES)))
    machine = read_machine(path)
    assert machine.compute_seconds(1e9, 1e6, 3) >= 0
    assert math.isfinite(machine.send_seconds("all_reduce", 10**9, 999_999, "network", is_aside=True))


def rank_table(draw: random.Random, folder: Path) -> None:
    path = folder / "table.json"
    table = mutations.json_value(draw, draw.choice((TABLE, OLD_TABLE)))
    text = json.dumps(table)
    path.write_bytes(mutations.text(draw, text, most=1) if draw.random() < 0.3 else text.encode())
    places = read_rank_table(path)
    assert [place.rank for place in places] == list(range(len(places)))


def named_hosts(draw: random.Random, folder: Path) -> None:
    if draw.random() < 0.5:
        path = folder / "hosts"
        path.write_bytes(mutations.text(draw, "a slots=4\nb slots = 2 # of two\n10.0.0.1 max_slots=8 slots=1\n"))
        found = hosts.read_hostfile(path)
    else:
        found = hosts.parse_hosts(mutations.text(draw, "node-1:4,node-2,10.0.0.1:2").decode(errors="surrogateescape"))
    assert len(hosts.places(min(20, sum(host.slots for host in found)), found)) <= 20


OPTIONS = {
    "run": (
        *("-np", "--nproc-per-node", "auto", "--nnodes", "1:2", "--node-rank", "-H", "localhost:4", "--hostfile"),
        *("--rank-table", "-p", "-i", "--engine", "mpi", "gloo", "--min-np", "--max-np", "--elastic-timeout", "--tee"),
        *("--log-dir", "--merge-stderr", "-v", "--hang-after", "--on-hang", "abort", "--max-restarts", "-m", "--env"),
        *("A=b", "HOME", "2", "2", "4", program("plain"), program("plain"), "pytest", "/", "/dev/null"),
    ),
    "plan": (
        *("megatron", "gpt2", "model.py:build", "--ranks", "--rank", "--mesh", "2x4", "--batch-size", "--input-shape"),
        *("--machine", "cpu-cluster", "--json", "--html", "--search", "dynamic", "--memory", "8GB", "--axes"),
        *("--write", "2", "2", "--ranks=2"),
    ),
    "report": ("-o", "/", "/dev/null/x", "--output", "nowhere", "tests"),
    "doctor": ("--json", "--np", "--engine", "mpi", "--no-self-test", "2"),
    "calibrate": ("-np", "--write", "2", "here"),
    "install-horovod": ("--gpu", "--cache-dir", "here", "--force"),
}
STAND_INS = ("keras_par.planning.dry_run", "keras_par.planning.found")  # which would load TensorFlow
NOT_RUN = ("doctor", "calibrate", "install-horovod")


def command_line(draw: random.Random, folder: Path) -> None:
    command = draw.choice([*OPTIONS, "run", "run", "plan", draw.choice(mutations.WORDS)])
    argv = [command, *(["--dry-run"] if command == "run" else [])]
    argv += [word.replace("\0", "") for word in mutations.words(draw, OPTIONS.get(command, OPTIONS["run"]), 8)]
    said = io.StringIO()
    with contextlib.ExitStack() as within:
        for name in STAND_INS:
            stand_in: Any = ModuleType(name)
            stand_in.plan = stand_in.search = refuse
            within.enter_context(mock.patch.dict(sys.modules, {name: stand_in}))
        for name in NOT_RUN:
            within.enter_context(mock.patch(f"{cli.COMMANDS[name]}.run", lambda _: 0))
        within.enter_context(mock.patch("socket.getaddrinfo", known_address))
        within.enter_context(contextlib.chdir(folder))
        within.enter_context(contextlib.redirect_stderr(said))
        within.enter_context(contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")))
        try:
            status = cli.main(argv)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    lines = said.getvalue().strip().splitlines()
    assert status in (0, 1, 2) and (status == 0 or lines[-1].startswith("keras-par")), (status, lines)
    assert status == 0 or len(lines[-1]) < 12_000


def refuse(*arguments: Any) -> int:
    raise ValueError("keras-par: it was read")


def known_address(host: str, *arguments: Any, **options: Any) -> list:
    """No name server is asked."""
    if host in ("localhost", "127.0.0.1"):
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 0))]
    raise socket.gaierror("it is not known")


VARIABLES = (
    *(name for launcher in rank_variables.LAUNCHERS for name in launcher),
    *("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_PTY_PORT", "SLURM_JOB_ID"),
    *("SLURM_TASK_PID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"),
    *("SLURM_LAUNCH_NODE_IPADDR", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "DEVICE_ID"),
    *("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "KERAS_PAR_JOB", "KERAS_PAR_RESTART_COUNT"),
    *("KERAS_PAR_WATCH", "KERAS_PAR_CACHE", "XDG_CACHE_HOME", "KERAS_BACKEND", "KERAS_HOME", "CUDA_VISIBLE_DEVICES"),
)
SETTINGS = (*mutations.WORDS, "0", "1", "2", "4", "29500", "node[1-3,7],login", "2(x3),1", "1,2,3", "0,1", "a:2")
READERS = (
    launch_environment.detect,
    lambda: launch_environment.meeting_point(os.environ),
    lambda: gpu.device(os.environ, 2),
    lambda: [rank_variables.number(name) for name in ("rank", "size", "local_rank", "local_size")],
    rank_variables.told,
    lambda: slurm.slurm_hosts(os.environ),
    lambda: slurm.tasks_of_step(os.environ),
    lambda: host_memory.remove(os.environ),
    rank_heartbeat.inherited,
    cache_folder,
    keras_backend,
    binding.devices,
)


def environment(draw: random.Random, folder: Path) -> None:
    given = {name: draw.choice(SETTINGS).replace("\0", "") for name in draw.sample(VARIABLES, draw.randrange(1, 8))}
    with mock.patch.dict(os.environ, given, clear=True), mock.patch.object(host_memory, "SHARED", folder):
        os.environ.update({"HOME": str(folder), "PATH": ""})
        for read in READERS:
            accepted(read)


def accepted(read: Any) -> None:
    """Reads something, which may be refused."""
    try:
        read()
    except (RuntimeError, ValueError) as error:
        if not is_refusal(error):
            raise


def is_refusal(error: BaseException) -> bool:
    """True for a sentence for the user."""
    sentence = str(error)
    return sentence.startswith("keras-par: ") and "\n" not in sentence.strip() and len(sentence) < 12_000


NOTE = {"time": 1e9, "call": "fit", "epoch": 1, "step": 2, "marks": 3, "steps": 4, "logs": {"loss": 0.5}}
NOTE |= {"name": "CKP-1_2", "message": "ValueError: x", "is_consequence": False, "on_all_ranks": True}
NOTE |= {"text": "CKP-1_2 in x", "in_memory": False, "taken": 1e9, "user_line": "a.py:1"}
JOB = {"folder": None, "environment": {}, "forward": False, "merge_stderr": False, "verbose": False}
JOB |= {"attempt": 0, "beat": 1.0}


def notes(draw: random.Random, folder: Path) -> None:
    """Notes of a rank's program, on their way through the agent to the launcher and into the log."""
    sent: list[dict[str, Any]] = []
    channel: Any = SimpleNamespace(send=sent.append)
    agent = Agent(0, ["x"], JOB | {"folder": str(folder / "run")}, channel)
    assert agent._log is not None
    try:
        for _ in range(5):
            note = mutations.json_value(draw, NOTE | {"note": draw.choice([*KINDS, "other"])})
            line = json.dumps(note)
            text = mutations.text(draw, line, most=1).decode(errors="replace") if draw.random() < 0.3 else line
            agent._note("notes", f"{text}\n", b"")
    finally:
        for file in filter(None, agent._log._files.values()):
            file.close()
    member: Any = SimpleNamespace(ahead=0.0)
    supervisor: Any = SimpleNamespace(_account=Account(), _folder=RunFolder(None))
    supervisor._account.begin()
    for message in sent:
        Supervisor._note(supervisor, 0, member, message)
    failed = {name: agent._failure[name] for name in ("call", "epoch", "step") if agent._failure}
    assert dataclasses.replace(State(0), **failed).place()


EVENT = {"time": 1e9, "attempt": 0, "event": "crash", "rank": 1, "text": "x", "stacks": {"0": "y"}, "status": 1}
ABOUT = {"num_ranks": 2, "started": 1e9, "command": ["x"], "engine": "mpi", "hosts": {"0": "a"}, "python": "3.11"}


def run_files(draw: random.Random, folder: Path) -> None:
    run, rank = folder / "run", folder / "run" / "rank.0"
    rank.mkdir(parents=True, exist_ok=True)
    for path, content in ((run / "run.json", ABOUT), (run / "events.jsonl", EVENT), (rank / "epochs.jsonl", NOTE)):
        lines = [json.dumps(mutations.json_value(draw, content)) for _ in range(3 if path.suffix == ".jsonl" else 1)]
        path.write_bytes(mutations.text(draw, "\n".join(lines), most=1))
    assert run_folder.read(run).num_ranks >= 0


TARGETS = {
    "strategy files": (strategy_file, 4500),
    "machine files": (machine_file, 2500),
    "rank tables": (rank_table, 3000),
    "hosts": (named_hosts, 2000),
    "command lines": (command_line, 4000),
    "variables": (environment, 2500),
    "notes": (notes, 1000),
    "files of runs": (run_files, 500),
}
