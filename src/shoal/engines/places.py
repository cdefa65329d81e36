"""What an engine of several machines keeps: its machines with the hosts on them, and who has room there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from shoal._core.contracts import Inbox
from shoal._core.nodes import Node, fits, suitable
from shoal._core.scaling import GroupRequest

if TYPE_CHECKING:
    from shoal.engines.cluster import ClusterEngine

TELL_AFTER = 2.0  # seconds of waiting before that is said, and then again at every doubling


class Host(Protocol):
    """A host on another machine."""

    def order(self, order: Mapping[str, object]) -> None:
        """Have it take an order, ``Serve`` or ``Drop``."""

    def end(self) -> None:
        """Have it end, with its workers. Does not wait."""


class Place:
    """A machine, and the host that is on it or being started there."""

    def __init__(self, node: Node):
        self.node = node
        self.used: dict[str, float] = {}
        self.devices_in_use: set[str] = set()
        self.host: Host | None = None
        self.name = ""
        self.ready = False
        self.since = 0.0
        self.doubtful_until: float | None = None  # a host was lost here: nothing begins here before one is ready
        self.trouble = ""
        self.serving: set[str] = set()
        self.leaving_told = False

    def room(self, request: GroupRequest) -> int:
        """Return for how many workers of a request there is room now."""
        if self.node.leaving or not suitable(request, self.node.labels):
            return 0
        return fits(request, self.free())

    def free(self) -> dict[str, float]:
        taken = self.node.taken
        return {n: amount - self.used.get(n, 0.0) - taken.get(n, 0.0) for n, amount in self.node.total.items()}


class ClusterLease:
    """Room for one group on the machines of a cluster."""

    def __init__(self, engine: ClusterEngine, request: GroupRequest, inbox: Inbox):
        self.request, self.inbox = request, inbox
        self.plan: list[tuple[str, int]] = []
        self.hosts: dict[str, str] = {}
        self.devices: dict[str, Sequence[str]] = {}
        self.reservation: object = None
        self.told = 0
        self.since = self.say_at = time.monotonic()
        self.say_at += TELL_AFTER
        self._engine = engine

    @property
    def amounts(self) -> dict[str, float]:
        """What one worker takes; nothing where only a host is wanted."""
        return {name: amount for name, amount in self.request.resources.items() if amount > 0}

    @property
    def count(self) -> int:
        """How many workers there is room for."""
        return sum(count for _, count in self.plan)

    def release(self) -> None:
        """Give the room back."""
        self._engine.do(lambda: self._engine.give_back(self))


def shown(node: str) -> str:
    """Return a machine's name for people: what stands before a slash."""
    return node.partition("/")[0]
