"""Jobs of an array of a real SLURM that work together at one search: they come late, go early, and lose the lead."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import textwrap
from collections import Counter
from pathlib import Path

import psutil
import pytest
from conftest_cluster import command, until

TRIALS, STEPS = 12, 30
SCRIPT = f"""
import json, os, tempfile, time
from pathlib import Path
from shoal import train, tune

HERE = Path(__file__).parent

def objective(config):
    checkpoint = tune.get_checkpoint()
    start = json.loads((checkpoint.path / "state.json").read_text()) + 1 if checkpoint else 0
    trial = tune.get_context().get_trial_id()
    for step in range(start, {STEPS}):
        time.sleep(0.1)
        with (HERE / f"steps-{{trial}}").open("a") as done:
            print(step, os.environ["SLURM_JOB_ID"], file=done)
        leaves = train.get_preemption_info() is not None
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "state.json").write_text(json.dumps(step))
            kept = tune.Checkpoint(directory) if leaves or step % 5 == 4 else None
            tune.report({{"loss": config["x"], "step": step}}, checkpoint=kept)
        if leaves:
            return

if __name__ == "__main__":
    grid = tune.Tuner(
        tune.with_resources(objective, {{"CPU": 2}}),
        param_space={{"x": tune.uniform(0, 1)}},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples={TRIALS}),
        run_config=train.RunConfig(storage_path=str(HERE)),
    ).fit()
    told = {{"trials": len(grid), "errors": len(grid.errors), "last": [r.metrics["step"] for r in grid]}}
    (HERE / "result.json").write_text(json.dumps(told))
"""


class Jobs:
    """An array of three jobs, submitted by the command, that search together."""

    def __init__(self, here: Path):
        self.here = here
        (here / "search.py").write_text(textwrap.dedent(SCRIPT))
        asked = ["--engine", "slurm", "--jobs", "3", "--cpus-per-node", "4", "--no-follow"]
        done = command(here, "submit", *asked, "search.py")
        assert done.returncode == 0, done.stdout
        self.number = done.stdout.rpartition("submitted: ")[2].partition(".")[0]

    @property
    def output(self) -> str:
        return "\n".join(f"{file.name}: {file.read_text()}" for file in self.here.glob("*.out"))

    @property
    def states(self) -> dict[str, str]:
        told = subprocess.check_output(["squeue", "-hr", "-j", self.number, "-o", "%i %T"], text=True)
        return dict(line.split() for line in told.splitlines())

    def steps(self) -> dict[str, list[tuple[int, str]]]:
        """Return the steps that each trial has done, each with the number of the job that did it."""
        found = {}
        for file in self.here.glob("steps-*"):
            lines = [line.split() for line in file.read_text().splitlines()]
            found[file.name] = [(int(line[0]), line[1]) for line in lines if len(line) == 2]
        return found

    def workers(self) -> set[str]:
        """Return the jobs whose machines have done steps."""
        return {job for steps in self.steps().values() for _, job in steps}

    def leader(self) -> str:
        """Return the job that runs the script: its name, which means this one alone, unlike its number."""
        said = "this job runs the script"
        led = next(f for f in self.here.glob("*_*.out") if f.read_text().splitlines()[-1].startswith(said))
        return led.stem.removeprefix("search-")

    def number_of(self, name: str) -> str:
        return subprocess.check_output(["squeue", "-hr", "-j", name, "-o", "%A"], text=True).strip()

    def ends(self, seconds: float = 120.0) -> dict[str, object]:
        until(lambda: (self.here / "result.json").exists(), seconds, self.output)
        until(lambda: not self.states, 60, self.output)  # none is left, waiting or running
        return json.loads((self.here / "result.json").read_text())


def kill_all_of(number: str) -> None:
    """Kill all processes of a job at once, as a power cut would: nobody sees another one go before it goes."""
    there = [p for p in psutil.process_iter() if _environment(p).get("SLURM_JOB_ID") == number]
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for process in there:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(sign)


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}


WELL = {"trials": TRIALS, "errors": 0, "last": [STEPS - 1] * TRIALS}


@pytest.mark.timeout(240)
def test_a_search_uses_jobs_of_an_array_as_they_begin(slurm: Path, tmp_path: Path):
    wanted = ["sbatch", "--parsable", "--output=/dev/null", "-w", "n3", "-c", "4", "--wrap", "sleep 600"]
    other = subprocess.check_output(wanted, text=True).strip()
    jobs = Jobs(tmp_path)
    until(lambda: len(jobs.workers()) == 2, 60, jobs.output)
    assert Counter(jobs.states.values()) == {"RUNNING": 2, "PENDING": 1}
    subprocess.run(["scancel", other], check=True)
    until(lambda: len(jobs.workers()) == 3, 60, jobs.output)
    assert jobs.ends() == WELL
    assert [[step for step, _ in done] for done in jobs.steps().values()] == [list(range(STEPS))] * TRIALS
    assert "12/12 trials done" in command(tmp_path, "logs", jobs.number).stdout


@pytest.mark.timeout(240)
def test_a_job_that_is_taken_back_hands_its_trials_to_the_others_and_comes_back(slurm: Path, tmp_path: Path):
    jobs = Jobs(tmp_path)
    until(lambda: len(jobs.workers()) == 3, 60, jobs.output)
    leader = jobs.leader()
    taken = next(name for name in jobs.states if name != leader)
    number = jobs.number_of(taken)
    subprocess.run(["scancel", "--batch", "--signal=USR1", taken], check=True)
    until(lambda: jobs.states.get(taken) == "PENDING", 30, jobs.output)
    assert jobs.states[leader] == "RUNNING"
    assert jobs.ends() == WELL
    moved = [done for done in jobs.steps().values() if number in dict(done).values() and len({j for _, j in done}) > 1]
    assert moved
    assert [[step for step, _ in done] for done in jobs.steps().values()] == [list(range(STEPS))] * TRIALS


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["taken back", "killed"])
def test_when_the_leading_job_goes_another_one_goes_on(slurm: Path, tmp_path: Path, how: str):
    jobs = Jobs(tmp_path)
    until(lambda: len(jobs.workers()) == 3, 60, jobs.output)
    leader = jobs.leader()
    if how == "taken back":
        subprocess.run(["scancel", "--batch", "--signal=USR1", leader], check=True)
    else:
        kill_all_of(jobs.number_of(leader))
    until(lambda: jobs.states.get(leader) != "RUNNING", 30, jobs.output)
    assert jobs.ends() == WELL
    for done in jobs.steps().values():
        repeated = Counter(step for step, _ in done)
        assert sorted(repeated) == list(range(STEPS))
        assert repeated.total() - STEPS <= (0 if how == "taken back" else 5)  # a killed one loses an interval


@pytest.mark.timeout(240)
def test_jobs_that_are_stopped_keep_what_they_have_committed(slurm: Path, tmp_path: Path):
    jobs = Jobs(tmp_path)
    until(lambda: len(jobs.workers()) == 3, 60, jobs.output)
    assert command(tmp_path, "stop", jobs.number).returncode == 0
    told = jobs.ends()
    assert told["errors"] == 0 and max(told["last"]) < STEPS - 1


def test_what_fits_into_no_job_of_an_array_is_said_at_once(slurm: Path, tmp_path: Path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        from shoal.train import ScalingConfig
        from shoal.train.torch import TorchTrainer
        TorchTrainer(print, scaling_config=ScalingConfig(num_workers=7, resources_per_worker={"CPU": 2})).fit()
        """)
    )
    asked = ["--engine", "slurm", "--jobs", "3", "--cpus-per-node", "4"]
    done = command(tmp_path, "submit", *asked, "train.py")
    assert done.returncode == 1
    assert "can never hold 7 workers with CPU 2 each: there is room for 6 workers" in done.stdout
    assert "FAILED" in done.stdout


def test_one_script_is_run_by_each_job_or_by_one_of_them(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    done = command(tmp_path, "submit", "--engine", "slurm", "--jobs", "3", "--array", "0-2", "train.py")
    assert done.returncode == 1
    assert "give one of the two" in done.stdout
    done = command(tmp_path, "submit", "--jobs", "3", "train.py")
    assert done.returncode == 1
    assert "--jobs is an option of --engine slurm, not of --engine ray" in done.stdout
    done = command(tmp_path, "submit", "--engine", "slurm", "--working-dir", "x", "train.py")
    assert "--working-dir is an option of --engine ray, not of --engine slurm" in done.stdout
