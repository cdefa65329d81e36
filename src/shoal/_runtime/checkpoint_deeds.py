"""What a run wants done with checkpoints, carried out in order on storage, however long that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.names import stored_elsewhere
from shoal._runtime.rundir import RunFiles
from shoal._runtime.validation import Validator


class CheckpointDeeds:
    """Carries out the commands that concern checkpoints.

    Parameters
    ----------
    files : RunFiles
        The run's files, its checkpoints among them.
    validator : Validator or None
        What scores checkpoints.
    post : callable
        Takes the events that follow.
    committed : callable
        Is told that a checkpoint is visible: its report, its name, its path.
    """

    def __init__(
        self,
        files: RunFiles,
        validator: Validator | None,
        post: Callable[[on.Event], None],
        committed: Callable[[int, str, str], None],
    ):
        self._files = files
        self._storage = files.checkpoints
        self._validator = validator
        self._post = post
        self._committed = committed
        self.deeds: dict[type[do.Command], Callable[[Any], None]] = {
            do.Commit: self._commit,
            do.AddDigests: self._add_digests,
            do.Inspect: self._inspect,
            do.Discard: self._discard,
            do.DeleteCheckpoint: self._delete,
            do.Validate: self._validate,
        }

    def _commit(self, command: do.Commit) -> None:
        def commit() -> str:
            if stored_elsewhere(command.name):
                return command.name
            return self._storage.commit(command.staging, command.name, command.n, command.files)

        def committed(path: str) -> None:
            self._post(on.CommitDone(n=command.n))
            self._committed(command.n, command.name, path)

        self._files.later(commit, committed)

    def _add_digests(self, command: do.AddDigests) -> None:
        self._files.later(lambda: self._storage.add_digests(command.name, command.files))

    def _inspect(self, command: do.Inspect) -> None:
        checkpoint = command.checkpoint

        def inspect() -> str:
            if not stored_elsewhere(checkpoint.name):
                return self._storage.inspect(checkpoint, full=command.full)
            place = self._files.checkpoint(checkpoint.name)
            return "" if place.exists() else f"there is nothing at {place}"

        self._files.later(inspect, lambda damage: self._post(on.Inspected(n=checkpoint.n, damage=damage)))

    def _discard(self, command: do.Discard) -> None:
        self._files.later(lambda: self._storage.discard(command.attempt, command.keep))

    def _delete(self, command: do.DeleteCheckpoint) -> None:
        self._files.later(lambda: self._storage.delete(command.name))

    def _validate(self, command: do.Validate) -> None:
        if self._validator is None:
            reason = "the trainer has no validation_config, which says what scores checkpoints"
            self._post(on.Validated(n=command.n, error=reason))
        else:
            self._validator.start(command.n, self._files.checkpoint(command.name), command.task, self._post)
