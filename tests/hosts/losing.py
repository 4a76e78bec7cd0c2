"""What tests lose hosts of: a training that is long enough, and what its weights are if nothing is lost."""

from pathlib import Path

import numpy as np

from tests import worlds
from tests.hosts.jobs import start
from tests.hosts.namespaces import Hosts
from tests.launcher import Ended, Job, of_kind

NUM_EPOCHS = 8  # at 0.1 s a step they last until a host is back
ENDED_SECONDS = 300  # that they may last on a busy machine


def left_alone(hosts: Hosts, folder: Path) -> list[np.ndarray]:
    """The last weights of a rank on each of the first two hosts."""
    options = ("-H", ",".join(f"{name}:1" for name in hosts.names[:2]))
    ended = start(hosts, *options, *worlds.arguments(folder, NUM_EPOCHS, checkpoints=False)).wait()
    assert ended.status == 0, ended.stderr
    return worlds.weights(folder)


def back_when_it_goes_on(job: Job, hosts: Hosts, host: str, out: Path) -> Ended:
    """How a job ends that has lost a host, which is back once the job has gone on without."""
    try:
        job.wait_until(lambda: len(of_kind(out, "resume")) == 1)
    finally:
        hosts.plug(host)
    ended = job.wait(ENDED_SECONDS, leaves_nothing=False)  # `residents` look whether something is left
    assert ended.status == 0, ended.stderr
    return ended
