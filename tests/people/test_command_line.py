"""The command line on runs that have finished, failed, died, and go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import SEARCH, TRAIN, done, look, reports, running, shoal, started
from workers import wait_for

from shoal._version import __version__


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a run that has finished, one that has failed, and a search."""
    place = tmp_path_factory.mktemp("storage")
    (place / ".train.py").write_text(TRAIN)
    (place / ".search.py").write_text(SEARCH)
    done("run", "--name", "good", "--workers", "2", f"{place}/.train.py", "6", "0", "-1", storage=place)
    done("run", "--name", "bad", "--max-failures", "1", f"{place}/.train.py", "6", "0", "3", storage=place, code=1)
    done("run", "--name", "search", f"{place}/.search.py", "3", "0", storage=place)
    return place


@pytest.fixture(autouse=True)
def storage(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_STORAGE_PATH", str(place))
    monkeypatch.setenv("COLUMNS", "200")
    return place


def test_runs_lists_all_with_their_states_and_their_best(capsys: pytest.CaptureFixture[str]):
    assert shoal("runs") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "FINISHED" in lines["good"] and "6 reports" in lines["good"] and "loss 0.1667" in lines["good"]
    assert "FAILED" in lines["bad"]
    assert "4 trials (3 done, 1 failed)" in lines["search"]
    assert shoal("runs", "--state", "failed", "--json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["bad"]


def test_show_tells_the_causes_of_failures_and_where_things_lie(place: Path, capsys: pytest.CaptureFixture[str]):
    assert shoal("show", "bad") == 0
    text = capsys.readouterr().out
    assert "RuntimeError: the loss is gone" in text
    assert 'raise RuntimeError("the loss is gone")' in text
    assert str(place / "bad") in text
    assert "optimizer/lr" in text
    assert "checkpoint of report 3" in text
    assert shoal("show", "bad", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [attempt["number"] for attempt in told["attempts"]] == [1, 2]
    assert told["failures"][0]["rank"] == 0 and told["failures"][0]["cause"]


def test_a_search_shows_its_best_trials_first_and_each_trial_can_be_shown(capsys: pytest.CaptureFixture[str]):
    assert shoal("show", "search") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "_lr=" in line]
    assert [line.split()[0] for line in lines] == ["00000_lr=1", "00001_lr=2", "00002_lr=3", "00003_lr=4"]
    assert "ValueError: too large" in lines[3]
    assert shoal("show", "search/00003", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["state"], told["config"]["lr"]) == ("trial", "FAILED", 4)


def test_metrics_are_printed_drawn_and_checked(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert shoal("metrics", "good", "loss", "--last", "2") == 0
    assert capsys.readouterr().out.split() == ["report", "loss", "5", "0.2", "6", "0.1667"]
    assert shoal("metrics", "good", "--plot", "eval/acc") == 0
    assert "⠤" in capsys.readouterr().out
    assert shoal("metrics", "search", "--plot", "loss") == 0
    assert "00003_lr=4" in capsys.readouterr().out
    assert shoal("metrics", "good", "--png", str(tmp_path / "curves.png")) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert shoal("metrics", "good", "--json", "loss") == 0
    assert json.loads(capsys.readouterr().out)[0] == {"loss": 1.0, "training_iteration": 1}
    assert shoal("metrics", "good", "los") == 1
    assert "has never reported 'los'; it has reported: eval/acc, loss" in capsys.readouterr().err


def test_compare_shows_where_runs_differ(capsys: pytest.CaptureFixture[str]):
    assert shoal("compare", "good", "bad", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["values"]["config/fails_at"] == [-1, 3]
    assert told["values"]["num_workers"] == [2, 1]
    assert "config/steps" not in told["values"]
    assert shoal("compare", "good") == 1


def test_checkpoints_are_listed_verified_and_exported(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert shoal("checkpoints", "good", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [c["n"] for c in listed] == [4, 5, 6] and [c["best"] for c in listed] == [False, False, True]
    assert shoal("checkpoints", "good", "verify") == 0
    assert shoal("checkpoints", "good", "export", "best", "--to", str(tmp_path / "model")) == 0
    assert os.listdir(tmp_path / "model") == ["step"] and (tmp_path / "model" / "step").read_text() == "6"
    assert shoal("checkpoints", "good", "export", "best", "--to", str(tmp_path / "model")) == 1
    file = place / "bad" / "checkpoints" / "checkpoint_000003" / "step"
    file.write_text("9")
    capsys.readouterr()
    assert shoal("checkpoints", "bad", "verify") == 1
    assert "checkpoint_000003: DAMAGED" in capsys.readouterr().out
    file.write_text("3")


def test_logs_are_of_a_rank(place: Path):
    assert done("logs", "good", "--rank", "1", storage=place) == "begins at 0\n"
    assert done("logs", "bad", "-n", "1", storage=place) == "begins at 3\n"
    assert "ranks with output: 0, 1" in done("logs", "good", "--rank", "5", storage=place, code=1)
    assert "shoal logs search/<trial>" in done("logs", "search", storage=place, code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "godo"), 1, "Did you mean good?"),
        (("show", "s3x://nowhere/run"), 1, "s3x"),
        (("stop", "good"), 1, "is not running: its state is FINISHED"),
        (("stacks", "bad"), 1, "is not running"),
        (("resume", "good"), 1, "has finished"),
        (("resume", "search/00001"), 1, "go on with its search"),
        (("run", "nothing.py"), 1, "there is no script"),
        (("run", "--workers", "two", __file__), 1, "give a number such as 4, or a range such as 2-8"),
        (("clean",), 1, "which?"),
        (("clean", "--older-than", "soon"), 1, "is not a duration"),
        (("runs", "--storage", "/dev/null/here"), 0, "there are no runs"),
        (("shwo",), 2, "No such command"),
        (("show",), 2, "Missing argument"),
        (("start", "--head", "--address", "a:1"), 1, "either --head"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
):
    assert shoal(*arguments) == code
    told = "".join(capsys.readouterr())
    assert words in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("given", "own", "name"),
    [
        (["--name", "mine", "SCRIPT", "--lr", "0.1"], ["--lr", "0.1"], "mine"),
        (["SCRIPT", "--name", "mine", "--lr", "0.1", "-1"], ["--lr", "0.1", "-1"], "mine"),
        (["SCRIPT", "-w", "2", "--", "--name", "own"], ["--name", "own"], None),
    ],
)
def test_options_stand_before_or_after_the_script_and_others_are_its_own(
    given: list[str], own: list[str], name: str | None, tmp_path: Path
):
    script = tmp_path / "train.py"
    script.write_text("import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ.get('SHOAL_OVERRIDES')]))\n")
    arguments, overrides = json.loads(
        done("run", *[str(script) if part == "SCRIPT" else part for part in given], storage=tmp_path)
    )
    assert arguments == own
    assert json.loads(overrides).get("name") == name


def test_what_the_script_itself_says_stays(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "from shoal import train\n"
        "train.DataParallelTrainer(lambda: train.report({'n': train.get_context().get_world_size()}),\n"
        "    scaling_config=train.ScalingConfig(num_workers=2), run_config=train.RunConfig(name='mine')).fit()\n"
    )
    told = done("run", "--workers", "3", "--name", "other", str(script), storage=tmp_path)
    assert "--workers 3 changes nothing, for the script itself says num_workers=2" in told
    assert "--name other changes nothing, for the script itself says name='mine'" in told
    one = look("mine", tmp_path)
    assert one is not None and one.metrics["n"] == 2


def test_a_run_that_goes_on_is_seen_stopped_and_resumed_as_it_was_started(tmp_path: Path):
    (tmp_path / ".train.py").write_text(TRAIN)
    started_with = ("--name", "mine", "-w", "2", f"{tmp_path}/.train.py", "5000", "0.1", "-1")
    with running(*started_with, storage=tmp_path) as process:
        wait_for(lambda: reports("mine", tmp_path) >= 3)
        wait_for(lambda: "memory" in (look("mine", tmp_path).workers or [{}])[0])  # type: ignore[union-attr]
        told = json.loads(done("show", "mine", "--json", storage=tmp_path))
        assert told["state"] == "RUNNING"
        assert [worker["phase"] for worker in told["workers"]] == ["training", "training"]
        stacks = done("stacks", "mine", storage=tmp_path)
        assert "rank 0" in stacks and "rank 1" in stacks and "in train_func" in stacks
        assert "STOPPED" in done("stop", "mine", storage=tmp_path)
        assert process.wait(60) == 0
    stopped = look("mine", tmp_path)
    assert stopped is not None and stopped.state == "STOPPED" and "asked by" in stopped.reason
    again = started("resume", "mine", storage=tmp_path)
    wait_for(lambda: reports("mine", tmp_path) > stopped.reports + 2)
    assert "ENDED" not in done("stop", "--kill", "mine", storage=tmp_path)
    again.communicate(timeout=60)
    ended = look("mine", tmp_path)
    assert ended is not None and [attempt.world_size for attempt in ended.attempts] == [2, 2]


def test_a_run_whose_driver_was_killed_has_died_and_can_be_resumed(tmp_path: Path):
    (tmp_path / ".train.py").write_text(TRAIN)
    with running("--name", "mine", f"{tmp_path}/.train.py", "12", "0.1", "-1", storage=tmp_path) as process:
        wait_for(lambda: reports("mine", tmp_path) >= 3)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    died = look("mine", tmp_path)
    assert died is not None and died.state == "DIED"
    assert "shoal resume mine" in done("show", "mine", storage=tmp_path)
    assert "the end 12" in done("resume", "mine", storage=tmp_path)


def test_logs_are_followed_to_the_end(tmp_path: Path):
    (tmp_path / ".train.py").write_text(TRAIN)
    with running("--name", "mine", f"{tmp_path}/.train.py", "20", "0.1", "-1", storage=tmp_path):
        wait_for(lambda: reports("mine", tmp_path) >= 1)
        assert done("logs", "mine", "--follow", storage=tmp_path) == "begins at 0\n"
    one = look("mine", tmp_path)
    assert one is not None and one.state == "FINISHED"


def test_a_search_is_stopped_as_a_whole_and_goes_on(tmp_path: Path):
    (tmp_path / ".search.py").write_text(SEARCH)
    with running("--name", "mine", f"{tmp_path}/.search.py", "40", "0.1", storage=tmp_path):
        wait_for(lambda: reports("mine", tmp_path) >= 4)
        assert "in objective" in done("stacks", "mine", storage=tmp_path)
        assert "asked of all of it" in done("stop", "mine/00000", storage=tmp_path, code=1)
        assert "STOPPED" in done("stop", "mine", storage=tmp_path)
    again = started("resume", "mine", storage=tmp_path)
    output, _ = again.communicate(timeout=90)
    assert again.returncode == 0, output
    one = look("mine", tmp_path)
    assert one is not None and one.state == "FINISHED" and len(one.trials) == 4


def test_clean_removes_what_was_chosen_and_never_what_runs(tmp_path: Path):
    (tmp_path / ".train.py").write_text(TRAIN)
    for name in ("one", "two"):
        done("run", "--name", name, f"{tmp_path}/.train.py", "1", "0", "-1", storage=tmp_path)
    with running("--name", "live", f"{tmp_path}/.train.py", "5000", "0.1", "-1", storage=tmp_path):
        wait_for(lambda: reports("live", tmp_path) >= 1)
        assert "one" in done("clean", "--keep", "0", "--dry-run", storage=tmp_path)
        assert (tmp_path / "one").exists()
        told = done("clean", "--keep", "0", "--yes", storage=tmp_path)
        assert "running, and left as they are: live" in told
        assert sorted(name.name for name in tmp_path.iterdir() if not name.name.startswith(".")) == ["live"]
        done("stop", "--kill", "live", storage=tmp_path)


def test_the_doctor_tries_two_workers_and_the_storage(tmp_path: Path):
    found = json.loads(done("doctor", "--json", storage=tmp_path))
    by_name = {one["what"]: one for one in found}
    assert by_name["two workers"]["level"] == "ok" and "torch.distributed" in by_name["two workers"]["found"]
    assert by_name["storage"]["level"] == "ok"
    broken = done("doctor", "--quick", "--storage", "/proc/nothing", storage=tmp_path, code=1)
    assert "does not work: storage" in broken


def test_versions_and_completion(tmp_path: Path):
    told = done("--version", storage=tmp_path)
    assert told.startswith(f"shoal {__version__}\nPython 3.") and "\ntorch " in told
    script = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "--show-completion", "bash"], capture_output=True, text=True, check=False
    )
    assert "_SHOAL_COMPLETE" in script.stdout
