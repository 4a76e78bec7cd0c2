"""The command line: what is wrong gets one sentence, what is right reaches the script as it was written."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from keras_par.launch.cli import main
from keras_par.launch.engines import EngineError, choose
from tests.launcher import PROGRAMS, program, run
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment

WRONG = {
    "a folder of logs that is no run's": (["-np", "1", "--log-dir", ".", program("plain")], "other things in it"),
    "an unknown option": (["--colour", "x.py"], "unrecognized arguments: --colour"),
    "no ranks": (["-np", "0", "x.py"], "'0' must be a whole number of at least 1"),
    "31 digits of ranks": (["-np", "9" * 31, "x.py"], "must be a whole number of at most 999999"),
    "5,000 digits of ranks": (["-np", "9" * 5000, "x.py"], "must be a whole number of at most 999999"),
    "no digit": (["-np", "²", "x.py"], "'²' must be a whole number of at least 1"),
    "a name of 5,000 letters": (["-np", "1", "x" * 5000], "cannot be used (File name too long)."),
    "a name on two lines": (["-np", "1", "a\nb"], "there is no script or program 'a b'."),
    "half a rank": (["-np", "1.5", "x.py"], "'1.5' must be a whole number"),
    "no number of ranks": ([program("plain")], "how many ranks shall there be? Say -np N"),
    "no script": (["-np", "2"], "the following arguments are required: script.py"),
    "a missing script": (["-np", "2", "no such.py"], "there is no script or program 'no such.py'"),
    "a folder": (["-np", "2", "tests"], "there is no script or program 'tests'"),
    "hosts and a host file": (["-H", "a", "--hostfile", "b", "x.py"], "not allowed with argument"),
    "too few slots": (["-np", "3", "-H", "localhost:2", program("plain")], "3 ranks"),
    "a host without slots": (["-H", "localhost:x", program("plain")], "localhost:x"),
    "a host that is not there": (["-H", "no-such-host:2", program("plain")], "no-such-host"),
    "a missing host file": (["--hostfile", "nowhere", program("plain")], "nowhere cannot be read"),
    "a negative time": (["-np", "2", "--hang-after", "-1", "x.py"], "'-1' must be a number of seconds above 0"),
}
WRONG = {name: (["run", *arguments], sentence) for name, (arguments, sentence) in WRONG.items()} | {
    "a report": (["report", "x" * 5000], "keras-par report: 'xxx"),
    "31 digits of ranks of a plan": (["plan", "megatron", "m.py:f", "--ranks", "9" * 31], "at most 999999"),
    "no ranks of a plan": (["plan", "megatron", "m.py:f", "--ranks", "0"], "at least 1"),
    "a mesh": (["plan", "megatron", "m.py:f", "--ranks", "2", "--mesh", "1x" + "9" * 31], "has no sizes ('999"),
    "one rank of a doctor": (["doctor", "--np", "1"], "'1' must be a whole number of at least 2"),
    "a list": (["calibrate", "-np", "2", "--write", "/dev/null/x/y"], "cannot be used (Not a directory)."),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.values(), ids=WRONG)
def test_a_wrong_command_line_gets_one_sentence(arguments, sentence, capsys):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr()
    last = said.err.strip().splitlines()[-1]
    begin = "keras-par run: " if arguments[0] == "run" else "keras-par"
    assert last.startswith(begin) and sentence in last and len(last) < 3000
    assert said.out == ""


def test_a_folder_that_is_gone_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", 'rmdir "$0"; exec "$@"', str(gone), sys.executable, "-m", "keras_par.launch"]
    for more in (
        ["-np", "2", program("plain"), "show", "0"],
        ["-np", "1", "--log-dir", "out", program("plain"), "show"],
    ):
        done = subprocess.run(
            [*command, *more], cwd=gone, env=environment(), capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert done.stderr == "keras-par run: the folder that this was called in is gone: change to another.\n"
        gone.mkdir()


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_a_rank_table_gives_each_rank_its_device(engine, tmp_path):
    path = tmp_path / "table.json"
    devices = [{"device_id": "5", "rank_id": "1"}, {"device_id": "7", "rank_id": "0"}]
    server = {"server_id": "127.0.0.1", "device": devices}
    table = {"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"}
    path.write_text(json.dumps(table))
    job = run("--engine", engine, "--rank-table", path, program("plain"), "environment", 0, "DEVICE_ID")
    assert job.status == 0, job.stderr
    assert sorted(line.split(" [")[0] for line in job.stdout.splitlines()) == ["[0] DEVICE_ID=7", "[1] DEVICE_ID=5"]


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_no_shell_sees_names_and_arguments(engine, tmp_path):
    folder = tmp_path / "a 'b' \"c\"; touch hacked; $(touch hacked) `touch hacked` & \\"
    folder.mkdir()
    script = folder / "my script; echo.py"
    script.write_bytes((PROGRAMS / "plain.py").read_bytes())
    odd = ["a b", "it's", '"', ";", "$HOME", "*", "", "\\", "-np", "--", "ä"]
    job = run("-np", 2, "--engine", engine, script, "show", 0, *odd)
    assert job.status == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == [f"[{rank}] rank {rank} got {odd}" for rank in range(2)]
    assert not list(tmp_path.rglob("hacked")) and not (REPOSITORY / "hacked").exists()


@pytest.mark.parametrize(("engine", "begin"), [("mpi", "mpirun -np 2"), ("gloo", "keras_par.launch.gloo -H localhost")])
def test_the_shown_command_can_be_run(engine, begin, tmp_path):
    shown = run("-np", 2, "--engine", engine, "--dry-run", program("plain"), "show", 0, "it's", "a;b").stdout
    assert begin in shown and "OMP_NUM_THREADS" not in shown  # the tests' environment has that
    result = subprocess.run(["bash", "-c", shown], cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        assert f"rank {rank} got [\"it's\", 'a;b']" in result.stdout  # mpirun may print both on one line


def test_ranks_get_cores_and_threads_of_their_own():
    names = ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "HOROVOD_CYCLE_TIME"]
    num_cores = len(os.sched_getaffinity(0))
    free = {"OMP_NUM_THREADS": None, "HOROVOD_CYCLE_TIME": None}
    job = run("-np", 2, program("plain"), "environment", 0, *names, **free)
    lines = sorted(line[4:] for line in job.stdout.splitlines())
    each = num_cores // 2
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert f"OMP_NUM_THREADS={each} TF_NUM_INTRAOP_THREADS={each} HOROVOD_CYCLE_TIME=0.2" in line
        assert line.endswith(str(list(range(rank * each, (rank + 1) * each))))
    crowded = run("-np", 2 * num_cores, program("plain"), "environment", 0, "HOROVOD_CYCLE_TIME", **free)
    assert f"{2 * num_cores} ranks share the {num_cores} core(s)" in crowded.stderr
    assert f"HOROVOD_CYCLE_TIME=None {list(range(num_cores))}" in crowded.stdout


def test_what_the_user_has_set_stays():
    names = ["OMP_NUM_THREADS", "HOROVOD_CYCLE_TIME"]
    job = run("-np", 2, program("plain"), "environment", 0, *names, OMP_NUM_THREADS="3", HOROVOD_CYCLE_TIME="7")
    assert job.stdout.count("OMP_NUM_THREADS=3 HOROVOD_CYCLE_TIME=7") == 2


def test_modules_programs_and_pytest_can_be_started(tmp_path):
    module = run("-np", 2, "-m", "tests.programs.plain", "show", 0, "x")
    assert sorted(module.stdout.splitlines()) == ["[0] rank 0 got ['x']", "[1] rank 1 got ['x']"]
    python = run("-np", 2, "python", program("plain"), "show", 0, "x")
    assert sorted(python.stdout.splitlines()) == sorted(module.stdout.splitlines())
    test = tmp_path / "test_it.py"
    test.write_text(
        "from tests.launcher import rank_of_this_process as rank\ndef test_it():\n    assert rank() == 0, 'odd rank'\n"
    )
    pytest_job = run("-np", 2, "pytest", "-q", "-p", "no:cacheprovider", test)
    assert pytest_job.status == 1
    assert "rank 1 failed first" in pytest_job.last_panel and "odd rank" in pytest_job.last_panel


def test_the_module_and_the_command_are_the_same():
    arguments = ["-np", "2", "--dry-run", program("plain")]
    command = [os.path.join(os.path.dirname(sys.executable), "keras-par"), "run", *arguments]
    by_command = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
    assert by_command == run("--nproc_per_node", *arguments[1:]).stdout
    assert shlex.split(by_command)[-1] == program("plain")


def test_the_shown_command_has_no_value_that_the_shell_has():
    options = ("-np", 1, "--dry-run", "--env", "KP_TOKEN", "--env", "OTHER=it's")
    shown = run(*options, program("plain"), KP_TOKEN="secret").stdout
    assert 'KP_TOKEN="$KP_TOKEN"' in shown and "secret" not in shown
    assert "OTHER='it'\"'\"'s'" in shown


@pytest.mark.parametrize("command", ["", "run", "install-horovod", "doctor", "report"])
def test_help_reads_well_in_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")  # which the help names
    with pytest.raises(SystemExit) as left:
        main([*([command] if command else []), "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert command != "doctor" or "--no-self-test" in text
    assert text.startswith("usage: keras-par") and len(text.splitlines()) > 8


def test_an_engine_that_fails_is_quoted(tmp_path):
    job = run("-np", 2, program("plain"), "show", 0, OMPI_MCA_plm="nothing")
    assert job.status != 0
    assert "the job did not start" in job.last_panel and "0 of 2 ranks" in job.last_panel


def test_missing_parts_are_named(monkeypatch):
    monkeypatch.setattr("keras_par.launch.engines.find", lambda program: None)
    with pytest.raises(EngineError, match="mpirun was not found"):
        choose("mpi")
    assert choose(None) == "gloo"
    monkeypatch.setattr("keras_par.launch.engines.horovod_library", lambda: None)
    with pytest.raises(EngineError, match="install-horovod"):
        choose("gloo")
