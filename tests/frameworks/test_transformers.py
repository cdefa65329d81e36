"""HuggingFace Transformers: a plain Trainer in the function, on two workers, killed and gone on with, searched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shoal import train, tune
from shoal._runtime.requirements import require
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.huggingface import TransformersTrainer

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'shoal[transformers]'")


def learn(config: dict[str, Any]) -> None:
    """Tell sequences that begin with a 1 from those that do not."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )
    from transformers.utils import logging

    logging.disable_progress_bar()
    set_seed(0)
    numbers = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 2, (256, 6), generator=numbers)
    rows = [{"input_ids": row, "labels": row[0]} for row in tokens]
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=4,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )

    class DieOnce(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            if config.get("dies") and state.global_step == 20 and train.get_context().get_world_rank() == 1:
                mark = Path(config["dies"])
                if not mark.exists():
                    mark.touch()
                    os._exit(3)

    class Subclass(Trainer):
        pass

    trainer = Subclass(
        model=model,
        args=TrainingArguments(
            output_dir=os.path.join(config["place"], "output"),
            num_train_epochs=3,
            per_device_train_batch_size=8,
            learning_rate=config.get("lr", 1e-2),
            logging_steps=4,
            eval_strategy="steps",
            eval_steps=16,
            save_steps=16,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows[:192],
        eval_dataset=rows[192:],
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
        callbacks=[DieOnce()],
    )
    trainer.train()


def fit(config: dict[str, Any], workers: int = 2, **run: Any) -> train.Result:
    return TransformersTrainer(
        learn,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None, **run),
    ).fit()


def test_a_plain_trainer_learns_and_reports_its_logs_evaluations_and_checkpoints(tmp_path: Path):
    result = fit({"place": str(tmp_path)})
    frame = result.metrics_dataframe
    # 192 rows by 2 workers and 8: 12 steps an epoch, 36 in all. Every 4th is logged, in one report with what else there
    # is of the step; the last row sums up.
    assert list(frame["step"]) == [4, 8, 12, 16, 20, 24, 28, 32, 36, 36]
    assert frame["loss"].notna().sum() == 9
    evaluated = frame[frame["eval_accuracy"].notna()]
    assert list(evaluated["step"]) == [16, 32, 36]
    assert evaluated["eval_accuracy"].iloc[-1] == 1.0
    assert result.metrics["train_loss"] > 0
    checkpoints = [metrics["step"] for _, metrics in result.best_checkpoints]
    assert sorted(checkpoints) == [16, 32, 36]
    with result.checkpoint.as_directory() as directory:
        assert {"model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"} <= set(
            os.listdir(directory)
        )


def test_a_killed_worker_goes_on_from_the_checkpoint_and_ends_where_an_undisturbed_run_ends(tmp_path: Path):
    undisturbed = fit({"place": str(tmp_path / "a")})
    result = fit(
        {"place": str(tmp_path / "b"), "dies": str(tmp_path / "mark")}, failure_config=FailureConfig(max_failures=1)
    )
    assert len(result.attempts) == 2
    assert list(result.metrics_dataframe["step"]) == list(undisturbed.metrics_dataframe["step"])
    assert result.attempts[1].checkpoint > 0
    last, other = (one.metrics_dataframe["loss"].dropna().iloc[-1] for one in (result, undisturbed))
    assert last == pytest.approx(other, rel=0.05)


def test_one_worker_and_a_search(tmp_path: Path):
    grid = tune.Tuner(
        TransformersTrainer(learn, train_loop_config={"place": str(tmp_path)}),
        param_space={"lr": tune.grid_search([1e-2, 1e-7])},
        tune_config=tune.TuneConfig(metric="eval_loss", mode="min", max_concurrent_trials=1),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert grid.num_errors == 0, grid.errors
    assert grid.get_best_result(scope="all").config["lr"] == 1e-2


def test_a_framework_that_is_missing_or_old_is_told():
    with pytest.raises(ImportError, match=r'X needs no-such-thing.*pip install "shoal\[such\]"'):
        require("no-such-thing", extra="such", tested="1.0", trainer="X")
    with pytest.warns(UserWarning, match=r"transformers [\d.]+ is installed; X is tested with 99.0 and later"):
        require("transformers", extra="transformers", tested="99.0", trainer="X")
