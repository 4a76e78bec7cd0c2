"""Pods train together: those of the plain Job by their names, Kubeflow's by the keys, hosts and variables it gives.

The Pods are network namespaces, which only root may make.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.hosts.namespaces import FILES, ONLY_ROOT, hosts
from tests.hosts.openssh import ENVIRONMENT, NOT_INSTALLED, SERVER, servers
from tests.launcher import Job
from tests.manifests import FOLDER, JOB, POD, RUNTIME, TRAIN_JOB, Pods, trained

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason=ONLY_ROOT),
]
NUMBERED = [f"{JOB['metadata']['name']}-{index}.{POD['subdomain']}" for index in range(JOB["spec"]["completions"])]
PODS = LAUNCHER, NODE = "train-launcher-0-0.train", "train-node-0-0.train"
USER = 1000
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]


def test_the_jobs_pods_find_the_first_by_its_name(tmp_path):
    with hosts(*NUMBERED) as both:
        ends = trained(Pods(tmp_path, [both.within(pod) for pod in NUMBERED]))
    assert len({loss for loss, _ in ends}) == 1


@pytest.fixture
def pods():
    """Two hosts with the names of a TrainJob's Pods."""
    assert Path(SERVER).exists(), NOT_INSTALLED
    with hosts(*PODS) as both:
        yield both


def test_the_train_job_trains_on_two_pods(pods, tmp_path):
    """As root, with any ssh: the image's is tried below."""
    trainer = TRAIN_JOB["trainer"]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{pod} slots={trainer['numProcPerNode']}\n" for pod in PODS))
    changed = {"/etc/mpi/hostfile": hostfile, "train.py": FOLDER / "train.py", "/checkpoints": tmp_path / "ckpt"}
    given = {
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(trainer["numProcPerNode"]),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    with servers(pods):
        job = Job(*[changed.get(each, each) for each in trainer["args"]], within=pods.within(LAUNCHER), **given)
        ended = job.wait()
    assert ended.status == 0, ended.stderr
    ends = sorted(re.findall(r"\[\d\] rank (\d) of (\d): loss ([\d.]+)", ended.stdout))
    num_ranks = trainer["numNodes"] * trainer["numProcPerNode"]
    assert [end[:2] for end in ends] == [(str(rank), str(num_ranks)) for rank in range(num_ranks)]
    assert len({loss for _, _, loss in ends}) == 1


@pytest.fixture
def keys():
    """A folder with a key pair as Kubeflow Trainer mounts it: root's, and readable for the image's user's group."""
    with tempfile.TemporaryDirectory(prefix="kp-keys-", dir="/run") as name:
        folder = Path(name)
        key = folder / "id_rsa"
        kind = ["-t", "ecdsa", "-b", "521", "-m", "PEM"]
        subprocess.run(["ssh-keygen", "-q", *kind, "-N", "", "-f", key], check=True)
        (folder / "authorized_keys").write_text((folder / "id_rsa.pub").read_text())
        for path in (folder, *folder.iterdir()):
            os.chown(path, 0, USER)
            path.chmod(0o2770 if path == folder else 0o640)
        yield folder


def test_the_images_ssh_takes_kubeflows_keys(pods, keys):
    """Server and client are the image's user's, who is not root."""
    mounted = RUNTIME["mlPolicy"]["mpi"]["sshAuthMountPath"]
    for name in ("sshd_config", "ssh_config"):
        (keys / name).write_text((FOLDER / name).read_text().replace(mounted, str(keys)))
    for pod in PODS:  # what the Dockerfile's useradd does
        users = re.sub(rf"(?m)^[^:]+:[^:]*:{USER}:.*\n", "", Path("/etc/passwd").read_text())
        (FILES / pod / "passwd").write_text(users + f"trainer:x:{USER}:{USER}::/:/bin/sh\n")
    server = pods.start(NODE, [*AS_USER, SERVER, "-D", "-e", "-f", str(keys / "sshd_config")], ENVIRONMENT)
    try:
        client = [*AS_USER, "ssh", "-F", str(keys / "ssh_config"), "-i", str(keys / "id_rsa"), NODE, "id -un; hostname"]
        done = subprocess.run([*pods.within(LAUNCHER), *client], capture_output=True, text=True)
        while done.returncode and server.poll() is None and "refused" in done.stderr:
            time.sleep(0.05)
            done = subprocess.run([*pods.within(LAUNCHER), *client], capture_output=True, text=True)
        assert done.stdout.split() == ["trainer", NODE], done.stderr
    finally:
        server.kill()
        server.wait()
        for pod in PODS:
            (FILES / pod / "passwd").unlink()
