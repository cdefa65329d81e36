"""Trackers in threads of their own, so that training does not wait for a service that answers slowly or not at all."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any

from shoal._core.tracker import RunTracking, Tracker, TrialTracking
from shoal._runtime.display import write

PATIENCE = 30.0  # seconds that the end of a run waits for what a tracker has not sent yet
QUIET = 2.0  # seconds of that of which nothing is said


class TrackerError(RuntimeError):
    """A tracker has raised something, or has not sent all that it was told."""


class Turns:
    """Calls the methods of one tracker in the order in which they were asked for, in a thread.

    What the tracker raises is raised to whoever asks next, once for each method. Of a run that it could not begin it is
    told nothing more, unless that is begun again.
    """

    def __init__(self, tracker: Tracker, patience: float = PATIENCE):
        self._tracker, self._patience = tracker, patience
        self._name = type(tracker).__name__
        self._queue: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._errors: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._raised: set[str] = set()
        self._thread: threading.Thread | None = None

    def tell(self, method: str, *arguments: Any) -> None:
        """Have a method called in its turn."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shoal-tracker", daemon=True)
            self._thread.start()
        self._queue.put((method, arguments))
        self._raise()

    def finish(self) -> None:
        """Wait until all is done that was asked for, and not for ever."""
        if self._thread is None:
            return
        self._queue.put(("close", ()))
        self._queue.put(None)
        quiet = min(QUIET, self._patience)
        self._thread.join(quiet)
        if self._thread.is_alive() and self._patience > quiet:
            text = f"shoal: waiting for {self._name} to send what is left, for at most {self._patience - quiet:g} s\n"
            write(sys.stderr, text)
            self._thread.join(self._patience - quiet)
        if self._thread.is_alive():
            self._errors.put(
                f"{self._name} has not sent everything {self._patience:g} s after the end: "
                f"{self._queue.qsize()} calls are given up"
            )
        self._thread = None
        self._raise()

    def _raise(self) -> None:
        errors = []
        while not self._errors.empty():
            errors.append(self._errors.get())
        if errors:
            raise TrackerError("; ".join(errors))

    def _run(self) -> None:
        never_begun: set[str] = set()
        while (item := self._queue.get()) is not None:
            method, arguments = item
            key = arguments[0].key if arguments else ""
            if key in never_begun and method != "begin":
                continue  # it would only fail for what it does not know
            try:
                getattr(self._tracker, method)(*arguments)
                never_begun.discard(key)
            except Exception as error:
                if method == "begin":
                    never_begun.add(key)
                if method not in self._raised:
                    self._raised.add(method)
                    self._errors.put(f"{self._name}.{method} raised {type(error).__name__}: {error}")


def tracked(tracker: Tracker, kind: type) -> RunTracking | TrialTracking:
    """Return a tracker as the callback of a run, or of a search."""
    turns = Turns(tracker)
    as_callback = RunTracking if issubclass(RunTracking, kind) else TrialTracking
    return as_callback(turns.tell, turns.finish)
