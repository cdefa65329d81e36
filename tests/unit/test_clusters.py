"""What is decided about clusters without any: placement, launches, variables of SLURM, files of deployments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kuberay
import pytest
import yaml

from shoal._core.deployments import KINDS, Cluster, deployment
from shoal._core.errors import InfeasibleRequest, ShoalError
from shoal._core.launches import launch_of
from shoal._core.nodes import Node, check_nodes, distribute, fits, matches
from shoal._core.scaling import GroupRequest
from shoal._core.slurm import (
    TOGETHER,
    Allocation,
    BatchRequest,
    expanded,
    host_step,
    job_name,
    own_job,
    step_environment,
    telling,
)
from shoal._host.place import import_path, network_variables
from shoal._runtime import context
from shoal._runtime.naming import named


def request(workers: int | tuple[int, int], strategy: str = "PACK", **resources: float) -> GroupRequest:
    low, high = workers if isinstance(workers, tuple) else (workers, workers)
    return GroupRequest(min_workers=low, max_workers=high, resources=resources or {"CPU": 1.0}, strategy=strategy)


# ---- placement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "workers", "rooms", "expected"),
    [
        ("PACK", 3, {"a": 2, "b": 4, "c": 3}, {"c": 3}),  # the smallest that holds all
        ("PACK", 6, {"a": 2, "b": 4, "c": 3}, {"a": 2, "b": 4}),  # the largest, then the smallest that holds the rest
        ("SPREAD", 4, {"a": 2, "b": 4, "c": 1}, {"a": 2, "b": 1, "c": 1}),
        ("STRICT_PACK", 4, {"a": 2, "b": 4}, {"b": 4}),
        ("STRICT_PACK", 5, {"a": 2, "b": 4}, {}),
        ("STRICT_SPREAD", 2, {"a": 2, "b": 0, "c": 1}, {"a": 1, "c": 1}),
        ("STRICT_SPREAD", 3, {"a": 2, "b": 0, "c": 1}, {}),
        ("PACK", 8, {"a": 2, "b": 4}, {}),
        ("PACK", (1, 8), {"a": 2, "b": 4}, {"a": 2, "b": 4}),  # as many as there is room for
        ("PACK", 1, {}, {}),
    ],
)
def test_a_group_is_distributed_as_asked(
    strategy: str, workers: int | tuple[int, int], rooms: dict[str, int], expected: dict[str, int]
):
    assert dict(distribute(request(workers, strategy), list(rooms.items()))) == expected


def test_every_resource_counts_on_a_cluster():
    there = {"CPU": 8.0, "GPU": 2.0, "memory": 16e9}
    assert fits(request(9, CPU=1.0), there) == 8
    assert fits(request(9, CPU=1.0, GPU=1.0), there) == 2
    assert fits(request(9, CPU=1.0, memory=8e9), there) == 2
    assert fits(request(9, CPU=1.0, license=1.0), there) == 0
    assert fits(request(9, CPU=0.1), {"CPU": 0.3}) == 3  # and no less, since 0.3 / 0.1 is less than 3


def test_labels_choose_machines():
    assert matches("b", "b") and not matches("b", None)
    assert matches("!in(a, b)", "c") and not matches("in(a, b)", "c")


def test_what_never_fits_is_told_with_what_there_is():
    nodes = [Node("a", {"CPU": 4.0}), Node("b", {"CPU": 2.0, "GPU": 1.0}, {"zone": "b"})]
    check_nodes(request(6), nodes, "the cluster")
    with pytest.raises(InfeasibleRequest, match=r"room for 6 workers .* Its machines: a: CPU 4; b: CPU 2, GPU 1"):
        check_nodes(request(7), nodes, "the cluster")
    with pytest.raises(InfeasibleRequest, match="the most on one machine is GPU 1"):
        check_nodes(request(1, GPU=2.0), nodes, "the cluster")
    with pytest.raises(InfeasibleRequest, match="wants all of them on one machine"):
        check_nodes(request(5, "STRICT_PACK"), nodes, "the cluster")
    wanted = GroupRequest(min_workers=3, max_workers=3, resources={"CPU": 1.0}, labels={"zone": "b"})
    with pytest.raises(InfeasibleRequest, match=r"not labelled \{'zone': 'b'\}: a"):
        check_nodes(wanted, nodes, "the cluster")


# ---- launches -------------------------------------------------------------------------------------------------------

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURM_JOB_NODELIST": "n[1-3]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PYTORCH_JOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "RANK": "1",
    "WORLD_SIZE": "3",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "PYTHONUNBUFFERED": "1",
}
TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
INDEXED = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0.service"}


@pytest.mark.parametrize(
    ("environment", "by", "place"),
    [
        (TORCHRUN, "torchrun", (3, 4, 1, 2, "a", 1)),
        (SRUN, "srun", (5, 6, 1, 2, "n1", None)),
        (OPEN_MPI, "mpirun", (1, 2, 1, 2, "127.0.0.1", None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "h"}, "mpirun", (1, 2, 0, 2, "h", None)),
        (PYTORCH_JOB, "PyTorchJob", (1, 3, 0, 1, "job-master-0", 23456)),
        (TRAIN_JOB, "TrainJob", (1, 2, 0, 1, "job-node-0-0.job", 29500)),
        (INDEXED, "indexed Job", (2, 4, 0, 1, "job-0.service", 29500)),
    ],
)
def test_a_launched_process_finds_its_place(
    environment: dict[str, str], by: str, place: tuple[int, int, int, int, str, int | None]
):
    found = launch_of(environment)
    assert found is not None and found.by == by
    assert found[1:6] == place[:5]
    assert found.port == place[5] or (place[5] is None and 20000 <= found.port < 30000)
    assert found.variables()["RANK"] == str(place[0])
    assert context.default_engine(environment) == "launched"


@pytest.mark.parametrize(
    ("environment", "engine"),
    [
        ({}, "local"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "local"),  # of something else
        ({"JOB_COMPLETION_INDEX": "0"}, "local"),
        ({**SRUN, "SLURM_STEP_ID": ""}, "slurm"),  # a batch script
        ({**SRUN, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, "slurm"),  # srun --pty bash
        ({"SHOAL_ENGINE": "ray", **TORCHRUN}, "ray"),
    ],
)
def test_what_is_no_launch_is_none(environment: dict[str, str], engine: str):
    assert context.default_engine(environment) == engine


# ---- SLURM ----------------------------------------------------------------------------------------------------------


def test_an_allocation_is_read_from_its_variables():
    found = Allocation.of(
        {
            "SLURM_JOB_ID": "9",
            "SLURM_JOB_NODELIST": "gpu[01-02,7],login",
            "SLURM_JOB_CPUS_PER_NODE": "16(x3),4",
            "SLURM_GPUS_PER_NODE": "a100:2",
            "SLURM_MEM_PER_CPU": "1024",
        }
    )
    assert [node.name for node in found.nodes] == ["gpu01", "gpu02", "gpu7", "login"]
    assert [node.total["CPU"] for node in found.nodes] == [16, 16, 16, 4]
    assert found.nodes[0].total["GPU"] == 2 and found.nodes[0].devices == ("0", "1")
    assert found.nodes[3].total["memory"] == 4 * 2**30
    with pytest.raises(ShoalError, match="no SLURM allocation here"):
        Allocation.of({})
    assert expanded("") == []


def test_a_run_of_a_batch_job_has_a_name_that_stays_and_goes_on_when_the_job_is_queued_again():
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1"}
    assert named("Trainer", None, False, job) == ("Trainer_slurm_12", False)
    assert named("Trainer", None, False, job) == ("Trainer_slurm_12_2", False)  # the second one of the script
    again = {**job, "SLURM_RESTART_COUNT": "1"}
    assert named("Tuner", None, False, again) == ("Tuner_slurm_12", "auto")
    assert named("Trainer", "mine", False, again) == ("mine", "auto")
    assert named("Trainer", "mine", True, again) == ("mine", True)
    assert job_name({**job, "SLURM_STEP_ID": "0"}) == ""
    assert job_name({**job, "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}) == "slurm_10_3"
    assert named("Trainer", None, False, {})[0] != named("Trainer", None, False, {})[0]


ARRAY = {"SLURM_JOB_ID": "10", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_a_job_of_an_array_is_named_by_its_index_since_its_number_may_be_that_of_the_whole_array():
    assert own_job(ARRAY) == "10_3"
    assert own_job({"SLURM_JOB_ID": "12"}) == "12"
    chosen = next(line for line in BatchRequest(script="a").text().splitlines() if "task=" in line)
    for environment, name in ((ARRAY, "10_3"), ({"SLURM_JOB_ID": "12"}, "12")):
        script = f"{chosen}\necho ${{task:-$SLURM_JOB_ID}}"
        assert subprocess.check_output(["bash", "-c", script], env=environment, text=True).strip() == name


def test_jobs_that_work_together_have_one_run_which_goes_on_in_whichever_of_them_leads():
    together = {**ARRAY, TOGETHER: "/shared/search-10.jobs"}
    assert named("Tuner", None, False, together) == ("Tuner_slurm_10", "auto")
    text = BatchRequest(script="/search.py", name="search", together=3).text()
    assert "#SBATCH --array=0-2" in text
    assert "-m shoal.engines.slurm_member /search.py" in text


def test_machines_that_two_jobs_have_in_common_are_two_places_of_their_own():
    first = Allocation.of({**ARRAY, "SLURM_JOB_CPUS_PER_NODE": "4(x2)"})
    second = Allocation.of(telling({**ARRAY, "SLURM_JOB_ID": "11", "SLURM_JOB_CPUS_PER_NODE": "2(x2)", "SECRET": "no"}))
    names = [node.name for job in (first, second) for node in job.shared()]
    assert names == ["n1/10", "n2/10", "n1/11", "n2/11"]
    assert [node.total["CPU"] for node in second.shared()] == [2, 2]
    assert "SECRET" not in telling({**ARRAY, "SECRET": "no"})


def test_a_step_of_another_job_knows_nothing_of_this_one():
    here = {**ARRAY, "SLURM_CONF": "/etc/slurm.conf", "SLURM_MEM_PER_CPU": "9", "SBATCH_ACCOUNT": "me", "PATH": "/bin"}
    assert step_environment(here, "11") == {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}
    assert step_environment(here, "") == {n: v for n, v in here.items() if n != "SLURM_MEM_PER_CPU"}
    assert "--jobid=11" in host_step(["n1"], ["host"], "11")
    assert not any(option.startswith("--jobid") for option in host_step(["n1"], ["host"]))


def test_names_with_spaces_and_quotes_stay_whole_in_a_batch_script():
    text = BatchRequest(script="/a b/train.py", arguments=("it's", "$HOME")).text()
    assert """'/a b/train.py' 'it'"'"'s' '$HOME'""" in text


# ---- a machine ------------------------------------------------------------------------------------------------------


def test_a_host_says_how_others_reach_it(monkeypatch: pytest.MonkeyPatch):
    found = network_variables("tcp://127.0.0.1:9", {})
    assert found == {"SHOAL_HOST_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    kept = network_variables("tcp://192.0.2.7:9", {"SHOAL_HOST_INTERFACE": "lo", "NCCL_SOCKET_IFNAME": "ib0"})
    assert kept == {"SHOAL_HOST_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    with pytest.raises(OSError, match="no such interface"):
        network_variables("tcp://127.0.0.1:9", {"SHOAL_HOST_INTERFACE": "nothing0"})


def test_modules_are_looked_for_where_the_driver_does_if_that_is_here(tmp_path: Path):
    found = import_path([str(tmp_path), "/nowhere/at/all"])
    assert found[0] == str(tmp_path)
    assert "/nowhere/at/all" not in found and len(found) > 1


def test_settings_of_other_engines_are_refused():
    with pytest.raises(ValueError, match="runtime_env is a setting of the engine 'ray', not of 'slurm'"):
        context.init("slurm", num_cpus=None, num_gpus=None, resources=None, local_mode=False, runtime_env={"pip": []})
    with pytest.raises(ValueError, match="heartbeat_s is a setting of the engine 'ray' or 'slurm', not of 'local'"):
        context.init("local", num_cpus=None, num_gpus=None, resources=None, local_mode=False, heartbeat_s=3.0)


# ---- deployments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_files_for_clouds_fit_the_schema_of_ray_s_launcher(kind: str, gpus: int):
    ray = pytest.importorskip("ray", reason="Ray is not installed here")
    import jsonschema

    schema = json.loads(Path(ray.__file__).with_name("autoscaler").joinpath("ray-schema.json").read_text())
    text = deployment(kind, Cluster(nodes=4, least=1, gpus=gpus, cpus=16))["cluster.yaml"]
    found = yaml.safe_load(text)
    jsonschema.validate(found, schema)
    assert (found["max_workers"], found["available_node_types"]["workers"]["min_workers"]) == (4, 1)
    assert found["available_node_types"]["workers"]["resources"].get("GPU", 0) == gpus
    assert found["available_node_types"]["head"]["resources"] == {"CPU": 0}


@pytest.mark.parametrize("gpus", [0, 2])
def test_files_for_kubernetes_have_the_fields_of_its_operator_and_keep_strangers_out(gpus: int):
    import jsonschema

    files = deployment("kubernetes", Cluster(nodes=4, least=1, gpus=gpus, image="me/shoal:1"))
    cluster, job = (yaml.safe_load(files[name]) for name in ("raycluster.yaml", "rayjob.yaml"))
    jsonschema.validate(cluster, kuberay.resource("RayCluster"))
    jsonschema.validate(job, kuberay.resource("RayJob"))
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert cluster["spec"]["rayVersion"] == "2.60.0"  # the operator wants to know that tokens exist there
    cluster["spec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="'maxReplica' was unexpected"):
        jsonschema.validate(cluster, kuberay.resource("RayCluster"))


@pytest.mark.parametrize("gpus", [0, 2])
def test_files_for_kubernetes_have_pods_that_fit_its_schema(gpus: int):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed here")
    files = deployment("kubernetes", Cluster(nodes=4, least=1, gpus=gpus, image="me/shoal:1"))
    cluster, job = (yaml.safe_load(files[name]) for name in ("raycluster.yaml", "rayjob.yaml"))
    assert job["spec"]["rayClusterSpec"] == cluster["spec"]
    workers = cluster["spec"]["workerGroupSpecs"][0]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (1, 4)
    for template in (cluster["spec"]["headGroupSpec"]["template"], workers["template"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template}
        validate.validate(pod, validate.latest_version(), strict=True)
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits.get("nvidia.com/gpu") == (str(gpus) if gpus else None)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"name": "My_Cluster"}, "--name 'My_Cluster': give at most 40 small letters, digits and '-'"),
        ({"name": "a" * 41}, "give at most 40"),
        ({"least": 3, "nodes": 2}, "--min-nodes 3 --nodes 2: give 0 <= min <= nodes"),
        ({"cpus": 0}, "--cpus 0: give 1 or more"),
        ({"gpus": -1}, "--gpus -1: give 0 or more"),
        ({"script": "my train.py"}, "--script 'my train.py'"),
    ],
)
def test_clusters_that_cannot_be_are_refused(asked: dict[str, object], words: str):
    with pytest.raises(ShoalError) as refused:
        deployment("kubernetes", Cluster(**asked))  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_a_script_in_a_directory_is_run_by_the_name_that_kubernetes_gives_it():
    job = deployment("kubernetes", Cluster(script="code/train.py"))["rayjob.yaml"]
    assert "--from-file=code/train.py" in job and "entrypoint: python /script/train.py" in job


def test_every_kind_of_deployment_says_in_comments_how_it_is_used():
    for kind in KINDS:
        for name, text in deployment(kind, Cluster()).items():
            assert "#" in text, name
