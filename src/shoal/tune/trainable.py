"""Trials as objects: a class with a step, of which shoal calls one after the other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from shoal._worker import session as sessions
from shoal.train.checkpoint import Checkpoint
from shoal.train.context import get_checkpoint
from shoal.train.reporting import checkpoint_dir, report


class Trainable:
    """The base of trials that are a class.

    Override :meth:`setup` and :meth:`step`, and for checkpoints :meth:`save_checkpoint` and :meth:`load_checkpoint`.
    After each step what it returned is reported; the trial ends when that has ``done=True``, or when a stopper or the
    scheduler says so. Checkpoints are saved every ``CheckpointConfig(checkpoint_frequency=...)`` steps, where a
    scheduler pauses or ends the trial, and at the end (``checkpoint_at_end``).

    Examples
    --------
    >>> from shoal import tune
    >>> class Descent(tune.Trainable):
    ...     def setup(self, config):
    ...         self.x = config["start"]
    ...     def step(self):
    ...         self.x *= 0.5
    ...         return {"x": self.x, "done": self.x < 0.1}
    >>> trial = Descent({"start": 1.0})
    >>> [trial.train()["x"] for _ in range(2)]
    [0.5, 0.25]
    """

    def __init__(self, config: dict[str, Any] | None = None, storage: Any = None):
        self.config: dict[str, Any] = dict(config or {})
        self._iteration = 0
        self._started_at = time.monotonic()
        self._time_before = 0.0
        self._stopped = False
        self.setup(dict(self.config))

    # ---- to be overridden -------------------------------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare; called once, before the first step."""

    def step(self) -> dict[str, Any]:
        """Train for a while and return metrics; ``done=True`` among them ends the trial."""
        raise NotImplementedError(f"{type(self).__name__} needs a step() that trains and returns metrics")

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        """Write all that is needed to go on into a directory; a dict that is returned is kept as well."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a save_checkpoint(checkpoint_dir): the scheduler or the CheckpointConfig "
            "asked for a checkpoint"
        )

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from what :meth:`save_checkpoint` wrote: the directory, or the dict that it returned."""
        raise NotImplementedError(f"{type(self).__name__} needs a load_checkpoint(checkpoint) to go on from one")

    def cleanup(self) -> None:
        """Let go of what the trial holds; called once, at the end."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin anew with another configuration; return whether that is possible, else a new object is made."""
        return False

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """Return what a trial of this configuration takes, as for ``tune.with_resources``; ``None`` for the default."""
        return None

    # ---- what is known ----------------------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """How many steps it has made, those before its checkpoint included."""
        return self._iteration

    training_iteration = iteration

    @property
    def trial_id(self) -> str:
        """The trial's identifier; ``"default"`` outside of a search."""
        return sessions.current("trial_id").task.trial_id if sessions.active() else "default"

    @property
    def trial_name(self) -> str:
        """The name of the trial's directory; ``"default"`` outside of a search."""
        return sessions.current("trial_name").task.run_name if sessions.active() else "default"

    @property
    def trial_resources(self) -> dict[str, float]:
        """What the trial has; empty outside of a search."""
        return dict(sessions.current("trial_resources").task.resources) if sessions.active() else {}

    @property
    def logdir(self) -> str:
        """A scratch directory of this worker."""
        return sessions.current("logdir").scratch if sessions.active() else os.getcwd()

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return self.config

    # ---- what is called ---------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Make one step and return its metrics, with ``training_iteration``, ``time_total_s`` and ``done``."""
        result = self.step()
        if not isinstance(result, dict):
            raise TypeError(
                f"{type(self).__name__}.step() returned a {type(result).__name__}; return a dict of metrics"
            )
        self._iteration += 1
        now = self._time_before + time.monotonic() - self._started_at
        return {"done": False, "time_total_s": now, **result, "training_iteration": self._iteration}

    def save(self, checkpoint_dir: str) -> str:
        """Write a checkpoint into a directory that exists."""
        directory = Path(checkpoint_dir)
        state = self.save_checkpoint(str(directory))
        checkpoint = Checkpoint(directory)
        if isinstance(state, dict):
            import cloudpickle

            (directory / "state.pkl").write_bytes(cloudpickle.dumps(state))
        checkpoint.set_metadata({"iteration": self._iteration, "time_total_s": self._passed})
        return str(directory)

    def restore(self, checkpoint_path: str | Checkpoint) -> None:
        """Go on from a checkpoint. What it holds is made by the trial itself, and loaded as such."""
        checkpoint = checkpoint_path if isinstance(checkpoint_path, Checkpoint) else Checkpoint(checkpoint_path)
        known = checkpoint.get_metadata()
        self._iteration = int(known.get("iteration", 0))
        self._time_before, self._started_at = float(known.get("time_total_s", 0.0)), time.monotonic()
        with checkpoint.as_directory() as directory:
            state = Path(directory, "state.pkl")
            if state.exists():
                import cloudpickle

                self.load_checkpoint(cloudpickle.loads(state.read_bytes()))
            else:
                self.load_checkpoint(str(directory))

    def reset(self, new_config: dict[str, Any], storage: Any = None) -> bool:
        """Take another configuration, if :meth:`reset_config` can; return whether it could."""
        if not self.reset_config(dict(new_config)):
            return False
        self.config = dict(new_config)
        self._iteration, self._time_before, self._started_at = 0, 0.0, time.monotonic()
        return True

    def stop(self) -> None:
        """End; :meth:`cleanup` is called once."""
        if not self._stopped:
            self._stopped = True
            self.cleanup()

    def loop(self, frequency: int, at_end: bool) -> None:
        """Step, report and save until the trial is done. Runs in a worker."""
        checkpoint = get_checkpoint()
        if checkpoint is not None:
            self.restore(checkpoint)
        session = sessions.current("Trainable.loop")
        done = False
        while not done:
            result = self.train()
            done = bool(result.get("done"))
            metrics = {key: value for key, value in result.items() if key not in _ADDED}
            stops = session.consult(metrics)
            due = frequency > 0 and self._iteration % frequency == 0
            if (due or ((done or stops) and at_end)) and self._saves:
                with checkpoint_dir() as directory:
                    self.save(str(directory))
                    report(metrics, checkpoint=Checkpoint(directory))
            else:
                report(metrics)

    @property
    def _saves(self) -> bool:
        return type(self).save_checkpoint is not Trainable.save_checkpoint

    @property
    def _passed(self) -> float:
        return self._time_before + time.monotonic() - self._started_at


_ADDED = frozenset({"training_iteration", "time_total_s", "done"})
