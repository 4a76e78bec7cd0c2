"""Pods train together: those of the plain Job by their names, Kubeflow's by the keys, hosts and variables it gives.

The Pods are network namespaces, which only root may make.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.namespaces import FILES, Hosts, hosts
from tests.hosts.openssh import ENVIRONMENT, NOT_INSTALLED, SERVER
from tests.launcher import Job
from tests.manifests import FOLDER, JOB, POD, RUNTIME, TRAIN_JOB, Pods, trained
from tests.patience import comes_to_be
from tests.ranks.pool import WITHOUT_HOROVOD

pytestmark = pytest.mark.cluster
NUMBERED = [f"{JOB['metadata']['name']}-{index}.{POD['subdomain']}" for index in range(JOB["spec"]["completions"])]
LAUNCHER, NODE = "train-launcher-0-0.train", "train-node-0-0.train"
USER, UID = "trainer", 1000
AS_USER = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]


@pytest.fixture(scope="module")
def pods():
    """Hosts with the names of the Job's Pods and of a TrainJob's."""
    assert Path(SERVER).exists(), NOT_INSTALLED
    with hosts(*NUMBERED, LAUNCHER, NODE) as all_four:
        yield all_four


@pytest.mark.parametrize("variables", [{}, WITHOUT_HOROVOD], ids=["", "without Horovod"])
def test_the_jobs_pods_find_the_first_by_its_name(variables, pods, tmp_path):
    ends = trained(Pods(tmp_path, [pods.within(pod) for pod in NUMBERED], **variables))
    assert len({loss for loss, _ in ends}) == 1


@contextlib.contextmanager
def joined(pods: Hosts, user: str) -> Iterator[None]:
    """Within it the launcher's Pod gets to the node's by ssh, as the image has it, with a key as Kubeflow mounts it.

    Args:
        pods: of which these are two.
        user: "trainer", whose key is root's and can be read by his group, or "root", with a key of his own.
    """
    own, mode = ([], 0o600) if user == "root" else (AS_USER, 0o640)
    Path("/run/sshd").mkdir(exist_ok=True)  # which a server of root's wants to be there
    with tempfile.TemporaryDirectory(prefix="kp-keys-", dir="/run") as name, contextlib.ExitStack() as stack:
        make_keys(Path(name), mode)
        mounted = RUNTIME["mlPolicy"]["mpi"]["sshAuthMountPath"]
        (Path(name) / "sshd_config").write_text((FOLDER / "sshd_config").read_text().replace(mounted, name))
        client = (
            (FOLDER / "ssh_config").read_text().replace(f"User {USER}", f"User {user}\n    IdentityFile {name}/id_rsa")
        )
        for pod in (LAUNCHER, NODE):
            (FILES / pod / "ssh").mkdir()
            stack.callback(shutil.rmtree, FILES / pod / "ssh")
            (FILES / pod / "ssh" / "ssh_config").write_text(client)
            (FILES / pod / "passwd").write_text(users())
            stack.callback((FILES / pod / "passwd").unlink)
        server = pods.start(NODE, [*own, SERVER, "-D", "-e", "-f", f"{name}/sshd_config"], ENVIRONMENT)
        stack.callback(server.wait)
        stack.callback(server.kill)
        assert comes_to_be(lambda: said(pods, own, "true").returncode == 0), said(pods, own, "true").stderr
        yield


def make_keys(folder: Path, mode: int) -> None:
    """A key pair of the kind that Kubeflow Trainer makes."""
    kind = ["-t", "ecdsa", "-b", "521", "-m", "PEM"]
    subprocess.run(["ssh-keygen", "-q", *kind, "-N", "", "-f", folder / "id_rsa"], check=True)
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, UID)
        path.chmod(0o770 if path == folder else mode)


def users() -> str:
    """This machine's users, with the image's in the place of whoever has his number."""
    others = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[2] != str(UID)]
    return "".join(f"{line}\n" for line in [*others, f"{USER}:x:{UID}:{UID}::/:/bin/sh"])


def said(pods: Hosts, own: list[str], command: str) -> subprocess.CompletedProcess:
    """What comes of a command on the node's Pod that the launcher's gives by ssh."""
    within = [*pods.within(LAUNCHER), *own, "ssh", NODE, command]
    return subprocess.run(within, env=ENVIRONMENT, capture_output=True, text=True)


def test_the_images_user_may_use_kubeflows_key(pods):
    with joined(pods, USER):
        assert said(pods, AS_USER, "id -un; hostname").stdout.split() == [USER, NODE]


def test_the_train_job_trains_on_two_pods(pods, tmp_path):
    """As root, who alone may use the tests' Python."""
    trainer = TRAIN_JOB["trainer"]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{pod} slots={trainer['numProcPerNode']}\n" for pod in (LAUNCHER, NODE)))
    changed = {
        "/etc/mpi/hostfile": hostfile,
        "train.py": FOLDER / "train.py",
        "/checkpoints/trainjob": tmp_path / "ckpt",
    }
    given = {
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(trainer["numProcPerNode"]),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    with joined(pods, "root"):
        ended = Job(
            *[changed.get(each, each) for each in trainer["args"]], within=pods.within(LAUNCHER), **given
        ).wait()
    assert ended.status == 0, ended.stderr
    ends = sorted(re.findall(r"\[\d\] rank (\d) of (\d): loss ([\d.]+)", ended.stdout))
    num_ranks = trainer["numNodes"] * trainer["numProcPerNode"]
    assert [end[:2] for end in ends] == [(str(rank), str(num_ranks)) for rank in range(num_ranks)]
    assert len({loss for _, _, loss in ends}) == 1
