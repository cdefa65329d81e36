"""What comes before and after the supervisor's loop: the parts of a run put together, and what remains of it."""

from __future__ import annotations

import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.contracts import Engine
from shoal._core.failure import Failure
from shoal._core.job import Job
from shoal._core.plain_data import printable
from shoal._core.records import DriverStarted, History
from shoal._core.run import Run
from shoal._core.scaling import oversubscribed
from shoal._core.spec import RunSpec
from shoal._core.states import RunState
from shoal._runtime import context, directory
from shoal._runtime.channel import Channel
from shoal._runtime.directory import Home
from shoal._runtime.display import Display, make_display
from shoal._runtime.pickling import PickledTask, pickled_task
from shoal._runtime.resume import Earlier, changes, read_earlier
from shoal._runtime.run_driver import Parts, RunDriver
from shoal._runtime.rundir import RunFiles
from shoal._runtime.supervisor import Supervisor
from shoal._runtime.validation import Validator
from shoal._runtime.workers import Workers
from shoal._version import __version__
from shoal._worker.remote import Remote
from shoal._worker.task import Task


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, for the trainer to make a result of."""

    path: Path | Remote
    state: RunState
    reason: str
    metrics: dict[str, Any]
    history: History = field(default_factory=History)
    value: Any = None


def task_of(job: Job, storage: Remote | None = None) -> Task:
    """Return what a worker has to do. ``storage`` is the run's directory where workers write to it by themselves."""
    return Task(job.function, job.takes_config, job.config, job.framework, storage, job.start_checkpoint, job.datasets)


@contextmanager
def prepared(job: Job, engine: Engine) -> Iterator[RunDriver]:
    """Check the job, make its directory or take it over, listen, and yield what will drive it."""
    engine.check(job.request)
    place = directory.place_of(job.storage_path, job.name, job.storage_filesystem)
    # A worker in this very process gets the objects themselves, so they need not be picklable.
    task = PickledTask(b"") if engine.in_process else pickled_task(task_of(job, directory.reached_by_workers(place)))
    with directory.opened(place, job.name, job.resume) as home:
        earlier = read_earlier(home.work) if home.resumed else Earlier()
        display = make_display(job.verbose, job.show_ranks)
        changed = changes(earlier, job.asked, printable(job.config))
        _say_before(display, job, engine, changed)
        with directory.storage_errors(place):
            files = RunFiles(home, job.metadata)
        if not home.resumed:
            files.describe(job.asked, printable(job.config))
        channel = Channel(engine.listen_on)
        run_id = secrets.token_hex(4)
        try:
            parts = Parts(
                job=job,
                run_id=run_id,
                engine=engine,
                files=files,
                display=display,
                validator=validator(job, engine),
                driver=this_driver(changed),
                began=float((earlier.asked or job.asked).get("started_at", 0.0)),
                make_workers=partial(workers_of, job=job, task=task, engine=engine),
            )
            yield RunDriver(
                Run(spec_of(job, home), earlier.history, earlier.last_row), parts, Supervisor(run_id, channel)
            )
        finally:
            channel.close()


def this_driver(changed: list[str]) -> DriverStarted:
    """Return what the journal says of the driver that takes a run over now."""
    return DriverStarted(host=socket.gethostname(), pid=os.getpid(), version=__version__, changes=changed)


def workers_of(driver: RunDriver, *, job: Job, task: PickledTask, engine: Engine, decided: bool = False) -> Workers:
    """Return what starts the workers of a run, each a process of its own."""
    return Workers(
        driver.run_id,
        job=job,
        task=task,
        engine=engine,
        files=driver.files,
        send=driver.supervisor.send,
        post=driver.post,
        decided=decided,
    )


def validator(job: Job, engine: Engine) -> Validator | None:
    """Return what scores the checkpoints of a job, with workers of the same engine."""
    if job.validation is None:
        return None

    def score(task: Job, begun: Callable[[Callable[[on.Event], None]], None]) -> do.Finish:
        machines = context.engine_for(False) if engine.in_process else engine
        with prepared(task, machines) as run:
            begun(run.post)
            end = run.run()
            conclude(run, end)
        return end

    return Validator(job.validation, score)


def spec_of(job: Job, home: Home) -> RunSpec:
    """Return what the run's decisions depend on."""
    return RunSpec(
        request=job.request,
        failure=job.failure,
        checkpoint=job.checkpoint,
        start_checkpoint=str(job.start_checkpoint) if job.start_checkpoint else None,
        renames=home.checkpoints.renames,
        room_wait=job.room_wait,
        resize_interval=job.resize_interval,
    )


def _say_before(display: Display, job: Job, engine: Engine, changed: list[str]) -> None:
    warning = oversubscribed(job.request, job.request.max_workers, engine.total())
    if warning:
        display.on_message(warning, "warning")
    if changed:
        display.on_message("changed since this run was last started: " + "; ".join(changed), "warning")


def conclude(run: RunDriver, end: do.Finish) -> Outcome:
    """Write ``result.json``, close the run's files, and return what the trainer makes its result of."""
    machine, files = run.machine, run.files
    result: dict[str, Any] = {
        "state": end.state.value,
        "reason": end.reason,
        "metrics": machine.last_row,
        "attempts": [msgspec.to_builtins(attempt) for attempt in machine.history.attempts],
    }
    if end.failures:
        result["failures"] = [msgspec.to_builtins(_readable(failure)) for failure in end.failures]
    intact = not files.broken
    files.conclude(result)
    if files.broken and intact:
        warnings.warn(f"the run has ended, but {files.broken}", RuntimeWarning, stacklevel=2)
    return Outcome(
        path=files.path,
        state=end.state,
        reason=end.reason,
        metrics=machine.last_row,
        history=machine.history,
        value=cloudpickle.loads(end.value) if end.value is not None else None,
    )


def _readable(failure: Failure) -> Failure:
    if failure.error is None:
        return failure
    return msgspec.structs.replace(failure, error=msgspec.structs.replace(failure.error, pickled=None))
