"""The variables by which launchers tell a process which rank it is: torchrun, srun, mpirun, operators of Kubernetes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoal._core.slurm import expanded

Environment = Mapping[str, str]
PORTS = range(20000, 30000)  # for the meeting of a launch that names no port


class Launch(NamedTuple):
    """The place of a process in a launch, and where all of them meet."""

    by: str
    rank: int
    world_size: int
    local_rank: int
    local_size: int
    master: str
    port: int

    def variables(self) -> dict[str, str]:
        """Return the place under the names that torchrun uses."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.master,
            "MASTER_PORT": str(self.port),
        }


def launch_of(environment: Environment) -> Launch | None:
    """Return the place of this process in a launch of several; ``None`` if there was none.

    Examples
    --------
    >>> launch_of({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "a"}).rank
    1
    """
    for read in (_torchrun, _srun, _open_mpi, _mpich, _pytorch_job, _train_job, _indexed_job):
        found = read(environment)
        if found is not None:
            return found
    return None


def _has(environment: Environment, *names: str) -> bool:
    return all(environment.get(name) for name in names)


def _torchrun(env: Environment) -> Launch | None:
    if not _has(env, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        return None
    size = int(env["WORLD_SIZE"])
    local = int(env.get("LOCAL_WORLD_SIZE", size))
    port = int(env["MASTER_PORT"])
    return Launch("torchrun", int(env["RANK"]), size, int(env["LOCAL_RANK"]), local, env["MASTER_ADDR"], port)


def _srun(env: Environment) -> Launch | None:
    """A task of a step with several tasks; a batch script, which has the same variables, is in no step."""
    size = int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or 1)
    if not _has(env, "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_JOB_ID") or size < 2:
        return None
    nodes = expanded(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")) or ["127.0.0.1"]
    local = int((env.get("SLURM_STEP_TASKS_PER_NODE") or str(size)).partition("(")[0].partition(",")[0])
    master = "127.0.0.1" if len(nodes) == 1 else env.get("MASTER_ADDR", nodes[0])
    port = _port(env, f"{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}")
    return Launch("srun", int(env["SLURM_PROCID"]), size, int(env.get("SLURM_LOCALID", 0)), local, master, port)


def _mpi(rank: str, size: str, local_rank: str, local_size: str, name: str) -> Callable[..., Launch | None]:
    def read(env: Environment) -> Launch | None:
        if not _has(env, rank, size) or int(env[size]) < 2:
            return None
        local = int(env.get(local_size, env[size]))
        one_machine = local == int(env[size])
        master = env.get("MASTER_ADDR") or ("127.0.0.1" if one_machine else "")
        port = _port(env, env.get(name, "mpi"))
        return Launch("mpirun", int(env[rank]), int(env[size]), int(env.get(local_rank, 0)), local, master, port)

    return read


_open_mpi = _mpi(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
)
_mpich = _mpi("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_PORT")


def _pytorch_job(env: Environment) -> Launch | None:
    """Kubeflow's PyTorchJob: one process in each pod, without a local rank."""
    if not _has(env, "KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        return None
    return _one_a_pod("PyTorchJob", env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"])


def _train_job(env: Environment) -> Launch | None:
    """Kubeflow's TrainJob: what torchrun takes as parameters, for a script that is started without it."""
    if not _has(env, "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"):
        return None
    nodes = env["PET_NNODES"].partition(":")[0]
    return _one_a_pod("TrainJob", env["PET_NODE_RANK"], nodes, env["PET_MASTER_ADDR"], env["PET_MASTER_PORT"])


def _indexed_job(env: Environment) -> Launch | None:
    """An indexed Job or a JobSet of them: Kubernetes gives the index; how many there are stands in the manifest."""
    if not _has(env, "JOB_COMPLETION_INDEX", "WORLD_SIZE", "MASTER_ADDR"):
        return None
    port = env.get("MASTER_PORT", "29500")
    return _one_a_pod("indexed Job", env["JOB_COMPLETION_INDEX"], env["WORLD_SIZE"], env["MASTER_ADDR"], port)


def _one_a_pod(by: str, rank: str, size: str, master: str, port: str) -> Launch | None:
    return Launch(by, int(rank), int(size), 0, 1, master, int(port)) if int(size) > 1 else None


def _port(env: Environment, launch: str) -> int:
    """Return a port that all processes of a launch find out by themselves."""
    return int(env.get("MASTER_PORT") or PORTS[zlib.crc32(launch.encode()) % len(PORTS)])
