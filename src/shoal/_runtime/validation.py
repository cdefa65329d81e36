"""Scoring a checkpoint: a run of its own beside the run that it belongs to, in a thread of the same driver."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.errors import ShoalError
from shoal._core.failure import headline
from shoal._core.job import Job
from shoal._core.states import RunState
from shoal._worker.remote import Remote

Score = Callable[[Job, Callable[[Callable[[on.Event], None]], None]], do.Finish]


class Validation(Protocol):
    """What makes jobs of checkpoints that are to be scored: a trainer's configuration."""

    def job(self, name: str, checkpoint: Path | Remote, task: Mapping[str, Any], storage_path: str) -> Job:
        """Return what is to be run."""

    def timeout(self, task: Mapping[str, Any]) -> float | None:
        """Return after how many seconds it is given up."""


class Validator:
    """Scores one checkpoint at a time.

    Parameters
    ----------
    validation : Validation
        What is to be run.
    score : callable
        Runs a job to its end; is given a function that takes what stops it.
    """

    def __init__(self, validation: Validation, score: Score):
        self._validation = validation
        self._score = score
        self._lock = threading.Lock()
        self._stop: Callable[[on.Event], None] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, n: int, place: Path | Remote, task: Mapping[str, Any], post: Callable[[on.Event], None]) -> None:
        """Score the checkpoint of report ``n``; ``Validated`` is posted at the end."""

        def work() -> None:
            try:
                post(on.Validated(n=n, metrics=self._found(n, place, task)))
            except Exception as error:
                post(on.Validated(n=n, error=str(error) if isinstance(error, ShoalError) else repr(error)))

        self._thread = threading.Thread(target=work, name="shoal-validation", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End what is being scored, and wait for its workers to be gone."""
        with self._lock:
            self._closed = True
            stop = self._stop
        if stop is not None:
            stop(on.StopAsked(reason="the run has ended", kill=True))
        if self._thread is not None:
            self._thread.join()

    def _found(self, n: int, place: Path | Remote, task: Mapping[str, Any]) -> dict[str, Any]:
        timeout = self._validation.timeout(task)
        with tempfile.TemporaryDirectory(prefix="shoal-validation-", ignore_cleanup_errors=True) as directory:
            job = self._validation.job(f"validation of report {n}", place, task, directory)
            timers: list[threading.Timer] = []

            def begun(stop: Callable[[on.Event], None]) -> None:
                with self._lock:
                    self._stop = stop
                    closed = self._closed
                if closed:
                    stop(on.StopAsked(reason="the run has ended", kill=True))
                if timeout is not None:
                    event = on.StopAsked(reason=f"it took longer than {timeout:g} s", kill=True)
                    timers.append(threading.Timer(timeout, stop, [event]))
                    timers[0].daemon = True
                    timers[0].start()

            try:
                end = self._score(job, begun)
            finally:
                with self._lock:
                    self._stop = None
                for timer in timers:
                    timer.cancel()
        return _metrics(end)


def _metrics(end: do.Finish) -> dict[str, Any]:
    if end.state is not RunState.FINISHED:
        raise ShoalError(headline(end.failures[0]) if end.failures else end.reason)
    return dict(cloudpickle.loads(end.value)) if end.value is not None else {}
