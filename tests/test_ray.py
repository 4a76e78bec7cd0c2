"""`kp.ray.run` on clusters of several of Ray's nodes: results, training, failures, a node that dies, nothing left."""

import importlib.util
import re
import secrets
import signal
import socket
from pathlib import Path

import pytest

from tests.jobs import write_script
from tests.launcher import Ended, Job
from tests.onlookers import onlooker, require_kept
from tests.patience import here
from tests.rays import VARIABLES, folder_of_ray, found

pytestmark = pytest.mark.cluster
ALL_SECONDS = 1500  # of the script that asks one cluster for many things; some 250 on cores that nobody else wants
NAMED_WITHIN = 20.0  # seconds from a node's death to the error

BEGIN = """
    import json, os, pathlib, sys, tempfile, threading, time
    import ray
    from ray.cluster_utils import Cluster
    import keras_par as kp

    folder = pathlib.Path(sys.argv[1])
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [cluster.add_node(num_cpus=2, **small) for _ in range(2)]
    ray.init(address=cluster.address)
    tell = {}

    def all_free(cpus, seconds=30):
        # True as soon as so many are free, False if they are not in time
        end = time.monotonic() + seconds
        while (free := ray.available_resources().get("CPU", 0) == cpus) is False and time.monotonic() < end:
            time.sleep(0.1)
        return free

    def tell_all():
        ray.shutdown()
        cluster.shutdown()
        print(json.dumps(tell), flush=True)
"""


@pytest.fixture
def rays():
    """The folder where Ray keeps its files in a test."""
    with folder_of_ray() as folder:
        yield folder


def start(folder: Path, text: str) -> Job:
    """Starts a script on a cluster with two nodes of two CPUs each."""
    assert importlib.util.find_spec("ray"), "pip install ray"
    return Job(write_script(folder, f"{BEGIN}\n{text}"), folder, launcher=(), **VARIABLES)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> tuple[Ended, dict]:
    """How a script ended that asks one cluster for all that follows, and what it has told."""
    with folder_of_ray():
        text = RESULTS + TRAINING + EXECUTOR + FAILURES + A_NODE_DIES + "    tell_all()\n"
        ended = start(tmp_path_factory.mktemp("ray"), text).wait(ALL_SECONDS)
    return ended, found(ended)


RESULTS = """
    import numpy as np

    def train(begin, step=1):
        kp.init()
        print("this is a rank")
        about = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "ANSWER", "RAY_RAYLET_PID")}
        return begin + step * np.arange(3) + kp.rank(), kp.size(), about

    for placement in ("STRICT_SPREAD", "STRICT_PACK"):
        got = kp.ray.run(train, (5,), {"step": 2}, placement=placement, env={"ANSWER": "42"})
        tell[placement] = {
            "values": [values.tolist() for values, _, _ in got],
            "sizes": [size for _, size, _ in got],
            "about": [about for _, _, about in got],
        }
    two = kp.ray.run(lambda: os.environ["OMP_NUM_THREADS"], num_workers=1, resources_per_worker={"CPU": 2})
    tell["threads of two"] = two
    tell["free"] = all_free(4)
"""


def test_results_come_in_the_order_of_the_ranks_from_where_they_were_placed(told):
    ended, tell = told
    for placement, num_nodes in (("STRICT_SPREAD", 2), ("STRICT_PACK", 1)):
        got = tell[placement]
        assert got["values"] == [[5, 7, 9], [6, 8, 10]] and got["sizes"] == [2, 2]
        assert {(each["ANSWER"], each["OMP_NUM_THREADS"]) for each in got["about"]} == {("42", "1")}
        assert len({each["RAY_RAYLET_PID"] for each in got["about"]}) == num_nodes
    assert tell["threads of two"] == ["2"]
    assert tell["free"], "placement groups are removed"
    assert {"[0] this is a rank", "[1] this is a rank"} <= set(ended.stdout.splitlines())


HOLD = """
    def hold(folder):
        assert os.environ["KP_TEST_TOKEN"]
        pathlib.Path(folder, f"ready.{os.environ['RANK_ID']}").touch()
        while not pathlib.Path(folder, "go").exists():
            time.sleep(0.05)

    kp.ray.run(hold, (str(folder),), env={"KP_TEST_TOKEN": (folder / "token").read_text()})
    tell_all()
"""


def test_no_secret_is_shown(tmp_path, rays):
    secret, path = secrets.token_hex(16), tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(secret)
    with onlooker() as seen:
        require_kept(start(tmp_path, HOLD), seen, tmp_path, secret, 2, rays)


TRAINING = """
    def train(strategy):
        import keras, numpy as np
        from keras_par.comm import world
        kp.init()
        keras.utils.set_random_seed(3)
        if strategy:
            keras.distribution.set_distribution(kp.DataParallel())
        rows = np.random.default_rng(5).normal(size=(70, 4)).astype("float32")
        model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        losses = model.fit(rows, rows.sum(1), batch_size=16, epochs=3, verbose=0).history["loss"]
        return losses, world.current().engine

    tell["ranks"] = kp.ray.run(train, [True], placement="STRICT_SPREAD")
    os.environ["KERAS_PAR_ENGINE"] = "tensorflow"  # which the nodes, that have begun, do not have
    tell["by tensorflow"] = kp.ray.run(train, [True], placement="STRICT_SPREAD")
    del os.environ["KERAS_PAR_ENGINE"]
    [tell["alone"]] = kp.ray.run(train, [False], num_workers=1)
"""


def test_ranks_of_two_nodes_train_as_one_process(told):
    _, tell = told
    alone, _ = tell["alone"]
    for name, engine in (("ranks", "gloo"), ("by tensorflow", "tensorflow")):
        assert tell[name][0] == tell[name][1] and tell[name][0][1] == engine
        assert tell[name][0][0] == pytest.approx(alone, rel=1e-5)


FAILURES = """
    def fails():
        kp.init()
        if kp.rank() == 1:
            raise ValueError("this is the trouble")
        kp.barrier()

    def attempt(name, *arguments, **options):
        try:
            kp.ray.run(*arguments, **options)
        except (RuntimeError, ValueError) as error:
            tell[name] = str(error)

    attempt("fails", fails, placement="STRICT_SPREAD")
    all_free(4)
    attempt("no place", fails, num_workers=3, placement="STRICT_SPREAD", start_timeout=3)
    attempt("no placement", fails, placement="SOMEWHERE")
    attempt("no number", fails, num_workers=0)
    attempt("no engine", fails, env={"KERAS_PAR_ENGINE": "nccl"})
    attempt("exits", lambda: sys.exit(0))
    ray.shutdown()
    ray.init(address=cluster.address, runtime_env={"py_executable": "/nowhere/python"})
    attempt("no python", fails, start_timeout=4)
    tell["free after failures"] = all_free(4)
    ray.shutdown()
    ray.init(address=cluster.address)
"""


def test_failures_raise_the_sentence_of_the_launcher(told):
    _, tell = told
    host = socket.gethostname()
    assert tell["fails"].startswith(f"keras-par: rank 1 failed first\nRank 1 on host {host} exited with status 1")
    assert "Error: ValueError: this is the trouble\nLast line of your code: " in tell["fails"]
    assert tell["no place"].startswith(
        "keras-par: Ray had no place for 3 worker(s) of {'CPU': 1} by STRICT_SPREAD within 3 s; free are {'CPU': 4.0} "
        "on 3 node(s)"
    )
    assert tell["no engine"].startswith("keras-par: there is no engine nccl: set KERAS_PAR_ENGINE to")
    assert "SOMEWHERE" in tell["no placement"] and "num_workers=0 is no number of ranks" in tell["no number"]
    assert "rank 0 ended with status 0 before its function returned" in tell["exits"]
    assert tell["no python"].startswith("keras-par: the job did not start\nRay ended with status 1 when 0 of 2 ranks")
    assert re.search(r"The actor of rank \d on node [\d.]+ did not start within 4 s: Ray's lines", tell["no python"])
    assert tell["free after failures"]


A_NODE_DIES = """
    def waits():
        kp.init()
        (folder / str(kp.rank())).write_text(os.environ["RAY_RAYLET_PID"])
        time.sleep(100)

    def kill():
        while not all((folder / rank).exists() and (folder / rank).read_text() for rank in "01"):
            time.sleep(0.05)
        raylets = {str(each.all_processes["raylet"][0].process.pid): each for each in nodes}
        tell["killed"] = time.monotonic()
        cluster.remove_node(raylets[(folder / "1").read_text()], allow_graceful=False)

    before = set(os.listdir(tempfile.gettempdir()))
    threading.Thread(target=kill, daemon=True).start()
    try:
        kp.ray.run(waits, placement="STRICT_SPREAD")
    except RuntimeError as error:
        tell["seconds"], tell["error"] = time.monotonic() - tell["killed"], str(error)
    tell["left"] = [each for each in set(os.listdir(tempfile.gettempdir())) - before if "keras-par" in each]
    tell["again"] = kp.ray.run(lambda: "on one node", placement="STRICT_PACK")
"""


def test_a_node_that_dies_is_named_and_the_other_rank_is_ended(told):
    _, tell = told
    assert tell["error"].startswith(
        f"keras-par: rank 1 failed first\nRank 1 on host {socket.gethostname()} vanished together with the agent that "
        "watched it, as when a host dies"
    )
    assert "Then rank 0 " in tell["error"]
    print(f"the dead node was named, and the other rank ended, after {tell['seconds']:.1f} s")
    assert tell["seconds"] < here(NAMED_WITHIN)
    assert tell["again"] == ["on one node"] * 2 and tell["left"] == []


INTERRUPTED = """
    def waits():
        kp.init()
        (folder / str(kp.rank())).touch()
        time.sleep(100)

    try:
        kp.ray.run(waits)
    except KeyboardInterrupt:
        tell["interrupted"] = True
    tell["free"] = all_free(4)
    tell_all()
"""


def test_an_interrupt_ends_the_ranks_and_raises_in_the_caller(tmp_path, rays):
    job = start(tmp_path, INTERRUPTED)
    for rank in "01":
        job.wait_for(tmp_path / rank)
    job.signal(signal.SIGINT)
    ended = job.wait()
    tell = found(ended)
    assert tell["interrupted"] and tell["free"]
    assert "stopping all ranks after the step under way" in ended.stderr


EXECUTOR = """
    from horovod.ray import RayExecutor

    def train(by_kp):
        import keras, numpy as np
        if by_kp:
            kp.init()
            keras.distribution.set_distribution(kp.DataParallel())
            optimizer, rank = keras.optimizers.SGD(0.1), kp.rank()
        else:
            import horovod.tensorflow.keras as hvd
            hvd.init()
            optimizer, rank = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), hvd.rank()
        keras.utils.set_random_seed(3)
        rows = np.random.default_rng(0 if by_kp else rank).normal(size=(70, 4)).astype("float32")
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        model.fit(rows, rows.sum(1), batch_size=16, verbose=0)
        return rank, model.get_weights()[0].tolist()

    for by_kp in (True, False):
        settings = RayExecutor.create_settings(timeout_s=300)
        executor = RayExecutor(settings, num_workers=2, cpus_per_worker=1)
        executor.start(extra_env_vars={"HOROVOD_GLOO_TIMEOUT_SECONDS": "300"})  # not 30, in which a worker loads
        tell[f"by kp: {by_kp}"] = executor.run(train, [by_kp])
        executor.shutdown()
    all_free(4)
"""


def test_horovods_executor_starts_ranks_of_which_horovods_own_layer_reduces_nothing(told):
    _, tell = told
    by_kp, by_horovod = tell["by kp: True"], tell["by kp: False"]
    assert [rank for rank, _ in by_kp] == [rank for rank, _ in by_horovod] == [0, 1]
    assert by_kp[0][1] == by_kp[1][1]
    assert by_horovod[0][1] != by_horovod[1][1]
