"""From a trainer's ``fit()`` to the end of the run where the calling process is itself a worker.

The function runs in the calling thread, where a debugger can step through it; on rank 0 the supervisor runs in another
one. Ranks of a launcher's other processes connect to rank 0 as workers do anywhere.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from shoal._core import commands as do
from shoal._core.contracts import InProcessEngine
from shoal._core.errors import WorkerGroupError
from shoal._core.job import Job
from shoal._core.messages import Boot, Endpoint
from shoal._core.states import RunState
from shoal._runtime.directory import place_of, reached_by_workers
from shoal._runtime.failures import failed
from shoal._runtime.preparation import Outcome, conclude, prepared, task_of
from shoal._runtime.run_driver import RunDriver
from shoal._worker.main import EndHere, main_here
from shoal._worker.remote import Remote


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 tells the others: where the supervisor listens, and of which run; or why there is none."""

    run_id: str = ""
    name: str = ""
    endpoint: Endpoint | None = None
    error: str = ""


def drive(job: Job, engine: InProcessEngine) -> Outcome:
    """Be one rank of the run, and on rank 0 supervise it too."""
    if engine.rank != 0:
        return _join(job, engine)
    with _others_told_of_errors(engine), prepared(job, engine) as run:
        return _lead(job, engine, run)


def _lead(job: Job, engine: InProcessEngine, run: RunDriver) -> Outcome:
    invitation = Invitation(run_id=run.run_id, name=job.name, endpoint=run.endpoint)
    engine.share(msgspec.json.encode(invitation))
    over = threading.Event()
    ends: list[do.Finish] = []

    def supervise() -> None:
        try:
            ends.append(run.run())
        finally:
            over.set()

    thread = threading.Thread(target=supervise, name="shoal-supervisor", daemon=True)
    thread.start()
    here = _work(job, invitation, engine, over, run.files.storage)
    thread.join()
    if not ends:
        raise WorkerGroupError("the supervisor of the run died; its traceback is above", path=str(run.files.path))
    outcome = replace(conclude(run, ends[0]), value=here.value)
    if ends[0].state is RunState.FAILED:
        raise failed(ends[0], run.files, job.name, here.error)
    return outcome


def _join(job: Job, engine: InProcessEngine) -> Outcome:
    invitation = msgspec.json.decode(engine.share(b""), type=Invitation)
    if invitation.error:
        raise WorkerGroupError(f"rank 0 did not start the run: {invitation.error}")
    place = place_of(job.storage_path, invitation.name, job.storage_filesystem)
    here = _work(job, invitation, engine, threading.Event(), reached_by_workers(place))
    if here.error is not None:
        raise WorkerGroupError(
            f"rank {engine.rank} raised {type(here.error).__name__}: {here.error}",
            worker_failures={engine.rank: here.error},
            path=str(place),
        ) from here.error
    state = RunState.STOPPED if here.stopped else RunState.FINISHED
    return Outcome(path=place, state=state, reason="", metrics=here.metrics, value=here.value)


def _work(
    job: Job, invitation: Invitation, engine: InProcessEngine, over: threading.Event, storage: Remote | None
) -> EndHere:
    if invitation.endpoint is None:
        raise AssertionError("an invitation without an endpoint has an error")
    os.environ["SHOAL_HOST_ADDRESS"] = engine.address
    with tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True) as scratch:
        boot = Boot(
            endpoint=invitation.endpoint, run_id=invitation.run_id, attempt=1, rank=engine.rank, scratch=scratch
        )
        return main_here(boot, task_of(job, storage), over)


@contextmanager
def _others_told_of_errors(engine: InProcessEngine) -> Iterator[None]:
    """Let the other ranks know when rank 0 fails before it could invite them: they would wait for ever."""
    before = engine.shared
    try:
        yield
    except BaseException as error:
        if engine.shared == before:
            engine.share(msgspec.json.encode(Invitation(error=f"{type(error).__name__}: {error}")))
        raise
