"""Runs in allocations of a real SLURM: over its nodes, before a time limit, after the loss of a node's tasks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest_cluster import command, until

SCRIPT = """
import json, os, sys, time
from pathlib import Path
from shoal import train
from shoal.train.torch import TorchTrainer

HERE = Path({here!r})

def step_of(checkpoint):
    return json.loads((checkpoint.path / "state.json").read_text())["step"] + 1 if checkpoint else 0

def train_func(config):
    import torch
    import torch.distributed as dist
    (HERE / f"pid-{{train.get_context().get_world_rank()}}").write_text(str(os.getpid()))
    start = step_of(train.get_checkpoint())
    child, mark = 0, HERE / f"child-{{train.get_context().get_world_rank()}}"
    if config["children"] and start == 0:
        mark.touch()
        child = os.fork()  # as a loader of torch does
        if child == 0:
            time.sleep(3)
            os._exit(0)
    for step in range(start, config["steps"]):
        time.sleep(config["pause"])
        total = torch.ones(1)
        if dist.is_initialized():
            dist.all_reduce(total)
        leaving = train.get_preemption_info()
        if leaving and child:
            mark.write_text(f"ended with {{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}}")
        metrics = {{"step": step, "start": start, "total": total.item(), "node": os.environ["SLURMD_NODENAME"]}}
        if leaving or step % config["every"] == config["every"] - 1:
            with train.checkpoint_dir() as directory:
                (directory / "state.json").write_text(json.dumps({{"step": step}}))
                train.report(metrics, checkpoint=train.Checkpoint.from_directory(directory))
        else:
            train.report(metrics)
        if leaving:
            return

def main(num_workers=6, name=None, steps=5, pause=0.0, every=1000, strategy="PACK", children=False, **failure):
    result = TorchTrainer(
        train_func,
        train_loop_config={{"steps": steps, "pause": pause, "every": every, "children": children}},
        scaling_config=train.ScalingConfig(
            num_workers=num_workers, resources_per_worker={{"CPU": 2}}, placement_strategy=strategy,
            elastic_resize_monitor_interval_s=0.5, elastic_room_wait_s=1,
        ),
        run_config=train.RunConfig(name=name, storage_path=str(HERE), failure_config=train.FailureConfig(**failure)),
    ).fit()
    told = {{
        "metrics": result.metrics,
        "steps": result.metrics_dataframe["step"].tolist(),
        "attempts": [[a.world_size, a.checkpoint, a.reason] for a in result.attempts],
        "interrupted": result.interrupted,
    }}
    (HERE / "result.json").write_text(json.dumps(told))

if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
"""


class Job:
    """A job, submitted by the command."""

    def __init__(self, here: Path, settings: dict[str, Any], *options: str):
        self.here = here
        (here / "script.py").write_text(textwrap.dedent(SCRIPT.format(here=str(here))))
        asked = ["--engine", "slurm", "--nodes", "3", "--cpus-per-node", "4", "--no-follow", *options]
        done = command(here, "submit", *asked, "script.py", "--", json.dumps(settings))
        assert done.returncode == 0, done.stdout
        self.number = done.stdout.rpartition("submitted: ")[2].partition(".")[0]

    @property
    def facts(self) -> dict[str, str]:
        told = subprocess.run(
            ["scontrol", "-o", "show", "job", self.number], capture_output=True, text=True, check=False
        ).stdout
        return dict(part.split("=", 1) for part in told.split() if "=" in part)

    @property
    def output(self) -> str:
        file = self.here / f"script-{self.number}.out"
        return file.read_text() if file.exists() else ""

    def ends(self, seconds: float = 90.0) -> dict[str, Any]:
        """Wait for the end and return the result that the script has written."""
        until(lambda: self.facts["JobState"] not in {"PENDING", "RUNNING", "COMPLETING"}, seconds, self.output)
        assert self.facts["JobState"] == "COMPLETED", self.output
        return json.loads((self.here / "result.json").read_text())

    def start_soon(self) -> None:
        """Have a job that is queued again begin: SLURM lets two minutes pass, until its credentials have expired.

        They count whole seconds. In the second in which the old one was revoked, the new one counts as revoked too, and
        SLURM ends the job ("Killing non-startable batch").
        """
        until(lambda: self.facts["JobState"] == "PENDING" and self.facts.get("Restarts") != "0", 60, self.output)
        subprocess.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now+2"], check=True)

    def reported(self, step: int) -> bool:
        return any(json.loads(line)["step"] >= step for line in self._rows())

    def _rows(self) -> list[str]:
        files = list(self.here.glob("*/metrics.jsonl"))
        return files[0].read_text().splitlines() if files else []


@pytest.mark.timeout(180)
def test_a_run_is_spread_over_the_nodes_of_a_job(slurm: Path, tmp_path: Path):
    job = Job(tmp_path, {"num_workers": 6})
    told = job.ends()
    assert told["metrics"]["total"] == 6
    assert told["metrics"]["node"] == "n1"  # rank 0 is where the driver is
    assert len({(tmp_path / f"pid-{rank}").read_text() for rank in range(6)}) == 6
    logs = command(tmp_path, "logs", job.number)
    assert "6 workers" in logs.stdout and "FINISHED" in logs.stdout


@pytest.mark.timeout(240)
def test_before_its_time_limit_a_job_is_queued_again_and_goes_on_at_the_same_step(slurm: Path, tmp_path: Path):
    job = Job(tmp_path, {"num_workers": 3, "steps": 40, "pause": 0.2, "strategy": "SPREAD"})
    for times in (1, 2):  # as often as needed
        until(partial(job.reported, 8 * times), 60, job.output)
        subprocess.run(["scancel", "--batch", "--signal=USR1", job.number], check=True)
        job.start_soon()
    told = job.ends()
    assert told["steps"] == list(range(40))  # each step once: nothing was done again
    starts = [checkpoint for _, checkpoint, _ in told["attempts"]]
    assert len(starts) == 3 and 8 <= starts[1] < starts[2]
    assert job.output.count("SLURM takes the job back") >= 2


@pytest.mark.timeout(180)
def test_tasks_that_are_killed_on_a_node_cost_an_attempt_and_no_committed_step(slurm: Path, tmp_path: Path):
    job = Job(tmp_path, {"num_workers": [2, 3], "steps": 60, "pause": 0.1, "every": 5, "max_failures": 3})
    until(lambda: job.reported(12), 60, job.output)
    victims = [p for p in psutil.process_iter() if _on_node(p, "n2", tmp_path)]
    assert victims
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    told = job.ends(120)
    assert told["steps"] == list(range(60))
    assert told["attempts"][0][0] == 3 and len(told["attempts"]) >= 2
    assert told["attempts"][1][1] >= 10


@pytest.mark.timeout(180)
def test_a_machine_that_is_lost_leaves_the_job_to_go_on_with_the_others(slurm: Path, tmp_path: Path):
    settings = {"num_workers": [1, 6], "steps": 150, "pause": 0.1, "every": 5, "max_failures": 3}
    job = Job(tmp_path, settings, "--option=--no-kill")
    until(lambda: job.reported(12), 60, job.output)
    with switched_off("n2"):
        told = job.ends(120)
    assert told["steps"] == list(range(150))
    sizes = [size for size, _, _ in told["attempts"]]
    assert (sizes[0], sizes[-1]) == (6, 4)
    assert told["attempts"][1][1] >= 10


@pytest.mark.timeout(240)
def test_a_job_that_is_lost_with_a_machine_is_queued_again_and_goes_on(slurm: Path, tmp_path: Path):
    settings = {"num_workers": 6, "name": "lost", "steps": 150, "pause": 0.1, "every": 5, "max_failures": 3}
    job = Job(tmp_path, settings)
    until(lambda: job.reported(12), 60, job.output)
    with switched_off("n2"):
        until(lambda: job.facts["JobState"] == "PENDING" and job.facts.get("Restarts") == "1", 60, job.output)
    job.start_soon()
    told = job.ends(120)
    assert told["steps"] == list(range(150))
    assert told["metrics"]["start"] >= 10  # from a checkpoint of the job's first start


@contextlib.contextmanager
def switched_off(node: str) -> Iterator[None]:
    """Take a machine from SLURM: its daemon and all that runs there are killed. It is back afterwards."""
    daemon = next(p for p in psutil.process_iter(["cmdline"]) if _daemon_of(node, p.info["cmdline"] or []))
    command, environment = daemon.cmdline(), daemon.environ()
    there = [p for p in psutil.process_iter() if _environment(p).get("SLURMD_NODENAME") == node]
    steps = [p for p in psutil.process_iter() if p.name() == "slurmstepd" and p.pid in {c.ppid() for c in there}]
    for process in (daemon, *steps, *there):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    try:
        yield
    finally:
        subprocess.run(command, env=environment, check=True)
        until(lambda: "idle" in subprocess.check_output(["sinfo", "-hn", node], text=True), 60)


def _daemon_of(node: str, command: list[str]) -> bool:
    return bool(command) and Path(command[0]).name == "slurmd" and command[-1] == node


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}


def _on_node(process: psutil.Process, node: str, here: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        environment = process.environ()
        return (
            environment.get("SLURMD_NODENAME") == node
            and environment.get("SLURM_SUBMIT_DIR") == str(here)
            and "shoal._host" in process.cmdline()
        )
    return False


@pytest.mark.timeout(180)
def test_a_job_that_is_stopped_keeps_what_it_has_committed(slurm: Path, tmp_path: Path):
    job = Job(tmp_path, {"num_workers": 3, "steps": 1000, "pause": 0.1, "every": 5})
    until(lambda: job.reported(7), 60, job.output)
    assert command(tmp_path, "stop", job.number).returncode == 0
    told = job.ends()
    assert told["interrupted"]
    assert not [p for p in psutil.process_iter() if any(_on_node(p, node, tmp_path) for node in ("n1", "n2", "n3"))]


@pytest.mark.timeout(180)
def test_a_signal_to_every_process_of_the_job_reaches_each_worker_once_and_no_child_of_it(slurm: Path, tmp_path: Path):
    job = Job(tmp_path, {"num_workers": 3, "steps": 30, "pause": 0.2, "children": True, "preemption_grace_s": 20})
    until(lambda: job.reported(5) and len(list(tmp_path.glob("child-*"))) == 3, 60, job.output)
    subprocess.run(["scancel", "--signal=USR1", job.number], check=True)  # all steps: hosts, workers, their children
    told = job.ends()
    assert told["steps"] == list(range(30))
    assert len(told["attempts"]) == 2  # all ranks saved at the same step, and began again after it
    assert told["attempts"][1][1] >= 5
    for child in tmp_path.glob("child-*"):
        assert child.read_text() == "ended with 0"


@pytest.mark.timeout(180)
def test_a_search_runs_within_one_job(slurm: Path, tmp_path: Path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent(f"""
        import os
        from shoal import train, tune

        def objective(config):
            tune.report({{"loss": config["x"], "node": os.environ["SLURMD_NODENAME"]}})

        grid = tune.Tuner(
            objective,
            param_space={{"x": tune.uniform(0, 1)}},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=40),
            run_config=train.RunConfig(storage_path={str(tmp_path)!r}),
        ).fit()
        print("trials", len(grid), "errors", len(grid.errors), sorted({{r.metrics["node"] for r in grid}}))
        """)
    )
    asked = ["--engine", "slurm", "--nodes", "3", "--cpus-per-node", "4"]
    done = command(tmp_path, "submit", *asked, "script.py")
    assert done.returncode == 0, done.stdout
    assert "trials 40 errors 0 ['n1', 'n2', 'n3']" in done.stdout
    assert list(tmp_path.glob("objective_slurm_*"))


@pytest.mark.timeout(120)
def test_what_cannot_fit_into_the_job_is_said_at_once(slurm: Path, tmp_path: Path):
    job = Job(tmp_path, {"num_workers": 7})
    until(lambda: job.facts["JobState"] == "FAILED", 60, job.output)
    assert "can never hold 7 workers with CPU 2 each: there is room for 6 workers" in job.output


@pytest.mark.timeout(120)
def test_processes_that_srun_starts_are_ranks(slurm: Path, tmp_path: Path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent(f"""
        import os
        from shoal import train
        from shoal.train.torch import TorchTrainer

        def train_func():
            import torch, torch.distributed as dist
            total = torch.ones(1)
            dist.all_reduce(total)
            train.report({{"total": total.item()}})

        result = TorchTrainer(
            train_func,
            scaling_config=train.ScalingConfig(num_workers=3),
            run_config=train.RunConfig(name="ranks", storage_path={str(tmp_path)!r}, verbose=0),
        ).fit()
        print("rank", os.environ["RANK"], result.metrics["total"])
        """)
    )
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1"}  # the nodes' names have no addresses here
    done = subprocess.run(  # noqa: PLW1510  what it printed is looked at first
        ["srun", "-N3", "-n3", sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        f"rank {rank} 3.0" for rank in range(3)
    ]


def test_a_batch_script_can_be_read_before_it_is_sent(tmp_path: Path):
    (tmp_path / "script.py").write_text("")
    asked = ["--engine", "slurm", "--nodes", "2", "--gpus-per-node", "8", "--time", "4:00:00"]
    done = command(tmp_path, "submit", *asked, "--option=--qos=high", "--dry-run", "script.py", "--", "--lr", "0.1")
    assert done.returncode == 0
    for line in ("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=4:00:00", "#SBATCH --qos=high"):
        assert line in done.stdout.splitlines()
    assert "script.py --lr 0.1" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    wrong = command(tmp_path, "submit", "--engine", "slurm", "nothing.py")
    assert wrong.returncode == 1 and "there is no script 'nothing.py'" in wrong.stdout
