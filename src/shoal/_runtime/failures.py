"""The error that ``fit()`` raises: the cause first, its traceback, what followed from it, and where to look."""

from __future__ import annotations

from collections.abc import Sequence

import cloudpickle

from shoal._core import commands as do
from shoal._core.errors import ControllerError, RemoteError, TrainingFailedError, WorkerDied, WorkerGroupError
from shoal._core.failure import Failure, headline
from shoal._runtime.rundir import RunFiles

LOG_LINES = 5


def failed(end: do.Finish, files: RunFiles, name: str, raised: BaseException | None = None) -> TrainingFailedError:
    """Return the error for a run that failed. ``raised`` is the exception itself where it happened in this process."""
    if not end.failures:
        return ControllerError(f"run {name!r} failed: {end.reason}", path=str(files.path))
    root, *others = end.failures
    # Python shows the cause above the error, and the error itself has the cause's traceback: once is enough.
    cause = raised or rebuilt(root, note=f"raised on rank {root.rank} ({root.host})")
    ordered = {root.rank: cause}
    for failure in others:
        ordered.setdefault(failure.rank, rebuilt(failure, note=_where(failure)))
    error = WorkerGroupError(tell(end, files, name), worker_failures=ordered, path=str(files.path))
    error.__cause__ = cause
    return error


def tell(end: do.Finish, files: RunFiles, name: str) -> str:
    """Return the text of the error."""
    root, *others = end.failures
    lines = [headline(root)]
    if root.error is not None and root.error.traceback:
        lines += ["", root.error.traceback.rstrip()]
    elif root.exit is not None:
        lines += _last_output(root, files)
    lines += ["", *_consequences(others)]
    log = files.logs.path(root.rank)
    lines.append(f"Run {name!r}, attempt {root.attempt}, after report {root.report}: {end.reason}.")
    lines.append(f"Log of rank {root.rank}: {files.kept(log)}" if log.exists() else f"Run directory: {files.path}")
    return "\n".join(lines)


def _last_output(root: Failure, files: RunFiles) -> list[str]:
    tail = files.logs.tail(root.rank, LOG_LINES)
    return ["", f"The last that rank {root.rank} printed:", *(f"  {line}" for line in tail)] if tail else []


def _consequences(others: Sequence[Failure]) -> list[str]:
    if not others:
        return []
    shown = [f"  {headline(failure)}" for failure in others[:8]]
    hidden = len(others) - len(shown)
    return ["What followed from it:", *shown, *([f"  and {hidden} more ranks"] if hidden else []), ""]


def _where(failure: Failure) -> str:
    traceback = failure.error.traceback.rstrip() if failure.error else ""
    return f"raised on rank {failure.rank} ({failure.host}):\n{traceback}"


def rebuilt(failure: Failure, note: str) -> BaseException:
    """Return a failure as an exception: the user's own where it can be rebuilt, else one that says the same."""
    if failure.error is None:
        return WorkerDied(headline(failure))
    if failure.error.pickled is not None:
        try:
            error = cloudpickle.loads(failure.error.pickled)
        except Exception:
            error = None  # its class cannot be had here; the text below says what it was
        if isinstance(error, BaseException):
            error.add_note(note)
            return error
    return RemoteError(f"{failure.error.type}: {failure.error.message}\n{failure.error.traceback}".rstrip())
