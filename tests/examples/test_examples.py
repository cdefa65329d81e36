"""Each example learns what it is to learn, and learns the same where a worker is killed in the middle."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from shoal import train

EXAMPLES = Path(__file__).parents[2] / "examples"

# The settings of a run that is small enough for CI, the metric, the least (or, where less is better, the most) that it
# is to come to, and how far a disturbed run may end from an undisturbed one.
CASES: dict[str, tuple[dict[str, int], str, float, float]] = {
    "digits": ({"epochs": 6}, "test_accuracy", 0.9, 0.02),
    "transformers_digits": ({"epochs": 8}, "eval_accuracy", 0.85, 0.05),
    "accelerate_digits": ({"epochs": 12}, "test_accuracy", 0.93, 0.02),
    "lightning_digits": ({"epochs": 12}, "test_accuracy", 0.93, 0.02),
    "keras_digits": ({"epochs": 12}, "val_accuracy", 0.93, 0.03),
    "keras_torch_digits": ({"epochs": 12}, "test_accuracy", 0.93, 0.02),
    "keras_jax_digits": ({"epochs": 12}, "test_accuracy", 0.93, 0.02),
    "xgboost_cancer": ({"rounds": 60}, "test-error", -0.06, 0.015),
    "lightgbm_cancer": ({"rounds": 40}, "test-binary_error", -0.08, 0.015),
    "jax_digits": ({"epochs": 15}, "test_accuracy", 0.93, 1e-6),
    "sklearn_digits": ({"epochs": 15}, "test_accuracy", 0.92, 0.02),
    "own_framework": ({"epochs": 15}, "test_accuracy", 0.92, 1e-9),
    "deepspeed_digits": ({"epochs": 10}, "test_accuracy", 0.9, 0.02),
}
QUICK = {"digits", "xgboost_cancer", "jax_digits", "sklearn_digits", "own_framework"}  # the others: make test-all
NEEDS = {"deepspeed_digits": "deepspeed", "lightgbm_cancer": "lightgbm", "xgboost_cancer": "xgboost"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in CASES]
)
def test_an_example_learns_and_loses_nothing_with_a_worker(name: str, tmp_path: Path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed here")
    settings, metric, least, near = CASES[name]
    example = loaded(name)
    calm = fit(example, example.train_func, tmp_path / "calm", settings)
    reached = last(calm, metric)
    assert reached >= least if least > 0 else reached <= -least
    disturbed = fit(example, losing_a_worker(example.train_func, tmp_path / "killed"), tmp_path / "disturbed", settings)
    assert (tmp_path / "killed").exists()
    assert len(disturbed.attempts) == 2
    assert disturbed.attempts[1].checkpoint > 0
    assert math.isclose(last(disturbed, metric), reached, abs_tol=near)


def loaded(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # as the script that it is to a user
    return module


def fit(example: ModuleType, function: Callable[..., Any], place: Path, settings: dict[str, int]) -> train.Result:
    return example.make_trainer(function, **settings, storage_path=str(place), verbose=0, log_to_driver=None).fit()


def last(result: train.Result, metric: str) -> float:
    return float(result.metrics_dataframe[metric].dropna().iloc[-1])


def losing_a_worker(function: Callable[..., Any], killed: Path) -> Callable[..., Any]:
    """Return the function with an accident: rank 1 is killed as soon as a checkpoint is committed, once."""

    def disturbed(config):
        def wait_and_die(checkpoints: Path) -> None:
            while not list(checkpoints.glob("checkpoint_*/.manifest.json")):
                time.sleep(0.002)
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        if train.get_context().get_world_rank() == 1 and not killed.exists():
            from shoal._worker import session as sessions

            place = sessions.current("the test").place / "checkpoints"
            threading.Thread(target=wait_and_die, args=(place,), daemon=True).start()
        function(config)

    return disturbed
