"""What a run wants done with checkpoints, carried out in order on storage, however long that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.names import stored_elsewhere
from shoal._runtime.rundir import RunFiles
from shoal._runtime.validation import Validator


class Keeper(Protocol):
    """The driver of a run, as far as its checkpoints are concerned."""

    files: RunFiles

    @property
    def validator(self) -> Validator | None:
        """What scores checkpoints."""

    def post(self, event: on.Event) -> None:
        """Take an event that follows."""

    def committed(self, n: int, name: str, path: str) -> None:
        """The checkpoint of the ``n``-th report is visible."""


def commit(run: Keeper, command: do.Commit) -> None:
    """Make a checkpoint visible whose files are all there."""
    files = run.files

    def work() -> str:
        if stored_elsewhere(command.name):
            return command.name
        return files.checkpoints.commit(command.staging, command.name, command.n, command.files)

    def done(path: str) -> None:
        run.post(on.CommitDone(n=command.n))
        run.committed(command.n, command.name, path)

    files.later(work, done)


def add_digests(run: Keeper, command: do.AddDigests) -> None:
    """Write down what a checkpoint's files have to be."""
    files = run.files
    files.later(lambda: files.checkpoints.add_digests(command.name, command.files))


def inspect(run: Keeper, command: do.Inspect) -> None:
    """See whether a checkpoint is what it was."""
    files, checkpoint = run.files, command.checkpoint

    def work() -> str:
        if not stored_elsewhere(checkpoint.name):
            return files.checkpoints.inspect(checkpoint, full=command.full)
        place = files.checkpoint(checkpoint.name)
        return "" if place.exists() else f"there is nothing at {place}"

    files.later(work, lambda damage: run.post(on.Inspected(n=checkpoint.n, damage=damage)))


def discard(run: Keeper, command: do.Discard) -> None:
    """Remove what an attempt has left that is no checkpoint."""
    files = run.files
    files.later(lambda: files.checkpoints.discard(command.attempt, command.keep))


def delete(run: Keeper, command: do.DeleteCheckpoint) -> None:
    """Remove a checkpoint."""
    files = run.files
    files.later(lambda: files.checkpoints.delete(command.name))


def validate(run: Keeper, command: do.Validate) -> None:
    """Have a checkpoint scored."""
    if run.validator is None:
        reason = "the trainer has no validation_config, which says what scores checkpoints"
        run.post(on.Validated(n=command.n, error=reason))
    else:
        run.validator.start(command.n, run.files.checkpoint(command.name), command.task, run.post)


DEEDS: Mapping[type[do.Command], Callable[[Any, Any], None]] = {
    do.Commit: commit,
    do.AddDigests: add_digests,
    do.Inspect: inspect,
    do.Discard: discard,
    do.DeleteCheckpoint: delete,
    do.Validate: validate,
}
