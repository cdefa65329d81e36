"""What SLURM says in its variables, and the texts that it is given: requests are made before they are sent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal._core.errors import ShoalError
from shoal._core.nodes import Node

REQUEUE = 85  # the exit code of a driver whose job is to be queued again
TOGETHER = "SHOAL_SLURM_JOBS"  # the directory that the jobs of an array share which work together
_TELLING = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
)


def expanded(nodes: str) -> list[str]:
    """Return the names in a list of SLURM's, which ``scontrol`` would expand: it is not on every machine.

    Examples
    --------
    >>> expanded("a[1-2,08-10],login,r[1-2]n[1-2]")
    ['a1', 'a2', 'a08', 'a09', 'a10', 'login', 'r1n1', 'r1n2', 'r2n1', 'r2n2']
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        names = [""]
        for text, numbers in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", part):
            choices = [number for piece in numbers.split(",") for number in _range(piece)] if numbers else [""]
            names = [name + text + choice for name in names for choice in choices]
        found += names
    return found


def _range(piece: str) -> list[str]:
    first, dash, last = piece.partition("-")
    if not dash:
        return [first]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def repeated(counts: str) -> list[int]:
    """Return numbers that SLURM has shortened.

    Examples
    --------
    >>> repeated("4(x2),8")
    [4, 4, 8]
    """
    found: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        found += [int(number)] * int(times or 1)
    return found


@dataclass(frozen=True)
class Allocation:
    """The machines of a job: each with its CPUs, GPUs and memory in bytes."""

    job: str
    nodes: tuple[Node, ...]

    def shared(self) -> tuple[Node, ...]:
        """Return the machines under names that tell them from those of other jobs, which may be the same ones."""
        return tuple(node._replace(name=f"{node.name}/{self.job}") for node in self.nodes)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Allocation:
        """Read what SLURM has put into the variables of a batch script, or of ``salloc``.

        Raises
        ------
        ShoalError
            Where there is no allocation.
        """
        job = environment.get("SLURM_JOB_ID")
        listed = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
        if not job or not listed:
            raise ShoalError(
                "there is no SLURM allocation here: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set. Start the script "
                "with sbatch or in salloc, or submit it from a login node: shoal submit --engine slurm script.py"
            )
        names = expanded(listed)
        cpus = repeated(environment.get("SLURM_JOB_CPUS_PER_NODE", "")) or [1]
        gpus = _gpus_on_each(environment, len(names))
        memory = _memory(environment)
        return cls(
            job,
            tuple(
                Node(
                    name,
                    {
                        "CPU": float(count := cpus[min(index, len(cpus) - 1)]),
                        "GPU": float(gpus),
                        "memory": memory(count),
                    },
                    {"node": name},
                    tuple(map(str, range(gpus))),
                )
                for index, name in enumerate(names)
            ),
        )


def _gpus_on_each(environment: Mapping[str, str], nodes: int) -> int:
    """Return how many GPUs each machine of a job has."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if digits := re.search(r"(\d+)$", environment.get(name, "")):
            return int(digits.group(1))
    if digits := re.search(r"(\d+)$", environment.get("SLURM_GPUS", "")):
        return int(digits.group(1)) // nodes
    visible = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS")
    return len(visible.split(",")) if visible else 0


def _memory(environment: Mapping[str, str]) -> Callable[[int], float]:
    if on_node := environment.get("SLURM_MEM_PER_NODE"):
        return lambda cpus: float(on_node) * 2**20
    if on_cpu := environment.get("SLURM_MEM_PER_CPU"):
        return lambda cpus: float(on_cpu) * 2**20 * cpus
    return lambda cpus: float("inf")


def job_name(environment: Mapping[str, str]) -> str:
    """Return a name that stays the same when a job of a batch script is queued again; nothing outside of one."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job or environment.get("SLURM_STEP_ID") or environment.get("SLURM_JOB_NAME") == "interactive":
        return ""
    together = TOGETHER in environment
    return f"slurm_{environment['SLURM_ARRAY_JOB_ID'] if together else own_job(environment)}"


def telling(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from which :meth:`Allocation.of` knows a job. There is no secret among them."""
    return {name: environment[name] for name in _TELLING if name in environment}


def step_environment(environment: Mapping[str, str], job: str) -> dict[str, str]:
    """Return the variables for ``srun``: of this job's, those that do not bind; for another job, none of this one's.

    Parameters
    ----------
    job : str
        The other job; empty for this one.
    """
    if job:
        stays = {"SLURM_CONF", "SLURM_JWT"}
        return {n: v for n, v in environment.items() if not n.startswith(("SLURM", "SBATCH_")) or n in stays}
    return {n: v for n, v in environment.items() if not n.startswith(("SLURM_CPU_BIND", "SLURM_MEM"))}


def own_job(environment: Mapping[str, str]) -> str:
    """Return the name of this job alone. The number of one job of an array is also that of the whole array."""
    array = environment.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{environment['SLURM_ARRAY_TASK_ID']}" if array else environment["SLURM_JOB_ID"]


def host_step(nodes: Sequence[str], program: Sequence[str], job: str = "") -> list[str]:
    """Return the command that starts a host on each of these machines, whose orders go to its standard input.

    They are machines of this job, or of another ``job`` of the same person.
    The step takes nothing from the job (``--overlap``), outlives the loss of a machine (``--no-kill``) or of a task,
    and binds nothing: what workers may use is said by their host.
    """
    return [
        "srun",
        *([f"--jobid={job}"] if job else []),
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mem=0",
        "--cpu-bind=none",
        "--input=all",
        "--job-name=shoal-hosts",
        "--export=ALL",
        *program,
    ]


def ended_tasks(line: str) -> list[str]:
    """Return the machines whose task has ended, as ``srun`` says on its standard error.

    Examples
    --------
    >>> ended_tasks("srun: error: n2: task 1: Killed"), ended_tasks("srun: error: n[1-2]: tasks 0-1: Exited")
    (['n2'], ['n1', 'n2'])
    """
    told = re.match(r"srun: error: (\S+): tasks? [\d,-]+: ", line)
    return expanded(told.group(1)) if told else []


_ALONE = ["# The driver runs here, once; it starts a host on each machine of the job by itself."]
_TOGETHER = [
    "# One of the jobs of this array runs the script, and starts hosts on the machines of all of them; when it ends",
    "# before the script has, the next one goes on. They find each other in the directory below.",
    f'export {TOGETHER}="$PWD/$SLURM_JOB_NAME-$SLURM_ARRAY_JOB_ID.jobs"',
]


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """A job that runs a script's driver, as it is submitted.

    Attributes
    ----------
    nodes, gpus_per_node, cpus_per_node, memory, time, partition, account
        As ``sbatch`` takes them.
    signal_s : int
        How many seconds before the time limit the run is told, so that it saves a checkpoint and is queued again.
    array : str
        The indices of a job array, such as ``"0-9"``, each of which runs the script; empty for one job.
    together : int
        How many jobs, each with the machines above, work at what one script asks for; 0 for one job alone.
    options : sequence of str
        More options for ``sbatch``, as they are.
    """

    script: str
    arguments: tuple[str, ...] = ()
    python: str = "python"
    name: str = "shoal"
    directory: str = "."
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    memory: str = ""
    time: str = ""
    partition: str = ""
    account: str = ""
    signal_s: int = 120
    array: str = ""
    together: int = 0
    output: str = "shoal-%j.out"
    setup: tuple[str, ...] = ()
    options: tuple[str, ...] = field(default_factory=tuple)

    def text(self) -> str:
        """Return the batch script."""
        asked = {
            "job-name": self.name,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": self.cpus_per_node or "",
            "gpus-per-node": self.gpus_per_node or "",
            "mem": self.memory,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "array": f"0-{self.together - 1}" if self.together else self.array,
            "chdir": self.directory,
            "output": self.output,
            "signal": f"B:USR1@{self.signal_s}",
        }
        lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in asked.items() if value != "")]
        lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append", *(f"#SBATCH {option}" for option in self.options)]
        program = ["-m", "shoal.engines.slurm_member"] if self.together else []
        command = shlex.join([self.python, *program, self.script, *self.arguments])
        lines += [
            "",
            *(["# What the job needs before its script.", *self.setup, ""] if self.setup else []),
            *(_TOGETHER if self.together else _ALONE),
            f"export SHOAL_ENGINE=slurm SHOAL_REQUEUE=exit SHOAL_PREEMPTION_GRACE={max(1, self.signal_s - 10)}",
            f"(trap '' USR1; exec {command}) &  # a signal that comes before the driver knows of it does not end it",
            "driver=$!",
            "",
            f"# {self.signal_s} s before the time limit SLURM sends USR1 here: the run saves a checkpoint and its",
            f"# driver ends with the code {REQUEUE}. The job is then queued again, and goes on from that checkpoint.",
            "trap 'while kill -USR1 $driver 2>/dev/null; do sleep 2; done &' USR1",
            "trap 'kill -TERM $driver 2>/dev/null' TERM",
            "while true; do",
            "  wait $driver; code=$?",
            "  kill -0 $driver 2>/dev/null || break  # wait also returns when a signal was passed on",
            "done",
            f"if [ $code -eq {REQUEUE} ]; then",
            "  task=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # of an array, this job alone",
            "  scontrol requeue ${task:-$SLURM_JOB_ID}",
            "  sleep 60  # SLURM ends this script when it takes the job back",
            "fi",
            "exit $code",
            "",
        ]
        return "\n".join(lines)
