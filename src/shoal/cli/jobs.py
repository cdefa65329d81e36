"""``shoal submit``, and the output and the end of its jobs: drivers that run on the cluster, not here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal._core.errors import ShoalError
from shoal._core.slurm import BatchRequest
from shoal._runtime.requirements import require
from shoal.cli.app import CLUSTERS, command

PATIENCE = 600.0  # seconds for which a lost connection is tried again: a laptop that slept finds its job still there
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
GOING_ON = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED"}
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
ONLY = {
    "ray": ("address", "working_dir"),
    "slurm": (
        *("nodes", "gpus_per_node", "cpus_per_node", "mem", "time_limit", "partition", "account"),
        *("signal", "array", "jobs", "setup", "option"),
    ),
}


@command("submit", CLUSTERS, context_settings=PASSED_ON)
def submit(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The script; what follows are its own arguments.")],
    engine: Annotated[str, typer.Option(metavar="ray|slurm", help="What runs it.")] = "ray",
    address: Annotated[
        str | None, typer.Option(help="Ray: the head's address, or the URL of its jobs. [default: $RAY_ADDRESS]")
    ] = None,
    working_dir: Annotated[str, typer.Option(help="Ray: what is sent along.")] = ".",
    nodes: Annotated[int, typer.Option(help="SLURM: how many machines.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="SLURM: GPUs on each.")] = 0,
    cpus_per_node: Annotated[int, typer.Option(help="SLURM: CPUs on each.")] = 0,
    mem: Annotated[str, typer.Option(help="SLURM: memory on each, such as 64G.")] = "",
    time_limit: Annotated[str, typer.Option("--time", help="SLURM: such as 4:00:00; the run goes on after it.")] = "",
    partition: Annotated[str, typer.Option(help="SLURM: which partition.")] = "",
    account: Annotated[str, typer.Option(help="SLURM: which account.")] = "",
    signal: Annotated[int, typer.Option(metavar="SECONDS", help="SLURM: notice before the limit.")] = 120,
    array: Annotated[
        str, typer.Option(metavar="0-9", help="SLURM: an array of jobs, each of which runs the script.")
    ] = "",
    jobs: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="SLURM: so many such jobs work together at what the script asks for."),
    ] = 0,
    setup: Annotated[list[str] | None, typer.Option(help="SLURM: a line before the script; may be repeated.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="SLURM: another option of sbatch; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name. [default: the script's]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted.")] = False,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Do not wait for the job's end.")] = False,
) -> int:
    """Run a script's driver on a cluster, print the job's number, and follow it."""
    if not Path(script).is_file():
        raise ShoalError(f"there is no script {script!r} in {os.getcwd()}")
    if engine not in {"ray", "slurm"}:
        raise ShoalError(f"--engine {engine}: choose ray or slurm")
    _refuse_of_others(context, engine)
    arguments = context.args[1:] if context.args[:1] == ["--"] else context.args
    if jobs and array:
        raise ShoalError("--array runs the script in each job, --jobs in one for all: give one of the two")
    if engine == "slurm":
        title = name or Path(script).stem
        request = BatchRequest(
            script=os.path.abspath(script),
            arguments=tuple(arguments),
            python=sys.executable,
            name=title,
            directory=os.getcwd(),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            cpus_per_node=cpus_per_node,
            memory=mem,
            time=time_limit,
            partition=partition,
            account=account,
            signal_s=signal,
            array=array,
            together=jobs,
            output=f"{title}-%A_%a.out" if jobs else f"{title}-%j.out",
            setup=tuple(setup or ()),
            options=tuple(option or ()),
        )
        job = _submit_slurm(request, dry_run)
    else:
        job = _submit_ray(script, arguments, working_dir, address, name, dry_run)
    if not job:
        return 0
    print(f"submitted: {job}. shoal logs -f {job} follows it, shoal stop {job} stops it", flush=True)
    if no_follow:
        return 0
    return _follow_slurm(job) if job.isdigit() else _follow_ray(_client(address), job)


def is_job(name: str, address: str | None) -> bool:
    """Whether a name may be that of a job: a number of SLURM's, one as of :func:`submit`, or somebody says where."""
    return name.isdigit() or address is not None or re.fullmatch(r".+-\d{4}-\d{6}", name) is not None


def print_logs(job: str, address: str | None, follow: bool) -> int:
    """Print what a job has printed."""
    if job.isdigit():
        if follow:
            return _follow_slurm(job)
        sys.stdout.write(_output_of(job).read_text())
        return 0
    client = _client(address)
    if follow:
        return _follow_ray(client, job)
    sys.stdout.write(_asked(client, lambda: client.get_job_logs(job)))
    return 0


def stop_job(job: str, address: str | None) -> int:
    """Stop a job: its run stops at the next report."""
    if job.isdigit():
        _slurm("scancel", "--batch", "--signal=TERM", job)
    else:
        client = _client(address)
        _asked(client, lambda: client.stop_job(job))
    print(f"{job} is asked to stop")
    return 0


def _refuse_of_others(context: typer.Context, engine: str) -> None:
    """Refuse options that only mean something to another engine: nobody is to wait for machines he has not got."""
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for other, names in ONLY.items():
        for name in names:
            source = context.get_parameter_source(name)
            if other != engine and source is not None and source.name == "COMMANDLINE":
                raise ShoalError(f"{options[name]} is an option of --engine {other}, not of --engine {engine}")


# ---- Ray ------------------------------------------------------------------------------------------------------------


def _submit_ray(
    script: str, arguments: list[str], directory: str, address: str | None, name: str | None, dry_run: bool
) -> str:
    relative = Path(os.path.relpath(script, directory))
    if relative.parts[:1] == ("..",):
        raise ShoalError(f"{script} is not in {directory!r}, which is what the cluster gets: give --working-dir")
    entrypoint = shlex.join(["python", str(relative), *arguments])
    environment = {"working_dir": directory, "env_vars": {"SHOAL_ENGINE": "ray"}}
    if dry_run:
        print(f"{entrypoint}\nwith {environment}")
        return ""
    client = _client(address)
    title = "".join(c if c.isalnum() else "-" for c in name or relative.stem)
    job = f"{title}-{time.strftime('%m%d-%H%M%S')}"
    return str(
        _asked(client, lambda: client.submit_job(entrypoint=entrypoint, submission_id=job, runtime_env=environment))
    )


def _client(address: str | None) -> Any:
    require("ray", extra="ray", tested="2.60", trainer="shoal submit")
    from shoal.engines.ray import check_answers, use_token

    use_token(os.environ)
    from ray.job_submission import JobSubmissionClient

    place = address or os.environ.get("RAY_ADDRESS") or "127.0.0.1"
    host = place.partition("://")[2] or place
    url = place if place.startswith("http") else f"http://{host.rpartition(':')[0] or host}:8265"
    check_answers(url.partition("://")[2].rstrip("/"))
    try:
        return JobSubmissionClient(url)
    except (ConnectionError, RuntimeError) as error:
        raise ShoalError(f"the jobs of the cluster at {url} do not answer: {error}") from error


def _asked(client: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ShoalError(f"the cluster at {client.get_address()} says: {text[-500:]}") from error


def _follow_ray(client: Any, job: str) -> int:
    """Print a job's output to its end. A connection that breaks is made again: the job does not need it."""
    shown, lost = 0, None
    while True:
        try:
            status = str(client.get_job_status(job).value)
            text = client.get_job_logs(job)
            lost = None
        except (ConnectionError, OSError, RuntimeError) as error:
            if "does not exist" in str(error):
                raise ShoalError(f"there is no job {job} on that cluster") from error
            lost = lost or time.monotonic()
            if time.monotonic() - lost > PATIENCE:
                raise ShoalError(f"the cluster has not answered for {PATIENCE:g} s; {job} may run on") from error
            time.sleep(2.0)
            continue
        sys.stdout.write(text[shown:])
        sys.stdout.flush()
        shown = len(text)
        if status in ENDED:
            print(f"{job} {status}")
            return 0 if status == "SUCCEEDED" else 1
        time.sleep(0.5)


# ---- SLURM ----------------------------------------------------------------------------------------------------------


def _submit_slurm(request: BatchRequest, dry_run: bool) -> str:
    if dry_run:
        print(request.text())
        return ""
    _need("sbatch")
    file = Path(f"{request.name}.sbatch")
    file.write_text(request.text())
    print(f"the batch script is {file}")
    return _slurm("sbatch", "--parsable", str(file)).partition(";")[0]


def _need(command: str) -> None:
    if shutil.which(command) is None:
        raise ShoalError(f"the command {command} is not here: log in to a machine of the SLURM cluster")


def _slurm(command: str, *arguments: str) -> str:
    _need(command)
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ShoalError(f"{command} says: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _facts(job: str) -> list[dict[str, str]]:
    """Return what SLURM knows of a job, or of each job of an array."""
    told = _slurm("scontrol", "show", "job", "--oneliner", job).splitlines()
    return [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in told]


def _output_of(job: str) -> Path:
    facts = _facts(job)[0]
    together = Path(facts["WorkDir"], f"{facts['JobName']}-{facts.get('ArrayJobId')}.jobs")
    return together.with_suffix(".out") if together.is_dir() else Path(facts["StdOut"])


def _state_of(job: str) -> str:
    """Return the state of a job; of an array, that of a job that goes on, or else of the one that fared worst."""
    states = [facts["JobState"] for facts in _facts(job)]
    rest = [state for state in states if state not in {"COMPLETED", "CANCELLED"}]
    return next((s for s in states if s in GOING_ON), next(iter([*rest, *sorted(states, reverse=True)])))


def _follow_slurm(job: str) -> int:
    """Print a job's output to its end, also when it is queued again in between."""
    state = ""
    for text, now in _growing(job):
        sys.stdout.write(text)
        sys.stdout.flush()
        state = now
    print(f"{job} {state}")
    return 0 if state == "COMPLETED" else 1


def _growing(job: str) -> Iterator[tuple[str, str]]:
    shown = 0
    while True:
        place, state = _output_of(job), _state_of(job)
        if place.exists():
            with place.open() as file:
                file.seek(shown)
                text = file.read()
                shown = file.tell()
            yield text, state
        if state not in GOING_ON:
            yield "", state
            return
        time.sleep(1.0)
