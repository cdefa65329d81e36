"""The contracts for plug-ins of your own: engines, frameworks, callbacks."""

from shoal._core.contracts import Callback, Engine, Framework, Inbox, Lease, WorkerSide

__all__ = ["Callback", "Engine", "Framework", "Inbox", "Lease", "WorkerSide"]
