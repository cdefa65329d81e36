"""``shoal submit``, ``logs`` and ``stop-run``: drivers that run on the cluster, not here."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoal._core.errors import ShoalError
from shoal._core.slurm import BatchRequest
from shoal._runtime.requirements import require

PATIENCE = 600.0  # seconds for which a lost connection is tried again: a laptop that slept finds its job still there
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}


def add(commands: Any) -> None:
    """Say what the commands take."""
    submit = commands.add_parser("submit", help="run a script's driver on a cluster, and follow it")
    submit.add_argument("--engine", choices=("ray", "slurm"), default="ray")
    submit.add_argument("--address", help="Ray: the head's address, or the URL of its jobs (default: $RAY_ADDRESS)")
    submit.add_argument("--working-dir", default=".", help="Ray: what is sent along (default: this directory)")
    submit.add_argument("--nodes", type=int, default=1, help="SLURM: how many machines")
    submit.add_argument("--gpus-per-node", type=int, default=0, help="SLURM: GPUs on each")
    submit.add_argument("--cpus-per-node", type=int, default=0, help="SLURM: CPUs on each")
    submit.add_argument("--mem", default="", help="SLURM: memory on each, such as 64G")
    submit.add_argument("--time", default="", help="SLURM: time limit, such as 4:00:00; the run goes on after it")
    submit.add_argument("--partition", default="", help="SLURM: which partition")
    submit.add_argument("--account", default="", help="SLURM: which account")
    submit.add_argument("--signal", type=int, default=120, metavar="SECONDS", help="SLURM: notice before the limit")
    submit.add_argument(
        "--array", default="", metavar="0-9", help="SLURM: an array of jobs, each of which runs the script"
    )
    submit.add_argument("--setup", action="append", default=[], help="SLURM: a line before the script; may be repeated")
    submit.add_argument(
        "--option", action="append", default=[], help="SLURM: another option of sbatch; may be repeated"
    )
    submit.add_argument("--name", help="the job's name (default: the script's)")
    submit.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    submit.add_argument("--no-follow", action="store_true", help="do not wait for the job's end")
    submit.add_argument("script", help="the script")
    submit.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, after --")
    submit.set_defaults(run=submit_)
    for name, run, help_ in (
        ("logs", logs_, "print what a job has printed"),
        ("stop-run", stop_, "stop a job at its next report, and keep what it has committed"),
    ):
        command = commands.add_parser(name, help=help_)
        command.add_argument("job", help="as shoal submit has printed it")
        command.add_argument("--address", help="Ray: the head's address, or the URL of its jobs")
        command.set_defaults(run=run)
        if name == "logs":
            command.add_argument("-f", "--follow", action="store_true", help="until the job's end")


def submit_(options: argparse.Namespace) -> int:
    """Submit a script, print the job's number, and follow it."""
    if not Path(options.script).is_file():
        raise ShoalError(f"there is no script {options.script!r} in {os.getcwd()}")
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    job = _submit_slurm(options, arguments) if options.engine == "slurm" else _submit_ray(options, arguments)
    if not job:
        return 0
    print(f"submitted: {job}. shoal logs -f {job} follows it, shoal stop-run {job} stops it", flush=True)
    if options.no_follow:
        return 0
    return _follow_slurm(job) if job.isdigit() else _follow_ray(_client(options.address), job)


def logs_(options: argparse.Namespace) -> int:
    """Print what a job has printed."""
    if options.job.isdigit():
        if options.follow:
            return _follow_slurm(options.job)
        sys.stdout.write(_output_of(options.job).read_text())
        return 0
    client = _client(options.address)
    if options.follow:
        return _follow_ray(client, options.job)
    sys.stdout.write(_asked(client, lambda: client.get_job_logs(options.job)))
    return 0


def stop_(options: argparse.Namespace) -> int:
    """Stop a job: its run stops at the next report."""
    if options.job.isdigit():
        _slurm("scancel", "--batch", "--signal=TERM", options.job)
    else:
        client = _client(options.address)
        _asked(client, lambda: client.stop_job(options.job))
    print(f"{options.job} is asked to stop")
    return 0


# ---- Ray ------------------------------------------------------------------------------------------------------------


def _submit_ray(options: argparse.Namespace, arguments: list[str]) -> str:
    script = Path(os.path.relpath(options.script, options.working_dir))
    if script.parts[:1] == ("..",):
        raise ShoalError(
            f"{options.script} is not in {options.working_dir!r}, which is what the cluster gets: give --working-dir"
        )
    entrypoint = shlex.join(["python", str(script), *arguments])
    environment = {"working_dir": options.working_dir, "env_vars": {"SHOAL_ENGINE": "ray"}}
    if options.dry_run:
        print(f"{entrypoint}\nwith {environment}")
        return ""
    client = _client(options.address)
    name = "".join(c if c.isalnum() else "-" for c in options.name or script.stem)
    job = f"{name}-{time.strftime('%m%d-%H%M%S')}"
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


def _submit_slurm(options: argparse.Namespace, arguments: list[str]) -> str:
    name = options.name or Path(options.script).stem
    request = BatchRequest(
        script=os.path.abspath(options.script),
        arguments=tuple(arguments),
        python=sys.executable,
        name=name,
        directory=os.getcwd(),
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        cpus_per_node=options.cpus_per_node,
        memory=options.mem,
        time=options.time,
        partition=options.partition,
        account=options.account,
        signal_s=options.signal,
        array=options.array,
        output=f"{name}-%j.out",
        setup=tuple(options.setup),
        options=tuple(options.option),
    )
    if options.dry_run:
        print(request.text())
        return ""
    _need("sbatch")
    file = Path(f"{name}.sbatch")
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


def _facts(job: str) -> dict[str, str]:
    """Return what SLURM knows of a job."""
    told = _slurm("scontrol", "show", "job", "--oneliner", job).splitlines()[0]
    return dict(part.split("=", 1) for part in told.split() if "=" in part)


def _output_of(job: str) -> Path:
    return Path(_facts(job)["StdOut"])


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
    place, shown = _output_of(job), 0
    while True:
        state = _facts(job)["JobState"]
        if place.exists():
            with place.open() as file:
                file.seek(shown)
                text = file.read()
                shown = file.tell()
            yield text, state
        if state not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED"}:
            yield "", state
            return
        time.sleep(1.0)
