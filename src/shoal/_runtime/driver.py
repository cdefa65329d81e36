"""From a trainer's ``fit()`` to the end of the run, on an engine that starts workers."""

from __future__ import annotations

from shoal._core.contracts import Engine, InProcessEngine
from shoal._core.job import Job
from shoal._core.states import RunState
from shoal._runtime import in_process
from shoal._runtime.failures import failed
from shoal._runtime.interrupts import stop_on_signals
from shoal._runtime.preparation import Outcome, conclude, prepared


def drive(job: Job, engine: Engine) -> Outcome:
    """Run a job on an engine and return how it ended.

    Raises
    ------
    InfeasibleRequest, UnpicklableError, RunExists, StorageError
        Before anything is started.
    TrainingFailedError
        When the run failed.
    KeyboardInterrupt
        When the person pressed Ctrl-C twice.
    """
    if isinstance(engine, InProcessEngine):
        return in_process.drive(job, engine)
    with prepared(job, engine) as run:
        with stop_on_signals(run.post, engine) as pressed_twice:
            end = run.run()
        outcome = conclude(run, end)
    if run.machine.leaving and end.state is RunState.STOPPED:
        engine.leave()
    if pressed_twice():
        raise KeyboardInterrupt(f"the run was ended at once; what was committed is in {outcome.path}")
    if end.state is RunState.FAILED:
        raise failed(end, run.files, job.name)
    return outcome
