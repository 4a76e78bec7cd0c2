"""No secret can be read by other users: variables of the user's and the launcher's key are on no command line."""

import json
import secrets

import pytest

from tests.launcher import Job, program
from tests.onlookers import onlooker, require_kept

NAME = "KP_TEST_TOKEN"
CALLER = """
import os, sys, time
import keras_par as kp

def hold(folder, name):
    open(f"{folder}/ready.{os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('HOROVOD_RANK'))}", "w").close()
    assert os.environ[name]
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)

kp.run(hold, (sys.argv[1], sys.argv[2]), engine=sys.argv[3], env={sys.argv[2]: open(sys.argv[4]).read()})
"""


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_a_job_shows_no_secret(engine, tmp_path):
    secret = secrets.token_hex(16)
    with onlooker() as seen:
        options = ("-np", 2, "--engine", engine, "--log-dir", tmp_path / "out", "--tee")
        job = Job(*options, program("plain"), "hold", 0, tmp_path, NAME, **{NAME: secret})
        require_kept(job, seen, tmp_path, secret, 2)


@pytest.mark.parametrize("engine", ["mpi", pytest.param("gloo", marks=pytest.mark.long)])
def test_a_call_shows_no_secret(engine, tmp_path):
    secret, script, value = secrets.token_hex(16), tmp_path / "caller.py", tmp_path / "value"
    script.write_text(CALLER)
    value.touch(mode=0o600)
    value.write_text(secret)
    with onlooker() as seen:
        job = Job(script, tmp_path, NAME, engine, value, launcher=())
        require_kept(job, seen, tmp_path, secret, 2)


def test_an_onlooker_sees_secrets(tmp_path):
    """What the tests above would find: a command line, an environment's key, a file that all may read."""
    secret, key = secrets.token_hex(16), secrets.token_hex(16)
    open_file, own = tmp_path / "open", tmp_path / "own"
    for path, mode in ((open_file, 0o644), (own, 0o600)):
        path.write_text(secret)
        path.chmod(mode)
    with onlooker() as seen:
        job = Job(
            "-c",
            "import sys; sys.stdin.read(); import time; time.sleep(1)",
            secret,
            launcher=(),
            KERAS_PAR_LAUNCHER=json.dumps({"key": key}),
        )
        while not seen.keys:  # which are there some time after the command line
            seen.note_keys([job.process.pid])
        job.wait()
    assert seen.keys == {key} and len(seen.lines_with(secret)) == 1 and not seen.lines_with(key)
    tmp_path.chmod(0o755)
    assert seen.files_with(secret, folders=[tmp_path]) == [open_file]
