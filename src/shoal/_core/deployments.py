"""The files that make a cluster: for the KubeRay operator, for Ray's cluster launcher on clouds, for SLURM."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from shoal._core.errors import ShoalError
from shoal._core.slurm import BatchRequest

RAY = "2.60.0"  # the version that the tests run with


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is asked of a cluster.

    Attributes
    ----------
    name : str
        Its name.
    nodes : int
        How many machines with workers there are at most.
    least : int
        How many there are at least; fewer than ``nodes`` let the cluster grow and shrink.
    cpus, memory, gpus
        Of each of them; memory in GiB.
    machine : str
        The cloud's name of the machines; empty for one that fits.
    region : str
        Where they are.
    image : str
        The container image: Python, ray and shoal of the versions of the driver.
    project : str
        GCP's project, Azure's resource group.
    """

    name: str = "shoal"
    nodes: int = 2
    least: int = 0
    cpus: int = 8
    memory: int = 32
    gpus: int = 0
    machine: str = ""
    region: str = ""
    image: str = ""
    project: str = ""
    script: str = "train.py"


def deployment(kind: str, cluster: Cluster) -> dict[str, str]:
    """Return the files of a deployment, each with its text.

    Raises
    ------
    ShoalError
        If what is asked for cannot be, or the names of Kubernetes and the clouds cannot hold it.

    Examples
    --------
    >>> sorted(deployment("kubernetes", Cluster(nodes=4)))
    ['raycluster.yaml', 'rayjob.yaml']
    """
    if kind not in KINDS:
        raise ShoalError(f"there are no files for {kind!r}: choose one of {', '.join(sorted(KINDS))}")
    check(cluster)
    return KINDS[kind](cluster)


def check(c: Cluster) -> None:
    """Raise :class:`ShoalError` where something of a cluster cannot be."""
    if not 0 <= c.least <= c.nodes or c.nodes < 1:
        raise ShoalError(f"--min-nodes {c.least} --nodes {c.nodes}: give 0 <= min <= nodes, and a node")
    for option, value, least in (("cpus", c.cpus, 1), ("memory", c.memory, 1), ("gpus", c.gpus, 0)):
        if value < least:
            raise ShoalError(f"--{option} {value}: give {least} or more")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", c.name):
        raise ShoalError(
            f"--name {c.name!r}: give at most 40 small letters, digits and '-', with a letter first and no '-' at the "
            "end, as Kubernetes and the clouds want it"
        )
    if not re.fullmatch(r"[-._a-zA-Z0-9/]+", c.script):
        raise ShoalError(
            f"--script {c.script!r}: files name it in shells and keys; give letters, digits, '-', '_', '.'"
        )


def _kubernetes(c: Cluster) -> dict[str, str]:
    spec = _ray_cluster_spec(c)
    head = f"""# A Ray cluster for shoal on Kubernetes, for the KubeRay operator (1.5.1 or newer).
#   kubectl apply -f FILE
# Who connects or submits needs the token, which the operator makes:
#   kubectl get secret {c.name} -o jsonpath='{{.data.auth_token}}' | base64 -d
# Machines come and go between {c.least} and {c.nodes} with what runs ask for.
"""
    cluster = f"""{head}apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: {c.name}
spec:
{_indented(spec, 2)}"""
    job = f"""# One script on a Ray cluster of its own, which is gone when the script has ended.
#   kubectl create configmap {c.name}-script --from-file={c.script}
#   kubectl apply -f rayjob.yaml && kubectl logs -f -l job-name={c.name}-job
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {c.name}-job
spec:
  entrypoint: python /script/{PurePosixPath(c.script).name}
  shutdownAfterJobFinishes: true
  # The run goes on where it was when its driver is started again: give RunConfig a name, storage, and resume="auto".
  backoffLimit: 3
  runtimeEnvYAML: |
    env_vars:
      SHOAL_ENGINE: ray
  rayClusterSpec:
{_indented(spec, 4)}"""
    return {"raycluster.yaml": cluster, "rayjob.yaml": job}


def _ray_cluster_spec(c: Cluster) -> str:
    image = c.image or "REGISTRY/shoal:latest"
    gpus = f'\n                nvidia.com/gpu: "{c.gpus}"' if c.gpus else ""
    return f"""# That of the image; tokens exist from 2.52 on.
rayVersion: "{RAY}"
# Without it, whoever reaches the head runs code on the cluster.
authOptions:
  mode: token
enableInTreeAutoscaling: {"true" if c.least < c.nodes else "false"}
headGroupSpec:
  rayStartParams:
    # No work on the head: it must outlive the workers.
    num-cpus: "0"
    # Jobs are submitted through a Kubernetes service, which reaches this address only.
    dashboard-host: 0.0.0.0
  template:
    spec:
      containers:
        - name: ray-head
          image: {image}
          ports:
            - containerPort: 6379
              name: gcs
            - containerPort: 8265
              name: dashboard
            - containerPort: 10001
              name: client
          env:
            # With it, servers for ray:// may die as they start: https://github.com/grpc/grpc/issues/43055.
            - name: GRPC_ENABLE_FORK_SUPPORT
              value: "0"
          resources:
            limits:
              cpu: "2"
              memory: 8Gi
            requests:
              cpu: "2"
              memory: 8Gi
          volumeMounts:
            - name: script
              mountPath: /script
      volumes:
        - name: script
          configMap:
            name: {c.name}-script
            optional: true
workerGroupSpecs:
  - groupName: workers
    replicas: {max(c.least, 0)}
    minReplicas: {c.least}
    maxReplicas: {c.nodes}
    rayStartParams: {{}}
    template:
      spec:
        # Time for a checkpoint when a machine is taken back; see train.get_preemption_info().
        terminationGracePeriodSeconds: 120
        containers:
          - name: ray-worker
            image: {image}
            resources:
              limits:
                cpu: "{c.cpus}"
                memory: {c.memory}Gi{gpus}
              requests:
                cpu: "{c.cpus}"
                memory: {c.memory}Gi
            volumeMounts:
              - name: shm
                mountPath: /dev/shm
        volumes:
          # Loaders of torch and NCCL share memory between processes.
          - name: shm
            emptyDir:
              medium: Memory
"""


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line + "\n" if line else "\n" for line in text.splitlines())


def _aws(c: Cluster) -> dict[str, str]:
    machine = c.machine or ("g5.xlarge" if c.gpus else _fitting(c, _AWS))
    return _launcher(
        c,
        provider=f"""  type: aws
  region: {c.region or "us-west-2"}
""",
        user="ubuntu",
        head="    InstanceType: m5.xlarge\n",
        worker=f"""    InstanceType: {machine}
    # Spot machines are taken back with two minutes of notice; runs go on from their newest checkpoint.
    InstanceMarketOptions:
      MarketType: spot
""",
    )


def _gcp(c: Cluster) -> dict[str, str]:
    machine = c.machine or ("n1-standard-8" if c.gpus else _fitting(c, _GCP))
    region = c.region or "us-west1"
    disk = """    disks:
      - boot: true
        autoDelete: true
        type: PERSISTENT
        initializeParams:
          diskSizeGb: 100
          sourceImage: projects/deeplearning-platform-release/global/images/family/common-cpu
"""
    gpus = f"""    guestAccelerators:
      - acceleratorType: nvidia-tesla-t4
        acceleratorCount: {c.gpus}
    metadata:
      items:
        - key: install-nvidia-driver
          value: "True"
"""
    return _launcher(
        c,
        provider=f"""  type: gcp
  region: {region}
  availability_zone: {region}-a
  project_id: {c.project or "PROJECT"}
""",
        user="ubuntu",
        head=f"    machineType: n2-standard-4\n{disk}",
        worker=f"""    machineType: {machine}
{disk}{gpus if c.gpus else ""}    scheduling:
      # Preemptible machines are taken back with thirty seconds of notice.
      preemptible: true
""",
    )


def _azure(c: Cluster) -> dict[str, str]:
    machine = c.machine or ("Standard_NC4as_T4_v3" if c.gpus else _fitting(c, _AZURE))
    image = """      imagePublisher: microsoft-dsvm
      imageOffer: ubuntu-2204
      imageSku: 2204-gen2
      imageVersion: latest
"""
    return _launcher(
        c,
        provider=f"""  type: azure
  location: {c.region or "westus2"}
  resource_group: {c.project or c.name}
""",
        user="ubuntu",
        extra_auth="  ssh_private_key: ~/.ssh/id_rsa\n  ssh_public_key: ~/.ssh/id_rsa.pub\n",
        head=f"    azure_arm_parameters:\n      vmSize: Standard_D4s_v3\n{image}",
        worker=f"    azure_arm_parameters:\n      vmSize: {machine}\n{image}      priority: Spot\n",
    )


_AWS = ((4, "m5.xlarge"), (8, "m5.2xlarge"), (16, "m5.4xlarge"), (32, "m5.8xlarge"), (96, "m5.24xlarge"))
_GCP = tuple((cpus, f"n2-standard-{cpus}") for cpus in (4, 8, 16, 32, 64, 96))
_AZURE = tuple((cpus, f"Standard_D{cpus}s_v3") for cpus in (4, 8, 16, 32, 64))


def _fitting(c: Cluster, machines: tuple[tuple[int, str], ...]) -> str:
    """Return the smallest machine with enough CPUs; the largest where none has."""
    return next((name for cpus, name in machines if cpus >= c.cpus), machines[-1][1])


def _launcher(c: Cluster, *, provider: str, user: str, head: str, worker: str, extra_auth: str = "") -> dict[str, str]:
    gpus = f", GPU: {c.gpus}" if c.gpus else ""
    text = f"""# A cluster for shoal, for Ray's cluster launcher (pip install "shoal[ray]").
#   ray get-auth-token --generate        make its token, once
#   ray up cluster.yaml                  make it, or change it to what this file says
#   shoal submit --address http://127.0.0.1:8265 {c.script}     (while `ray dashboard cluster.yaml` runs)
#   ray down cluster.yaml                take it down
# Machines come and go between {c.least} and {c.nodes} with what runs ask for.
cluster_name: {c.name}
max_workers: {c.nodes}
idle_timeout_minutes: 10

provider:
{provider}
auth:
  ssh_user: {user}
{extra_auth}
available_node_types:
  head:
    # No work on the head: it must outlive the workers.
    resources: {{CPU: 0}}
    node_config:
{_indented(head, 2)}  workers:
    min_workers: {c.least}
    max_workers: {c.nodes}
    resources: {{CPU: {c.cpus}{gpus}}}
    node_config:
{_indented(worker, 2)}head_node_type: head

# Strangers are kept out by the token, which every machine gets from here.
file_mounts:
  ~/.ray/auth_token: ~/.ray/auth_token

# The same versions as on the machine that submits.
setup_commands:
  - python3 -m pip install "shoal[ray,torch]"

head_start_ray_commands:
  - ray stop
  # With gRPC's fork support servers for ray:// may die as they start: https://github.com/grpc/grpc/issues/43055.
  - >-
    RAY_AUTH_MODE=token GRPC_ENABLE_FORK_SUPPORT=0
    ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml

worker_start_ray_commands:
  - ray stop
  - RAY_AUTH_MODE=token ray start --address=$RAY_HEAD_IP:6379
"""
    return {"cluster.yaml": text}


def _slurm(c: Cluster) -> dict[str, str]:
    request = BatchRequest(
        script=c.script,
        name=c.name,
        nodes=c.nodes,
        gpus_per_node=c.gpus,
        cpus_per_node=c.cpus,
        memory=f"{c.memory}G",
        time="4:00:00",
        output=f"{c.name}-%j.out",
    )
    return {f"{c.name}.sbatch": request.text()}


KINDS: dict[str, Callable[[Cluster], dict[str, str]]] = {
    "kubernetes": _kubernetes,
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
    "slurm": _slurm,
}
