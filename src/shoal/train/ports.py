"""Ports for frameworks that want to know one before they listen on it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from shoal._core.contracts import WorkerSide


@contextmanager
def held_address(worker: WorkerSide) -> Iterator[str]:
    """Yield ``address:port`` at which this worker can listen after the block, and the others reach it.

    Nobody else on this machine gets the port while the block runs: where every worker takes one, the block lasts until
    all of them have.
    """
    with socket.socket() as held:
        held.bind(("", 0))
        yield f"{worker.address}:{held.getsockname()[1]}"
