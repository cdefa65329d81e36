"""Runs on a real Ray cluster of three hosts: placed, elastic, cut off, searched with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest_cluster import ADDRESS, Hosts, until

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import shoal
from shoal import train
from shoal.train.torch import TorchTrainer

def train_func(config):
    import torch
    import torch.distributed as dist
    context = train.get_context()
    start, weight = 0, 1.0
    if checkpoint := train.get_checkpoint():
        state = json.loads((checkpoint.path / "state.json").read_text())
        start, weight = state["step"] + 1, state["weight"]
    for step in range(start, config["steps"]):
        time.sleep(config["pause"])
        gradient = torch.tensor([2 * weight])
        if dist.is_initialized():
            dist.all_reduce(gradient)
        weight -= 0.01 * gradient.item() / context.get_world_size()
        metrics = {{
            "step": step, "loss": weight**2, "world_size": context.get_world_size(),
            "node": os.environ["SHOAL_NODE_NAME"],
            "address": os.environ.get("MASTER_ADDR", ""), "at": time.time(),
        }}
        if step % config["every"] == config["every"] - 1:
            with train.checkpoint_dir() as directory:
                (directory / "state.json").write_text(json.dumps({{"step": step, "weight": weight}}))
                train.report(metrics, checkpoint=train.Checkpoint.from_directory(directory))
        else:
            train.report(metrics)

def main(
    name, num_workers=3, steps=5, pause=0.0, every=10, resources=None, strategy="PACK", init=None, resume=False,
    address="{address}", **more
):
    shoal.init(address, **(init or {{}}))
    if isinstance(num_workers, list):
        num_workers = tuple(num_workers)
    result = TorchTrainer(
        train_func,
        train_loop_config={{"steps": steps, "pause": pause, "every": every}},
        scaling_config=train.ScalingConfig(
            num_workers=num_workers, resources_per_worker=resources or {{"CPU": 1}}, placement_strategy=strategy,
            elastic_resize_monitor_interval_s=0.5, elastic_room_wait_s=1, **more,
        ),
        run_config=train.RunConfig(name=name, resume=resume, failure_config=train.FailureConfig(max_failures=5)),
    ).fit()
    frame = result.metrics_dataframe
    print("RESULT", json.dumps({{
        "rows": frame[["step", "loss", "world_size", "node", "address", "at"]].to_dict("list"),
        "attempts": [[a.world_size, a.checkpoint, a.reason] for a in result.attempts],
    }}))

if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
"""


class Run:
    """A driver on the first host, or another one."""

    def __init__(self, hosts: Hosts, name: str, host: int = 1, **settings: Any):
        self.place = hosts.home / "runs" / name
        script = hosts.home / "script.py"
        script.write_text(SCRIPT.format(address=ADDRESS))
        command = [sys.executable, str(script), json.dumps({"name": name, **settings})]
        self.process = hosts.start(host, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.output = ""

    def reported(self, step: int, world_size: int = 0) -> bool:
        if self.process.poll() is not None:
            self.ends(check=False)
            raise AssertionError(self.output)
        file = self.place / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return any(
            row["step"] >= step and row["world_size"] in {world_size, world_size or row["world_size"]} for row in rows
        )

    def ends(self, seconds: float = 120.0, check: bool = True) -> dict[str, Any]:
        """Wait for the driver's end and return what it said of its result."""
        try:
            self.output += self.process.communicate(timeout=seconds)[0] or ""
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise AssertionError(f"still running: {self.process.communicate()[0]}") from None
        found = [line for line in self.output.splitlines() if line.startswith("RESULT ")]
        assert found or not check, self.output
        return json.loads(found[-1].removeprefix("RESULT ")) if found else {}


def losses(steps: int) -> list[float]:
    """Return what one undisturbed process comes to."""
    found, weight = [], 1.0
    for _ in range(steps):
        weight -= 0.01 * 2 * weight
        found.append(weight**2)
    return found


@pytest.mark.timeout(180)
def test_workers_are_placed_as_asked(cluster: Hosts):
    told = Run(cluster, "spread", num_workers=3, strategy="SPREAD").ends()
    assert told["rows"]["world_size"] == [3] * 5
    assert set(told["rows"]["node"]) == {"10.77.0.11"}  # rank 0 is where the driver is
    assert set(told["rows"]["address"]) == {"10.77.0.11"}
    told = Run(cluster, "labels", num_workers=2, label_selector={"zone": "b"}).ends()
    assert set(told["rows"]["node"]) == {"10.77.0.12"}
    gpus = Run(cluster, "gpus", num_workers=2, resources={"GPU": 1}, use_gpu=True)
    gpus.ends(check=False)
    assert "10.77.0.12" in (gpus.place / "journal.jsonl").read_text()


@pytest.mark.timeout(180)
def test_what_never_fits_and_clusters_that_are_not_there_are_said_at_once(cluster: Hosts):
    wide = Run(cluster, "wide", num_workers=9)
    wide.ends(check=False)
    assert "can never hold 9 workers with CPU 1 each: there is room for 6 workers" in wide.output
    strict = Run(cluster, "strict", num_workers=4, strategy="STRICT_SPREAD")
    strict.ends(check=False)
    assert "wants a machine for each" in strict.output
    for address, words in (
        ("10.77.0.11:6380", "nothing listens at 10.77.0.11:6380"),
        ("10.77.0.99:6379", "10.77.0.99:6379 does not answer"),
        ("nobody.invalid:6379", "'nobody.invalid' of the cluster's head has no address"),
    ):
        began = time.monotonic()
        done = cluster.shoal(1, "status", "--address", address)
        assert (done.returncode, words in done.stdout) == (1, True), done.stdout
        assert time.monotonic() - began < 30


@pytest.mark.timeout(180)
def test_who_has_another_token_is_kept_out_and_told(cluster: Hosts, tmp_path: Path):
    stranger = Hosts(tmp_path)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("0123456789abcdef" * 4)
    done = stranger.shoal(3, "status", "--address", ADDRESS)
    assert done.returncode == 1
    assert "does not take this machine's token" in done.stdout, done.stdout


@pytest.mark.timeout(240)
def test_a_run_shrinks_with_a_cut_cable_and_grows_when_the_machine_is_back(cluster: Hosts):
    run = Run(cluster, "elastic", num_workers=[1, 3], steps=220, pause=0.1, resources={"CPU": 2})
    until(lambda: run.reported(15, world_size=3), 60)
    cluster.cut(3)
    until(lambda: run.reported(16, world_size=2), 60)
    cluster.mend(3)
    cluster.leave(3)  # what Ray has taken for dead does not come back by itself
    cluster.join(3)
    until(
        lambda: [row for row in (run.place / "journal.jsonl").read_text().splitlines() if '"world_size":3' in row][1:],
        60,
    )
    told = run.ends()
    sizes = [size for size, _, _ in told["attempts"]]
    assert sizes[0] == 3 and 2 in sizes and sizes[-1] == 3
    assert told["rows"]["step"] == list(range(220))
    assert told["rows"]["loss"] == pytest.approx(losses(220), rel=1e-4)  # it goes on from where it was
    gaps = [after - before for before, after in zip(told["rows"]["at"], told["rows"]["at"][1:], strict=False)]
    print(f"from the cut to the next new step: {max(gaps):.1f} s")


@pytest.mark.timeout(180)
def test_a_short_cut_and_a_slow_network_harm_nothing(cluster: Hosts):
    run = Run(cluster, "short", num_workers=3, steps=100, pause=0.1, strategy="SPREAD")
    until(lambda: run.reported(10), 60)
    cluster.cut(2)
    time.sleep(3.0)
    cluster.mend(2)
    slow = subprocess.run(
        ["tc", "-n", "h3", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "200ms"],
        check=False,
        capture_output=True,
    )
    told = run.ends()
    if slow.returncode == 0:
        subprocess.run(["tc", "-n", "h3", "qdisc", "del", "dev", "eth0", "root"], check=True)
    assert [reason for _, _, reason in told["attempts"]] == ["finished"]
    assert told["rows"]["step"] == list(range(100))


@pytest.mark.timeout(240)
def test_workers_end_when_their_driver_is_cut_off_and_another_goes_on(cluster: Hosts):
    run = Run(cluster, "alone", host=3, num_workers=3, steps=400, pause=0.1, strategy="SPREAD", every=5)
    until(lambda: run.reported(12) and cluster.workers(1) and cluster.workers(2), 60)
    training = len(cluster.workers(1))
    cluster.cut(3)
    until(lambda: len(cluster.workers(1)) < training, 30, "workers that nobody leads end by themselves")
    cluster.leave(3)
    run.process.wait(timeout=30)
    cluster.mend(3)
    time.sleep(16)  # the lease of a driver on another machine
    cluster.join(3)
    on = Run(cluster, "alone", host=1, num_workers=3, steps=60, pause=0.0, strategy="SPREAD", resume="auto")
    told = on.ends()
    assert told["rows"]["step"] == list(range(60))
    assert told["attempts"][-1][1] >= 10


@pytest.mark.timeout(180)
def test_where_machines_come_on_request_a_run_waits_for_them_and_says_so(cluster: Hosts):
    cluster.leave(3)
    settings = {"num_workers": 3, "resources": {"CPU": 2}, "init": {"autoscaling": True}}
    run = Run(cluster, "waiting", **settings)
    time.sleep(5.0)
    cluster.join(3)
    told = run.ends()
    assert told["rows"]["world_size"] == [3] * 5
    assert (
        "waiting for" in run.output and "room for 3 workers with CPU 2 each; there is room for workers on" in run.output
    )


@pytest.mark.timeout(180)
def test_a_driver_outside_of_the_cluster_connects_through_its_head(cluster: Hosts):
    run = Run(cluster, "outside", host=3, num_workers=2, address="ray://10.77.0.11:10001")
    assert run.ends()["rows"]["step"] == list(range(5))


@pytest.mark.timeout(180)
def test_ctrl_c_ends_every_worker_on_every_host(cluster: Hosts):
    run = Run(cluster, "interrupted", num_workers=3, steps=1000, pause=0.1, strategy="SPREAD", every=5)
    until(lambda: run.reported(7), 60)
    run.process.send_signal(signal.SIGINT)
    run.ends(30, check=False)
    until(lambda: not any(cluster.workers(host) for host in (1, 2, 3)), 15, "workers are gone")
    assert list((run.place / "checkpoints").glob("checkpoint_*"))


@pytest.mark.timeout(240)
def test_a_search_uses_all_hosts_and_a_lost_one_costs_its_trials_little(cluster: Hosts):
    script = cluster.home / "search.py"
    script.write_text(
        f"""
import json, os, time
import shoal
from shoal import train, tune

def objective(config):
    start = 0
    if checkpoint := train.get_checkpoint():
        start = json.loads((checkpoint.path / "step").read_text()) + 1
    for step in range(start, 20):
        time.sleep(0.1)
        with train.checkpoint_dir() as directory:
            (directory / "step").write_text(str(step))
            train.report(
                {{"loss": config["x"] + 1 / (step + 1), "node": os.environ["SHOAL_NODE_NAME"]}},
                checkpoint=train.Checkpoint.from_directory(directory),
            )

shoal.init({ADDRESS!r})
grid = tune.Tuner(
    objective,
    param_space={{"x": tune.uniform(0, 1)}},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=30),
    run_config=train.RunConfig(name="search", failure_config=train.FailureConfig(max_failures=3), verbose=1),
).fit()
rows = [result.metrics_dataframe for result in grid]
print("RESULT", json.dumps({{
    "nodes": sorted({{node for frame in rows for node in frame["node"]}}),
    "counts": [len(frame) for frame in rows], "errors": len(grid.errors),
}}))
"""
    )
    process = cluster.start(1, sys.executable, str(script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: len(list((cluster.home / "runs/search").glob("*/metrics.jsonl"))) > 8, 90)
    cluster.leave(2)
    output, _ = process.communicate(timeout=150)
    cluster.join(2, "--num-gpus", "2", "--labels", "zone=b")
    found = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert found, output
    told = json.loads(found[0].removeprefix("RESULT "))
    assert told["nodes"] == ["10.77.0.11", "10.77.0.12", "10.77.0.13"]
    assert (told["counts"], told["errors"]) == ([20] * 30, 0)


@pytest.mark.timeout(240)
def test_a_job_is_submitted_followed_and_stopped(cluster: Hosts):
    place = cluster.home / "project"
    place.mkdir()
    (place / "helper.py").write_text("STEPS = 6\n")
    (place / "job.py").write_text(
        """
import sys, time
from helper import STEPS
from shoal import train

def train_func():
    from helper import STEPS
    for step in range(STEPS if len(sys.argv) == 1 else 1000):
        time.sleep(0.1)
        train.report({"step": step})

result = train.DataParallelTrainer(
    train_func, scaling_config=train.ScalingConfig(num_workers=3, placement_strategy="SPREAD")
).fit()
print("last step", result.metrics["step"], "interrupted", result.interrupted)
"""
    )
    submit = ["submit", "--working-dir", str(place)]
    elsewhere = cluster.shoal(
        2, "submit", "--address", "10.77.0.11", "--working-dir", str(place), str(place / "job.py")
    )
    assert elsewhere.returncode == 1
    assert "Jobs are taken on the head only" in elsewhere.stdout
    done = cluster.shoal(1, *submit, str(place / "job.py"))
    assert done.returncode == 0, done.stdout
    assert "last step 5 interrupted False" in done.stdout
    assert "SUCCEEDED" in done.stdout
    started = cluster.shoal(1, *submit, "--no-follow", str(place / "job.py"), "--", "long")
    job = started.stdout.rpartition("submitted: ")[2].partition(".")[0]
    until(lambda: "report" in cluster.shoal(1, "logs", job).stdout, 60)
    status = cluster.shoal(1, "status", "--address", ADDRESS)
    assert "Nodes:   3" in status.stdout and "Runs:    1" in status.stdout, status.stdout
    assert cluster.shoal(1, "stop", job).returncode == 0
    until(lambda: "interrupted True" in cluster.shoal(1, "logs", job).stdout, 60)
