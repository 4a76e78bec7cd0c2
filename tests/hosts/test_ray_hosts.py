"""`kp.ray.run` on a cluster of two hosts, one of which is lost.

The hosts are network namespaces, which only root may make.
"""

import subprocess
import time
import uuid

import pytest

from tests.hosts.namespaces import address, hosts
from tests.jobs import write_script
from tests.launcher import MARK, Job
from tests.patience import here
from tests.ranks.pool import environment, scripts
from tests.rays import VARIABLES, folder_of_ray, found

pytestmark = pytest.mark.cluster
LOST_WITHIN = 90.0  # seconds from a host's death, of which no connection tells, so that Ray must find out, to the error
FIRST, SECOND = NAMES = ("kp-ray-0", "kp-ray-1")
# A node that joins does not look for the token that a head finds in its user's home, and is refused.
OF_NODES = {**VARIABLES, "RAY_AUTH_MODE": "disabled"}

ON_HOSTS = """
    import json, os, pathlib, sys, time
    import ray
    import keras_par as kp

    folder, tell = pathlib.Path(sys.argv[1]), {}
    ray.init(address=sys.argv[2])

    def where():
        from keras_par.comm import world
        kp.init()
        kp.barrier()
        return os.uname().nodename, kp.size(), kp.local_size(), world.current().engine

    def waits():
        kp.init()
        part = folder / f"part.{kp.rank()}"
        part.write_text(str(kp.rank()))
        part.rename(folder / os.uname().nodename)
        time.sleep(300)

    for engine in ("gloo", "tensorflow"):
        tell[engine] = kp.ray.run(where, placement="STRICT_SPREAD", env={"KERAS_PAR_ENGINE": engine})
    try:
        kp.ray.run(waits, placement="STRICT_SPREAD")
    except RuntimeError as error:
        tell["error"], tell["time"] = str(error), time.time()
    print(json.dumps(tell), flush=True)
    ray.shutdown()
"""


@pytest.fixture
def pair():
    """Two hosts with a node of Ray's each, the first of which is the head."""
    mark, port = uuid.uuid4().hex, "6399"
    wanted = environment(**OF_NODES, **{MARK: mark})
    wanted = {name: value for name, value in wanted.items() if value is not None}
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    with folder_of_ray(), hosts(*NAMES) as both:
        for number, name in enumerate(NAMES):
            how = head if number == 0 else [f"--address={address(0)}:{port}"]
            command = [str(scripts() / "ray"), "start", *how, f"--node-ip-address={address(number)}", "--num-cpus=1"]
            command += ["--object-store-memory=80000000", "--disable-usage-stats"]
            subprocess.run([*both.within(name), *command], env=wanted, check=True, stdout=subprocess.DEVNULL)
        yield both, f"{address(0)}:{port}"


def test_a_host_that_is_lost_is_named(pair, tmp_path):
    both, cluster = pair
    script = write_script(tmp_path, ON_HOSTS)
    job = Job(script, tmp_path, cluster, within=both.within(FIRST), launcher=(), **OF_NODES)
    for name in NAMES:
        job.wait_for(tmp_path / name)
    rank, lost = (tmp_path / SECOND).read_text(), time.time()
    both.lose(SECOND)
    tell = found(job.wait())
    seconds = tell["time"] - lost
    print(f"the lost host was named, and the other rank ended, after {seconds:.1f} s")
    for engine in ("gloo", "tensorflow"):
        assert sorted(tell[engine]) == [[FIRST, 2, 1, engine], [SECOND, 2, 1, engine]]
    assert f"rank {rank} failed first\nRank {rank} on host {SECOND} vanished together with the agent" in tell["error"]
    assert seconds < here(LOST_WITHIN)
