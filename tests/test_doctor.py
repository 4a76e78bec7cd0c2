"""`keras-par doctor` on a healthy host and on broken ones: what it says, how it ends, and what it leaves behind."""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

import psutil
import pytest

import keras_par
from keras_par.cluster import environment
from keras_par.comm import native
from keras_par.doctor import checks, command, diagnosis, host, installed, selftest
from keras_par.doctor.installed import Loaded
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY

SIZES = {4: "4 B", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
GIB = 1 << 30
HOST = host.Host(8, 16, 8, None, 64 * GIB, 60 * GIB, 32 * GIB, 32 * GIB)
PROGRAM = """
import argparse, sys
from keras_par.doctor import command
parser = argparse.ArgumentParser()
command.add_parser(parser.add_subparsers())
arguments = parser.parse_args(["doctor", *sys.argv[1:]])
sys.exit(arguments.run(arguments))
"""


@pytest.fixture(autouse=True)
def permitted(monkeypatch):
    """What tests.ranks.pool.environment gives to its jobs, for the doctor in this process."""
    for name in checks.ROOT_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def examined():
    """The report of a real examination, without the self-test."""
    return examine(with_self_test=False)


@pytest.fixture(scope="module")
def healthy():
    """The report of the one real examination with the self-test, over both engines."""
    return examine(with_self_test=True)


def examine(with_self_test: bool) -> diagnosis.Report:
    with pytest.MonkeyPatch.context() as patch:
        for name in checks.ROOT_VARIABLES:
            patch.setenv(name, "1")
        patch.setenv("KERAS_BACKEND", "tensorflow")
        return diagnosis.examine(engine=None, ranks=2, with_self_test=with_self_test)


@pytest.fixture
def without_ranks(examined, monkeypatch):
    """Spares TensorFlow's loading, whose result is known, and forbids the self-test."""
    monkeypatch.setattr(installed, "load", lambda mpirun, **_: examined.loaded)
    monkeypatch.setattr(selftest, "run", lambda *arguments: pytest.fail("ranks were started on a broken host"))


@pytest.fixture
def call(capsys):
    """A function that runs the command and returns its exit status and the table, or with --json the object."""

    def run(*arguments: str):
        parser = argparse.ArgumentParser(prog="keras-par")
        command.add_parser(parser.add_subparsers())
        parsed = parser.parse_args(["doctor", *arguments])
        status = parsed.run(parsed)
        output = capsys.readouterr().out
        if "--json" in arguments:
            return status, json.loads(output)
        assert max(map(len, output.splitlines())) <= 80
        return status, output

    return run


def errors(report: dict) -> dict[str, str]:
    """The errors of a JSON report by the check that found them."""
    return {finding["check"]: finding["text"] for finding in report["findings"] if finding["severity"] == "error"}


def make_environment(folder: Path, *without: str) -> Path:
    """An environment with all that this one has but the packages and commands named; returns its python."""
    venv.create(folder, symlinks=True, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    missing = re.compile(rf"({'|'.join(without)})(-.*)?")
    for entry in Path(psutil.__file__).parents[1].iterdir():
        if not missing.fullmatch(entry.name) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    if "mpirun" not in without:
        (folder / "bin" / "mpirun").symlink_to(Path(sys.executable).parent / "mpirun")
    return folder / "bin" / "python"


def start(python: Path | str, *arguments: str, **variables: str) -> tuple[int, dict]:
    """Runs `keras-par doctor --json` by `python`, with none of this environment's commands on PATH."""
    result = subprocess.run(
        [str(python), "-c", PROGRAM, "--json", "--no-self-test", *arguments],
        env={**os.environ, "PATH": "/usr/bin:/bin", **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


# A healthy host


@pytest.mark.long
def test_both_engines_pass_the_self_test_on_two_ranks(healthy):
    assert [finding.text for finding in healthy.findings if finding.severity == "error"] == []
    assert [outcome.engine for outcome in healthy.self_test] == ["mpi", "gloo"]
    for outcome in healthy.self_test:
        assert outcome.ranks == 2 and outcome.problem is None
        assert outcome.sums_right and outcome.process_sets_right
        assert [message.bytes for message in outcome.messages] == list(SIZES)
        for message in outcome.messages:
            assert 1 < message.microseconds < 1e6
            assert message.megabytes_per_second == pytest.approx(message.bytes / message.microseconds, abs=1e-3)
        assert outcome.shared_sums_right and outcome.no_shared_memory is None
        assert [message.bytes for message in outcome.shared_messages] == list(SIZES)
        assert outcome.messages[-1].megabytes_per_second > 100 * outcome.messages[0].megabytes_per_second


@pytest.mark.long
def test_tensorflows_collectives_pass_the_self_test(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "tensorflow")
        patch.setenv("KERAS_PAR_CACHE", str(tmp_path))  # the library is compiled before
        report = diagnosis.examine(engine="tensorflow", ranks=2, with_self_test=True)
    [outcome] = report.self_test
    assert outcome.engine == report.recommended.engine == "tensorflow" and outcome.problem is None
    assert outcome.sums_right and outcome.process_sets_right and outcome.shared_sums_right
    assert [message.bytes for message in outcome.messages] == list(SIZES)


def test_why_the_library_does_not_compile_is_said(examined, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_PAR_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    record = {"no_shared_memory": native.NOT_YET, "process_sets": True, "sums": True}
    monkeypatch.setattr(selftest, "read_record", lambda path: record)
    monkeypatch.setattr(selftest, "watch", lambda *arguments: (0, ""))
    outcome = selftest.run("tensorflow", examined.installed, 2, 1.0)
    assert outcome.problem is None and outcome.no_shared_memory == "compiling operations.cc failed: no message"


@pytest.mark.long
def test_table_and_json_say_the_same(healthy, call, monkeypatch):
    monkeypatch.setattr(diagnosis, "examine", lambda *arguments: healthy)
    (status, table), (json_status, found) = call(), call("--json")
    assert status == json_status == 0 and found["ok"] is True
    assert "Nothing is broken." in table and "Broken" not in table
    for version in found["installed"]["versions"].values():
        assert f" {version} " in table
    for size, name in SIZES.items():
        [row] = re.findall(rf"^ +{name}" + 3 * r" +(\d+) +([\d.]+)" + " *$", table, re.MULTILINE)
        tests = found["self_test"]
        measured = (tests["mpi"]["messages"], tests["gloo"]["messages"], tests["mpi"]["shared_messages"])
        for messages, microseconds, speed in zip(measured, row[::2], row[1::2], strict=True):
            [message] = [each for each in messages if each["bytes"] == size]
            assert float(microseconds) == pytest.approx(message["microseconds"], abs=0.5)
            assert float(speed) == pytest.approx(message["megabytes_per_second"], rel=0.06)


def test_what_is_found_is_what_is_here(examined):
    versions = examined.installed.versions
    assert versions["keras-par"] == keras_par.__version__ and versions["numpy"] and versions["keras"]
    assert examined.installed.horovod_built_for == versions["tensorflow"]
    assert examined.installed.mpi.startswith("Open MPI 4")
    assert examined.loaded.engines == {"mpi": True, "gloo": True, "nccl": False}
    assert 1 <= examined.host.allowed_cores <= examined.host.physical_cores <= examined.host.logical_cores
    assert 0 < examined.host.memory_available <= examined.host.memory
    assert examined.recommended.engine == "mpi"
    assert examined.recommended.ranks * examined.recommended.threads <= examined.host.usable_cores


# What is broken: installed packages


@pytest.mark.parametrize(
    ("missing", "check", "fix"),
    [
        ("tensorflow", "tensorflow", "TensorFlow is not installed: run \"pip install 'tensorflow>=2.16,<3'\"."),
        ("keras", "keras", "Keras is not installed: run \"pip install 'keras>=3.14,<4'\"."),
    ],
)
def test_a_missing_package_is_named(missing, check, fix, tmp_path):
    status, report = start(make_environment(tmp_path / "env", missing))
    assert status == 1 and report["ok"] is False
    assert errors(report) == {check: fix}
    assert report["loaded"] is None and report["recommended"] is None


@pytest.mark.parametrize(
    ("engine", "broken", "recommended"),
    [
        (None, {}, "tensorflow"),
        ("gloo", {"gloo": "Horovod is not installed: run 'keras-par install-horovod'."}, None),
    ],
)
def test_without_horovod_tensorflow_connects_the_ranks(engine, broken, recommended, tmp_path):
    status, report = start(make_environment(tmp_path / "env", "horovod"), *(("--engine", engine) if engine else ()))
    assert errors(report) == broken and status == bool(broken)
    assert (report["recommended"] or {}).get("engine") == recommended
    assert any("so that TensorFlow connects the ranks" in finding["text"] for finding in report["findings"])


@pytest.mark.parametrize("version", ["3.13.2", "4.0.0"])
def test_an_unsupported_version_is_named(version, tmp_path):
    python = make_environment(tmp_path / "env", "keras")
    [site] = tmp_path.glob("env/lib/python*/site-packages")
    (site / f"keras-{version}.dist-info").mkdir()
    (site / f"keras-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: keras\nVersion: {version}\n"
    )
    status, report = start(python)
    assert status == 1
    assert errors(report) == {
        "keras": f"Keras {version} is installed but keras-par works with 3.14 and later, below 4: "
        "run \"pip install 'keras>=3.14,<4'\"."
    }


def test_another_horovod_is_named(call, monkeypatch):
    monkeypatch.setattr(checks, "HOROVOD_VERSION", "0.99.0")
    status, report = call("--json")
    assert status == 1
    assert re.search(r"works with 0\.99\.0: run 'keras-par install-horovod --rebuild'\.$", errors(report)["horovod"])


def test_the_supported_versions_are_those_of_the_project():
    dependencies = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, (least, below) in checks.SUPPORTED.items():
        assert f"{name}>={least},<{below}" in dependencies


@pytest.mark.parametrize(
    ("version", "supported"), [("3.14", True), ("3.14.0rc1", True), ("3.9.2", False), ("4", False), ("", False)]
)
def test_versions_are_compared_by_number(version, supported, examined):
    versions = examined.installed.versions | {"keras": version}
    found = list(checks.check_versions(dataclasses.replace(examined.installed, versions=versions)))
    assert bool(found) is not supported


def test_horovod_built_for_another_tensorflow_is_named(tmp_path):
    package = tmp_path / "horovod" / "tensorflow"
    package.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "metadata.json").write_text('{"tensorflow": "2.16.2"}')
    symbol = "mpi_lib.so: undefined symbol: _ZN10tensorflow8OpKernel11TraceStringE"
    (package / "__init__.py").write_text(f"raise ImportError({symbol!r})")
    status, report = start(sys.executable, PYTHONPATH=str(tmp_path))
    assert status == 1
    sentence = errors(report)["horovod"]
    assert re.match(r"Horovod 0\.28\.1 was built for TensorFlow 2\.16\.2 and does not load with 2\.\d+\.\d+ ", sentence)
    assert symbol in sentence and sentence.endswith(": run 'keras-par install-horovod --rebuild'.")


def test_a_broken_horovod_is_nothing_to_tensorflow(tmp_path):
    package = tmp_path / "horovod" / "tensorflow"
    package.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (package / "__init__.py").write_text("raise ImportError('no such symbol')")
    status, report = start(sys.executable, "--engine", "tensorflow", PYTHONPATH=str(tmp_path))
    assert (status, errors(report)) == (0, {}) and report["recommended"]["engine"] == "tensorflow"
    assert report["loaded"]["with_horovod"] is False


def test_another_horovod_is_nothing_to_tensorflow(call, without_ranks, examined, monkeypatch):
    loaded = dataclasses.replace(examined.loaded, engines=dict.fromkeys(examined.loaded.engines, False))
    monkeypatch.setattr(
        installed, "load", lambda _, with_horovod: dataclasses.replace(loaded, with_horovod=with_horovod)
    )
    monkeypatch.setattr(checks, "HOROVOD_VERSION", "0.99.0")
    status, table = call("--engine", "tensorflow", "--no-self-test")
    assert status == 0 and re.search(r"engines +TensorFlow's own collectives", table)
    assert "start jobs by" in table and "--engine tensorflow" in table


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ImportError('no AVX here')", "ImportError: no AVX here"),
        ("import os; os.kill(os.getpid(), 11)", "it was ended by SIGSEGV"),
    ],
)
def test_a_tensorflow_that_does_not_load_is_named(program, said, tmp_path):
    (tmp_path / "tensorflow.py").write_text(program)
    status, report = start(sys.executable, PYTHONPATH=str(tmp_path))
    assert status == 1
    version = report["installed"]["versions"]["tensorflow"]
    fix = f"run 'pip install --force-reinstall tensorflow=={version}'"
    assert errors(report) == {"tensorflow": f"TensorFlow {version} does not load ({said}): {fix}."}


def test_a_tensorflow_that_never_loads_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begin = time.monotonic()
    loaded = installed.load(None, seconds=1)
    assert loaded == Loaded({}, tensorflow_loads=False, error="it did not end within 1 s")
    assert time.monotonic() - begin < 60


def test_a_crash_of_horovod_is_not_blamed_on_tensorflow(examined):
    loaded = installed.understand('{"tensorflow": "2.21.0", "gpus": 0}\n', "", installed.describe_end(-11))
    [finding] = checks.check_loading(examined.installed, loaded)
    assert finding.check == "horovod" and "(it was ended by SIGSEGV): run 'keras-par install-horovod" in finding.text


def test_horovod_that_loads_with_another_tensorflow_is_a_note(examined):
    [finding] = checks.check_loading(
        dataclasses.replace(examined.installed, horovod_built_for="2.20.0"), examined.loaded
    )
    assert finding.severity == "note" and "was built for TensorFlow 2.20.0" in finding.text


# What is broken: settings


def test_another_backend_by_variable_is_named(call, without_ranks, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    status, table = call()
    assert status == 1
    assert "Broken: KERAS_BACKEND=jax is set" in table and "'export KERAS_BACKEND=tensorflow' or" in table


def test_another_backend_by_file_is_named(call, without_ranks, monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    status, report = call("--json")
    assert status == 1
    [sentence] = errors(report).values()
    assert sentence.startswith(f'{tmp_path}/keras.json says "backend": "torch"')
    assert sentence.endswith("write \"tensorflow\" there, or run 'export KERAS_BACKEND=tensorflow'.")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"backend": "tensorflow"}'])
def test_a_file_that_chooses_nothing_else_is_fine(text, monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text(text)
    assert installed.keras_backend()[0] == "tensorflow"


def test_root_without_permission_is_named(call, without_ranks, monkeypatch):
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    status, report = call("--json")
    assert status == 1
    assert "run 'export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1', or start jobs by 'keras-par run'" in errors(report)["root"]
    assert call("--engine", "gloo", "--no-self-test")[0] == 0
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert call("--no-self-test")[0] == 0


def test_a_small_shared_memory_is_named(call, without_ranks, monkeypatch):
    monkeypatch.setattr(host, "shared_memory", lambda: (64 << 20, 3 << 20))
    status, report = call("--json", "--np", "200")
    assert status == 1
    sentence = errors(report)["shm"]
    assert sentence.startswith("/dev/shm has 3 MiB free and 200 ranks over MPI need 1600 MiB: ")
    assert "'docker run --shm-size=2g'" in sentence
    assert call("--engine", "gloo", "--no-self-test")[0] == 0


# What is broken: engines and launchers


def test_a_missing_mpirun_is_named(tmp_path):
    status, report = start(make_environment(tmp_path / "env", "mpirun"))
    assert status == 1
    assert list(errors(report)) == ["mpi"]
    assert "'mpirun' is not on PATH: install that MPI" in errors(report)["mpi"]
    assert report["recommended"]["engine"] == "gloo"


def test_an_mpirun_that_does_not_start_is_named(call, without_ranks, monkeypatch, tmp_path):
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr(environment, "search_path", lambda: f"{tmp_path}:{Path(sys.executable).parent}:/bin")
    status, report = call("--json")
    assert status == 1
    assert f"'{tmp_path}/mpirun --version' fails: repair or remove that MPI" in errors(report)["mpi"]


def test_an_open_mpi_that_is_not_the_one_of_mpirun_is_named(examined, call, without_ranks, monkeypatch, tmp_path):
    monkeypatch.setenv("OPAL_PREFIX", str(tmp_path))
    status, report = call("--json", "--no-self-test")
    found, own = examined.installed.commands["mpirun"], Path(sys.prefix).resolve()
    fix = f"run 'export OPAL_PREFIX={own}' or unset it."
    assert status == 1
    assert errors(report) == {"mpi": f"OPAL_PREFIX={tmp_path} is set, but '{found}' is the Open MPI of {own}: {fix}"}
    (tmp_path / "link").symlink_to(own)
    for given in (None, "", own, tmp_path / "link"):
        assert not list(checks.check_opal_prefix(Path(found), None if given is None else str(given)))
    (tmp_path / "bin").mkdir()  # with a program of a site's that calls an mpirun elsewhere
    assert not list(checks.check_opal_prefix(tmp_path / "bin" / "mpirun", str(own)))


def test_horovod_without_mpi_is_a_note_unless_mpi_is_asked_for(call, monkeypatch, without_ranks):
    gloo_alone = Loaded({"mpi": False, "gloo": True, "nccl": False})
    monkeypatch.setattr(installed, "load", lambda mpirun, **_: gloo_alone)
    status, table = call("--no-self-test")
    assert status == 0 and "Note: Horovod was built without MPI" in table
    status, report = call("--json", "--engine", "mpi")
    assert status == 1
    rebuild = "run 'keras-par install-horovod --engine mpi --rebuild'."
    assert errors(report) == {"mpi": f"Horovod was built without MPI: {rebuild}"}


def test_horovod_without_engines_is_named(call, monkeypatch, without_ranks):
    monkeypatch.setattr(installed, "load", lambda mpirun, **_: Loaded({"mpi": False, "gloo": False, "nccl": False}))
    status, report = call("--json")
    assert status == 1 and "--engine mpi --rebuild" in errors(report)["mpi"]


# A self-test that fails


@pytest.fixture
def rank_program(examined, monkeypatch, tmp_path):
    """A function that puts a Python program in the place of the self-test's ranks."""
    monkeypatch.setattr(installed, "load", lambda mpirun, **_: examined.loaded)
    monkeypatch.setattr(selftest.tempfile, "mkdtemp", lambda prefix: str(tmp_path))

    def write(text: str) -> Path:
        path = tmp_path / "rank program.py"
        path.write_text(f"import os, sys, subprocess, time\n{text}")
        monkeypatch.setattr(selftest, "PROGRAM", (str(path),))
        return path

    return write


@pytest.mark.parametrize(("engine", "other"), [("mpi", "gloo"), ("gloo", "mpi")])
def test_a_failing_rank_is_quoted(engine, other, rank_program, call, tmp_path):
    rank_program("print('I0000 noise'); raise ValueError('no route to host')")
    status, report = call("--json", "--engine", engine)
    assert status == 1
    sentence = errors(report)["self-test"]
    assert re.match(rf"The self-test over {engine}".lower(), sentence.lower())
    assert "it ended with status 1 while rank 0 was loading TensorFlow" in sentence
    assert "(ValueError: no route to host)" in sentence and f"all output is in {tmp_path};" in sentence
    assert "docs/doctor.md" in sentence and f"'keras-par run --engine {other}'" in sentence
    assert report["recommended"] is None
    assert any("no route to host" in path.read_text() for path in tmp_path.glob("log/rank.*/stderr"))


@pytest.mark.parametrize("engine", ["mpi", pytest.param("gloo", marks=pytest.mark.slow)])
def test_a_hanging_self_test_is_ended_with_all_its_processes(engine, rank_program, call, monkeypatch, tmp_path):
    monkeypatch.setattr(selftest, "RANK_SECONDS", 3)
    path = rank_program(
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', __file__], start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    begin = time.monotonic()
    status, table = call("--engine", engine)
    assert time.monotonic() - begin < 120
    assert status == 1 and "failed after" in table
    sentence = " ".join(table[table.index("Broken") :].split())
    assert "it hung for 6 s while rank 0 was loading TensorFlow, rank 1 was loading TensorFlow; all output" in sentence
    assert not [each for each in psutil.process_iter() if str(path) in command_line(each)]


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("fact", "said"), [("sums", "the sum of an all-reduce is wrong"), ("process_sets", "the sum over a process set is")]
)
def test_a_wrong_sum_is_named(fact, said):
    right = {"stage": "at the end", "sums": True, "process_sets": True}
    assert selftest.judge([right, right], 0, "") is None
    problem = selftest.judge([right, right | {fact: False}], 0, "")
    assert problem.startswith(said) and problem.endswith("on rank 1")


def test_a_hang_is_placed_by_what_each_rank_noted(tmp_path):
    (tmp_path / "rank.1.json").write_text('{"stage": "connecting to the other ranks", "sums": true}')
    records = [selftest.read_record(tmp_path / f"rank.{rank}.json") for rank in range(2)]
    stages = "rank 0 was loading TensorFlow, rank 1 was connecting to the other ranks"
    assert selftest.judge(records, None, "") == f"it hung for 60 s while {stages}"
    assert (
        selftest.judge(records, -9, "I0000 noise\nso it goes\n")
        == f"it was ended by SIGKILL while {stages} (so it goes)"
    )


# The host, and what is recommended for it


@pytest.mark.parametrize(
    ("groups", "files", "quota", "memory"),
    [
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000", "a/memory.max": "1024"}, 1.5, 1024),
        (
            "4:memory:/job\n2:cpu,cpuacct:/docker/4711\n1:name=systemd:/\n0::/",
            {
                "cpu/cpu.cfs_quota_us": "250000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/job/memory.limit_in_bytes": "9",
            },
            2.5,
            9,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
    ],
    ids=["no limit", "version 2", "version 1", "version 1 without limit"],
)
def test_limits_of_cgroups_are_found(groups, files, quota, memory, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "self").write_text(groups + "\n")
    monkeypatch.setattr(host, "CGROUP_FOLDER", tmp_path)
    monkeypatch.setattr(host, "CGROUP_OF_PROCESS", tmp_path / "self")
    assert host.cpu_quota() == quota
    assert host.memory_limit() == memory


def test_a_missing_shared_memory_has_no_room(monkeypatch):
    monkeypatch.setattr(host, "SHARED_MEMORY", "/no/such/folder")
    assert host.shared_memory() == (0, 0)


@pytest.mark.parametrize(
    ("changes", "gpus", "num_ranks", "threads", "binding", "cycle_time"),
    [
        ({}, 0, 8, 1, "core", 0.2),
        ({"cpu_quota": 2.5}, 0, 2, 1, "core", 0.2),
        ({"cpu_quota": 0.5}, 0, 1, 1, "core", 0.2),
        ({"allowed_cores": 4}, 0, 4, 1, "core", 0.2),
        ({"memory_available": 3 * GIB}, 0, 3, 2, "core", 0.2),
        ({"memory_available": 0}, 0, 1, 8, "core", 0.2),
        ({}, 2, 2, 4, "core", 0.2),
        ({"allowed_cores": 1}, 2, 2, 1, "none", 1.0),
    ],
)
def test_the_host_decides_what_is_recommended(changes, gpus, num_ranks, threads, binding, cycle_time):
    found = diagnosis.advise(dataclasses.replace(HOST, **changes), "mpi", gpus)
    assert found == diagnosis.Advice("mpi", num_ranks, threads, binding, cycle_time)


# The command line


@pytest.mark.parametrize("number", ["1", "0", "-2", "two", "1.5"])
def test_an_impossible_number_of_ranks_is_refused(number, call, capsys):
    with pytest.raises(SystemExit, match="2"):
        call(f"--np={number}")
    assert f"--np: '{number}' must be a whole number of at least 2" in capsys.readouterr().err
