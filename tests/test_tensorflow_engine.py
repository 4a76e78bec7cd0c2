"""Ranks that TensorFlow's own collectives connect: the same contract, weights and sentences as Horovod's."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from keras_par.base.after_import import after_import
from keras_par.base.rendezvous import RendezvousServer
from keras_par.base.slots import slots
from keras_par.comm import tensorflow_server
from keras_par.comm.tensorflow import shapes_of
from keras_par.job import device_names, meeting, rendezvous
from keras_par.job.launch_environment import MeetingPoint
from keras_par.launch import engines
from keras_par.launch.engines import EngineError
from tests import communicator_tasks, test_ops, trainings
from tests.covering import fewest
from tests.jobs import start, write_script
from tests.launcher import program, run
from tests.patience import PATIENCE
from tests.ranks.pool import WITHOUT_HOROVOD, environment, free_port
from tests.test_one_process import EACH, differ_nowhere

BY_TENSORFLOW = {"KERAS_PAR_ENGINE": "tensorflow"}
STRATEGIES = fewest(EACH, lambda row: {row["strategy"]})
QUICK = [row for row in STRATEGIES if trainings.num_ranks(row) == 2][:2]


def marks_of(training: dict) -> tuple:
    """`make test-long` has a mesh, too, and `make test-all` the tables of all tests of ranks."""
    return () if training in QUICK else pytest.mark.long if training["strategy"] == "mesh 2x2" else pytest.mark.slow


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (2, "engine"),
        pytest.param(2, "active", marks=pytest.mark.slow),
        pytest.param(3, "engine", marks=pytest.mark.long),
        pytest.param(4, "group of half", marks=pytest.mark.long),
        pytest.param(4, "two levels", marks=pytest.mark.slow),
    ],
)
def test_the_contract_is_kept(size, kind, ranks_of_tensorflow):
    results = ranks_of_tensorflow(size).run(communicator_tasks.look, kind=kind)
    assert [result["breaches"] for result in results] == [[]] * size
    assert [result["size"] for result in results] == [2 if "group" in kind else size] * size
    assert ("engine" in results[0]["routes"]) and (kind != "engine" or results[0]["routes"] == ["engine"])


def test_a_name_may_be_another_collectives_of_another_dtype(ranks_of_tensorflow):
    values = [[3, 10], [1, 5, 2, 5], [1, 5], [2, 5]]
    expected = [(dtype, value) for dtype in ("float32", "float64", "int32") for value in values]
    assert ranks_of_tensorflow(2).run(communicator_tasks.use_a_name_again) == [expected] * 2


def test_users_collectives_have_gradients(ranks_of_tensorflow):
    test_ops.test_collectives_and_their_gradients_are_those_of_all_ranks(2, ranks_of_tensorflow)


def test_dtypes_that_its_sums_do_not_know_are_widened_or_refused(ranks_of_tensorflow):
    results = ranks_of_tensorflow(2).run(communicator_tasks.reduce_other_dtypes)
    sums = {name: (name, [2, 5]) for name in ("int8", "uint8", "int16", "uint16")}
    assert results == [{**sums, "gradient": [3.0, 3.0], "refused": True}] * 2


@pytest.mark.parametrize(
    "training",
    [pytest.param(row, id="-".join(row.values()), marks=marks_of(row)) for row in STRATEGIES],
)
def test_ranks_end_where_one_process_ends(training, ranks_of_tensorflow, plain, exactness):
    differ_nowhere(training, ranks_of_tensorflow, plain, exactness)


@pytest.mark.parametrize("when", ["second", pytest.param("first", marks=pytest.mark.long)])
def test_what_is_made_before_the_start_lives_on(when):
    job = run("-np", 2, "--engine", "tensorflow", program("made_before"), when)
    assert job.status == 0, job.stderr
    found = sorted(json.loads(line.split("lives on: ")[1]) for line in job.stdout.splitlines() if "lives on: " in line)
    assert [each[:2] for each in found] == [[0, 2], [1, 2]]
    for _, _, *values, losses in found:
        assert values == [[2.0, 3.0], [0, 2, 4], 2, [12.0, 18.0]] and losses == found[0][-1]


def test_what_would_be_lost_is_named_on_all_ranks():
    job = run("-np", 2, "--engine", "tensorflow", program("made_before"), "late")
    assert job.status != 0
    assert re.search(r"keras-par: variable 'early:0', .* and \d+ more came before kp\.init\(\), and", job.stderr)
    assert "all ranks failed alike" in job.stderr


DIFFERENCES = {
    "shape": r"rank 0 gave float32 of shape \(3,\) and rank 1 float32 of shape \(4,\)",
    "dtype": r"rank 0 gave float32 of shape \(\?,\) and rank 1 int32 of shape \(\?,\)",
    "kind": r"rank 0 came to all_gather and rank 1 to all_reduce \(sum\)",
    "graph": r"rank 0 gave 6 element\(s\) in all and rank 1 8",
}


@pytest.mark.parametrize(
    "case", [case if case == "shape" else pytest.param(case, marks=pytest.mark.long) for case in DIFFERENCES]
)
def test_ranks_that_give_other_tensors_to_one_collective_are_told(case):
    job = run("-np", 2, "--engine", "tensorflow", program("different_tensors"), case, KERAS_PAR_SHARED_MEMORY="0")
    assert job.status == 1 and job.stdout.count("together") == 2, job.stderr
    assert "all ranks failed alike" in job.stderr
    sentence = rf"keras-par: in the collective 'mine' {DIFFERENCES[case]}: let all ranks make the same calls"
    assert re.search(sentence, job.last_panel), job.stderr


def test_shapes_have_the_same_number_on_ranks_that_know_them_and_that_do_not():
    shapes = [(2**20, 3), (), (1, 2, 70_000)]
    tensors = [tf.zeros(shape, tf.int8) for shape in shapes]
    for known in ([None, 3], [None, None], [2**20, None], None):
        specs = [tf.TensorSpec(known), tf.TensorSpec([]), tf.TensorSpec([1, None, None])]
        specs = [tf.TensorSpec(spec.shape, tf.int8) for spec in specs]
        number = tf.function(lambda *each: shapes_of(each, 0), input_signature=specs)(*tensors)
        assert int(number) == shapes_of(tensors, 0)
    assert shapes_of(tensors[:1], 1) == shapes_of([tf.zeros([5, 3])], 1) != shapes_of([tf.zeros([5, 4])], 1)
    assert len({shapes_of([tf.zeros(shape)], 0) for shape in [(6,), (2, 3), (3, 2), (1, 6), (6, 1)]}) == 5


def test_what_would_be_lost_is_named_by_its_kind(monkeypatch):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    made = [tf.Variable(1.0, name="early"), table, tf.data.Dataset.range(3), table]
    monkeypatch.setattr(tensorflow_server.gc, "get_objects", lambda: [*made, 1])
    found = tensorflow_server.too_late()
    assert found.startswith("keras-par: variable 'early:0', a lookup table, a dataset and 1 more came before kp.init()")


@pytest.mark.long
def test_what_is_set_before_the_start_counts_and_a_ranks_child_is_no_rank():
    job = run("-np", 2, "--engine", "tensorflow", program("set_before"))
    assert job.status == 0, job.stderr
    found = sorted(json.loads(line.split("devices: ")[1]) for line in job.stdout.splitlines() if "devices: " in line)
    of_rank = "/job:worker/replica:0/task:{}/device:CPU:{}".format
    assert found == [[rank, of_rank(rank, 0), of_rank(rank, 1), "/device:CPU:0"] for rank in range(2)]


@pytest.mark.long
def test_without_horovod_and_a_compiler_ranks_train_as_one_process(tmp_path):
    job = run(
        "-np", 2, program("fit_losses"), **WITHOUT_HOROVOD, CXX="/not/there", KERAS_PAR_CACHE=str(tmp_path / "cache")
    )
    assert job.status == 0, job.stderr
    [alone] = start("python", 1, program("fit_losses")).values("losses: ")
    found = sorted(json.loads(line.split("losses: ")[1]) for line in job.stdout.splitlines() if "losses: " in line)
    assert [each[:2] for each in found] == [[0, 2], [1, 2]]
    for _, _, *losses in found:
        np.testing.assert_allclose(losses, alone[2:], rtol=1e-6)
    assert "by TensorFlow over gRPC, not through shared memory, because" in job.stderr, job.stderr


@pytest.mark.long
@pytest.mark.parametrize("end", ["os._exit(3)", "kp.shutdown(); time.sleep(600)"])
def test_in_a_shell_loop_a_rank_that_waits_for_one_that_has_left_is_told(end, tmp_path):
    script = write_script(
        tmp_path,
        f"""
        import os, time, keras, keras_par as kp
        kp.init()
        kp.barrier()
        if kp.rank() == 1:
            {end}
        kp.barrier()
        """,
    )
    variables = environment(RANK_SIZE="2", MASTER_PORT=str(free_port()), **BY_TENSORFLOW)
    jobs = [
        subprocess.Popen(
            [sys.executable, script], env=variables | {"RANK_ID": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = jobs[0].communicate(timeout=PATIENCE)[1]
        assert jobs[0].returncode != 0 and "has left the job" in said
    finally:
        jobs[1].kill()
        jobs[1].communicate()


@pytest.fixture
def server(monkeypatch):
    server = RendezvousServer("127.0.0.1", 0, 3)
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(server.port))
    yield server
    server.close()


def gathered(size: int, ranks, refusing: int | None = None) -> list:
    """What ranks that meet are given, or the sentence that they raise."""

    def one(rank: int):
        try:
            refusal = "keras-par: no." if rank == refusing else None
            return meeting.RendezvousMeeting(rank, size).gather("step", f"value {rank}", refusal)
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(one, ranks))


def test_ranks_that_meet_are_given_all_values(server):
    assert gathered(3, (2, 0, 1)) == [["value 0", "value 1", "value 2"]] * 3


def test_what_one_rank_refuses_all_raise(server):
    assert gathered(3, (0, 1, 2), refusing=1) == ["keras-par: no."] * 3


def test_ranks_that_do_not_come_are_named(server, monkeypatch):
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "1")
    first, second = gathered(3, (0, 1))
    assert "rank(s) 2 of 3 did not come" in first and second == first


def test_the_first_rank_to_leave_is_known(server):
    met = [meeting.RendezvousMeeting(rank, 3) for rank in range(3)]
    assert met[0].first_to_leave() is None
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda each: each.gather("step", ""), met))
    met[2].leave(2)
    assert [each.first_to_leave() for each in met] == [2, 2, 2]
    server.close()
    met[1].leave(1)  # nobody listens any more
    assert met[0].first_to_leave() is None


def test_another_program_of_the_same_ranks_meets_anew(server):
    server.expect(slots(["a", "a", "a"]))
    for value in ("of the first", "of the second"):
        met = [meeting.RendezvousMeeting(rank, 3) for rank in range(3)]
        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(lambda each, value=value: each.gather("step", value), met)) == [[value] * 3] * 3
        assert met[1].first_to_leave() is None
        for rank, each in enumerate(met):
            each.leave(rank)


def test_ranks_that_different_engines_would_connect_are_named():
    register = rendezvous.Register(2, MeetingPoint("127.0.0.1", 0, 1))
    about = {"host": "a", "own_address": "10.0.0.1", "reached": "127.0.0.1"}
    try:
        register.enter(0, 2, process="x", engine="tensorflow", **about)
        told = register.enter(1, 2, process="y", engine="gloo", **about)
        assert "Horovod would connect rank 1, and TensorFlow rank 0: install the same" in told["refused"]
    finally:
        register.close()


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"no_proxy": "inside"}, None),
        ({"http_proxy": "http://p:80"}, "10.0.0.1,10.0.0.2"),
        ({"https_proxy": "http://p:80", "no_proxy": "inside,10.0.0.2"}, "inside,10.0.0.2,10.0.0.1"),
        ({"grpc_proxy": "http://p:80", "no_grpc_proxy": "a", "no_proxy": "b"}, "a,10.0.0.1,10.0.0.2"),
    ],
)
def test_ranks_reach_each_other_past_proxies(variables, found, monkeypatch):
    for name in (*tensorflow_server.PROXIES, *tensorflow_server.NO_PROXY):
        monkeypatch.setenv(name, variables.get(name, ""))
        if name not in variables:
            monkeypatch.delenv(name)
    tensorflow_server.go_past_proxies(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    assert os.environ.get(tensorflow_server.NO_PROXY[0]) == found


def test_a_call_behind_an_import_comes_once_that_has_gone_well(tmp_path, monkeypatch):
    """And so it does where somebody has only looked whether the package is there."""
    name, called, before = f"package_of_{tmp_path.name}".replace("-", "_"), [], list(sys.meta_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / f"{name}.py"
    path.write_text("1 / 0")
    after_import(name, lambda module: called.append(module.__name__))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(name)
    path.write_text("number = 1\n")
    importlib.invalidate_caches()
    assert importlib.util.find_spec(name) is not None and called == []
    importlib.import_module(name)
    assert called == [name] and sys.meta_path == before
    after_import(name, called.append)  # which comes too late
    assert sys.meta_path == before
    del sys.modules[name]


def test_a_process_that_a_rank_starts_is_none(monkeypatch):
    monkeypatch.setenv(device_names.PREPARED, "1")  # as a child of process 1 finds it
    monkeypatch.setenv("RANK_ID", "0")
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv(engines.VARIABLE_OF_ENGINE, "tensorflow")
    prepared = []
    monkeypatch.setattr(device_names.tensorflow_server, "prepare", prepared.append)
    device_names.prepare()
    assert prepared == []
    monkeypatch.setenv(device_names.PREPARED, str(os.getpid()))
    device_names.prepare()
    assert prepared == [0]


def test_tensorflow_is_the_engine_where_horovod_is_not_installed(monkeypatch):
    monkeypatch.delenv(engines.VARIABLE_OF_ENGINE, raising=False)
    assert engines.choose(None) == "mpi" and engines.choose("tensorflow") == "tensorflow"
    monkeypatch.setenv(engines.VARIABLE_OF_ENGINE, "tensorflow")
    assert engines.choose(None) == "tensorflow" and engines.choose("gloo") == "gloo"
    monkeypatch.setattr(engines, "horovod_library", lambda: None)
    monkeypatch.delenv(engines.VARIABLE_OF_ENGINE)
    assert engines.choose(None) == "tensorflow"
    with pytest.raises(EngineError, match=r"Horovod is not installed: .* or take '--engine tensorflow'"):
        engines.choose("gloo")
    monkeypatch.setenv(engines.VARIABLE_OF_ENGINE, "nccl")
    with pytest.raises(EngineError, match="there is no engine nccl"):
        engines.choose(None)
