"""No workers at all: the function runs in the calling process and thread, where a debugger can step through it."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from shoal._core.contracts import Inbox, InProcessEngine
from shoal._core.events import Acquired, HostSlots
from shoal._core.scaling import GroupRequest


class InlineEngine(InProcessEngine):
    """Runs the function in the calling process as the only rank. Resources are not counted."""

    name = "inline"
    rank = 0
    address = "127.0.0.1"

    def share(self, data: bytes) -> bytes:
        self.shared += 1
        return data

    def total(self) -> Mapping[str, float]:
        return {"CPU": 1.0}

    def check(self, request: GroupRequest) -> None:
        return

    def acquire(self, request: GroupRequest, inbox: Inbox) -> InlineLease:
        inbox.post(Acquired(slots=(HostSlots(host="here", hostname=socket.gethostname(), count=1),)))
        return InlineLease()

    def shutdown(self) -> None:
        return


class InlineLease:
    """Room in processes that are there anyway."""

    def release(self) -> None:
        return
