"""What engines of several machines have in common: which host runs where, who has room, who waits for it.

All that changes is done by one thread, the steward, in order; engines of a kind say what machines there are and how a
host is started on one.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping

from shoal._core.contracts import Engine, Inbox
from shoal._core.errors import InfeasibleRequest
from shoal._core.events import (
    Acquired,
    CapacityChanged,
    EngineSays,
    HostLost,
    HostSlots,
    Infeasible,
    PreemptionNotice,
)
from shoal._core.nodes import Node, check_nodes, distribute
from shoal._core.scaling import GroupRequest
from shoal._runtime.accelerators import ACCELERATORS
from shoal.engines.places import ClusterLease, Host, Place, shown

LIMIT = 5.0  # seconds of silence after which a host and its supervisor take each other for lost
LOOK_EVERY = 1.0  # seconds between two looks at which machines there are, while anybody has room or wants it
LAUNCH_LIMIT = 30.0  # seconds for a host to start
TROUBLE_LIMIT = 30.0  # seconds for which a cluster that does not answer is asked again
TRY_AGAIN = 3.0  # seconds before a host is started again on a machine that has lost one


class ClusterEngine(Engine):
    """Runs workers on the machines of a cluster.

    Parameters
    ----------
    heartbeat_s : float
        After how many seconds of silence a machine counts as lost, and workers on it end by themselves.
    """

    where = "the cluster"

    def __init__(self, heartbeat_s: float = LIMIT):
        if not heartbeat_s >= 1:
            raise ValueError(f"heartbeat_s={heartbeat_s!r}: give at least one second")
        self._limit = heartbeat_s
        self._places: dict[str, Place] = {}
        self._active: list[ClusterLease] = []
        self._waiting: list[ClusterLease] = []
        self._numbers = itertools.count(1)
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._steward: threading.Thread | None = None
        self._start = threading.Lock()
        self._trouble_since: float | None = None

    # ---- what a kind of cluster says --------------------------------------------------------------------------------

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Return the machines that there are now, this one first if it is one of them."""

    @abstractmethod
    def launch(self, node: str, name: str, ready: Callable[[], None], ended: Callable[[str], None]) -> Host:
        """Start a host of this name on a machine, without waiting. Any thread may call ``ready`` and ``ended``."""

    def reserve(self, lease: ClusterLease) -> bool:
        """Reserve what a lease has planned with the cluster; false where somebody else was faster."""
        return True

    def unreserve(self, lease: ClusterLease) -> None:
        """Give back what :meth:`reserve` took."""

    def want(self, lease: ClusterLease) -> None:
        """A lease waits for machines that are not there, or not free."""

    def vacated(self, node: str) -> None:
        """Nothing is left on a machine that is wanted back."""

    def close(self) -> None:
        """The engine is shut down."""

    # ---- the engine -------------------------------------------------------------------------------------------------

    def total(self) -> Mapping[str, float]:
        amounts: dict[str, float] = {}
        for place in list(self._places.values()) or [Place(node) for node in self.nodes()]:
            if place.doubtful_until is not None or place.node.leaving:
                continue  # nobody waits for a machine that has just been lost, or is wanted back
            for name, amount in place.node.total.items():
                amounts[name] = amounts.get(name, 0.0) + amount
        return amounts

    def check(self, request: GroupRequest) -> None:
        if not self.grows:
            check_nodes(request, self.nodes(), self.where)

    def acquire(self, request: GroupRequest, inbox: Inbox) -> ClusterLease:
        lease = ClusterLease(self, request, inbox)
        self.do(lambda: self._ask(lease))
        return lease

    def lost(self, host: str) -> None:
        self.do(lambda: self._host_ended(host, "was silent"))

    def shutdown(self) -> None:
        with self._start:
            steward, self._steward = self._steward, None
        if steward is not None:
            self._todo.put(None)
            steward.join(timeout=30.0)
        self.close()

    def do(self, work: Callable[[], None]) -> None:
        """Have the steward do something."""
        with self._start:
            if self._steward is None:
                self._steward = threading.Thread(target=self._work, name="shoal-engine", daemon=True)
                self._steward.start()
        self._todo.put(work)

    # ---- the steward ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        looked = -LOOK_EVERY
        while True:
            busy = bool(self._active or self._waiting)
            try:
                work = self._todo.get(timeout=max(0.0, looked + LOOK_EVERY - time.monotonic()) if busy else None)
            except queue.Empty:
                work = self._look
                looked = time.monotonic()
            if work is None:
                break
            try:
                work()
                self._trouble_since = None
            except Exception as error:
                self._in_trouble(error)
        for place in self._places.values():
            if place.host is not None:
                place.host.end()
        self._places.clear()

    def _in_trouble(self, error: Exception) -> None:
        """The cluster does not do what it is asked: it is asked again for a while, and nobody waits in silence."""
        reason = f"{self.where} does not answer: {type(error).__name__}: {error}"
        now = time.monotonic()
        if self._trouble_since is None:
            self._trouble_since = now
            for lease in [*self._waiting, *self._active]:
                lease.inbox.post(EngineSays(text=reason, level="warning"))
        elif now - self._trouble_since > TROUBLE_LIMIT:
            waiting, self._waiting = self._waiting, []
            for lease in waiting:
                self._drop_plan(lease)
                lease.inbox.post(Infeasible(reason=f"{reason} (for {TROUBLE_LIMIT:g} s)"))

    def _look(self) -> None:
        """See which machines there are, and who can be given room now."""
        found = {node.name: node for node in self.nodes()}
        for name in [name for name in self._places if name not in found]:
            place = self._places[name]
            self._host_ended(place.name, f"{self.where} has no machine {shown(name)} any more")
            del self._places[name]
        for name, node in found.items():
            self._places.setdefault(name, Place(node)).node = node
        self._places = {name: self._places[name] for name in found}
        now = time.monotonic()
        for place in list(self._places.values()):
            if place.host is not None and not place.ready and now - place.since > LAUNCH_LIMIT:
                self._host_ended(place.name, f"no host has started there within {LAUNCH_LIMIT:g} s")
            if place.host is None and place.doubtful_until is not None and now > place.doubtful_until:
                self._launch(place)  # only where one starts, the machine is used again
            if place.node.leaving:
                self._vacate(place)
        self._grant()
        self._tell_of_capacity()

    def _vacate(self, place: Place) -> None:
        """A machine is wanted back: its workers are told once, and its host ends when none of them is left."""
        node = place.node.name
        there = [lease for lease in self._active if lease.amounts and node in dict(lease.plan)]
        if not place.leaving_told:
            place.leaving_told = True
            for lease in self._waiting:
                if node in dict(lease.plan):
                    self._drop_plan(lease)
            reason, grace = self.preemption_reason, self.preemption_grace_s
            for lease in there:
                lease.inbox.post(PreemptionNotice(reason=reason, grace=grace, host=place.name))
        if not there:
            if place.host is not None:
                place.host.end()
            place.host, place.ready = None, False
            self.vacated(node)

    def _ask(self, lease: ClusterLease) -> None:
        others = bool(self._active or self._waiting)
        self._waiting.append(lease)
        try:
            self.check(lease.request)
        except InfeasibleRequest as error:
            self._waiting.remove(lease)
            lease.inbox.post(Infeasible(reason=str(error)))
            return
        if others and self._places:
            self._grant()
        else:
            self._look()

    def _grant(self) -> None:
        """Give room in the order of asking; nobody overtakes, so that a large group does not starve."""
        while self._waiting:
            lease = self._waiting[0]
            if not lease.plan and not self._plan(lease):
                self._say_what_is_missing(lease)
                self.want(lease)
                return
            if not all(self._places[name].ready for name, _ in lease.plan):
                self._say_what_is_missing(lease)
                return
            if not self.reserve(lease):
                self._drop_plan(lease)
                return
            del self._waiting[0]
            self._active.append(lease)
            self._hand_over(lease)

    def _plan(self, lease: ClusterLease) -> bool:
        request = lease.request
        rooms = []
        for name, place in self._places.items():
            rooms.append((name, place.room(request) if place.doubtful_until is None else 0))
        lease.plan = distribute(request, rooms)
        for name, count in lease.plan:
            place = self._places[name]
            for resource, amount in request.resources.items():
                place.used[resource] = place.used.get(resource, 0.0) + amount * count
            if place.host is None:
                self._launch(place)
        return bool(lease.plan)

    def _drop_plan(self, lease: ClusterLease) -> None:
        for name, count in lease.plan:
            if name in self._places:
                place = self._places[name]
                for resource, amount in lease.request.resources.items():
                    place.used[resource] -= amount * count
                place.devices_in_use -= set(lease.devices.get(name, ()))
        lease.plan, lease.devices = [], {}

    def _hand_over(self, lease: ClusterLease) -> None:
        """Have the hosts of a lease serve its supervisor, and tell it where its workers go."""
        kind = next((a for a in ACCELERATORS if lease.request.resources.get(a.resource)), ACCELERATORS[0])
        each = int(lease.request.resources.get(kind.resource, 0.0))
        slots = []
        for name, count in lease.plan:
            place = self._places[name]
            lease.hosts[name] = place.name
            self._serve(place, lease.inbox)
            devices = list(lease.devices.get(name, ())) or self._devices_of(place, lease, each * count)
            slots.append(
                HostSlots(
                    host=place.name,
                    hostname=shown(name),
                    count=count,
                    devices=tuple(tuple(devices[i * each : (i + 1) * each]) for i in range(count)),
                    device_variable=kind.variable,
                )
            )
        lease.told = lease.count
        lease.inbox.post(Acquired(slots=tuple(slots)))

    def _devices_of(self, place: Place, lease: ClusterLease, count: int) -> list[str]:
        devices = [device for device in place.node.devices if device not in place.devices_in_use][:count]
        place.devices_in_use.update(devices)
        lease.devices[place.node.name] = devices
        return devices

    def give_back(self, lease: ClusterLease) -> None:
        """Take a lease back, and give its room to whoever waits. The steward's."""
        if lease in self._waiting:
            self._waiting.remove(lease)
        elif lease in self._active:
            self._active.remove(lease)
            self.unreserve(lease)
        else:
            return
        self._drop_plan(lease)
        run_id = lease.inbox.run_id
        same = [other for other in self._active if other.inbox.run_id == run_id]
        still = {name for other in same for name in other.hosts.values()}
        if any(not other.amounts for other in same):
            still = {place.name for place in self._places.values()}  # a search keeps all hosts that have served it
        for place in self._places.values():
            if run_id in place.serving and place.name not in still:
                place.serving.discard(run_id)
                if place.host is not None:
                    place.host.order({"type": "Drop", "run_id": run_id})
        self._grant()
        self._tell_of_capacity()

    def _tell_of_capacity(self) -> None:
        """Tell runs with a range of workers for how many there is room, the oldest first."""
        for lease in self._active:
            request = lease.request
            if request.max_workers == 1:
                continue
            have = sum(c for n, c in lease.plan if n in self._places and self._places[n].name == lease.hosts[n])
            more = 0
            if have < request.max_workers and not self._waiting:
                for place in self._places.values():
                    room = place.room(request)
                    if room and place.host is None and place.doubtful_until is None:
                        self._launch(place)  # a group grows onto machines whose hosts are there
                    more += room if place.ready else 0
            workers = min(have + more, request.max_workers)
            if workers != lease.told:
                lease.told = workers
                lease.inbox.post(CapacityChanged(workers=workers))

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def _launch(self, place: Place) -> None:
        node, name = place.node.name, f"{place.node.name}-{os.getpid()}-{next(self._numbers)}"
        place.name, place.ready, place.since = name, False, time.monotonic()
        place.serving.clear()
        place.host = self.launch(
            node,
            name,
            lambda: self.do(lambda: self._host_ready(node, name)),
            lambda reason: self.do(lambda: self._host_ended(name, reason)),
        )

    def _host_ready(self, node: str, name: str) -> None:
        place = self._places.get(node)
        if place is not None and place.name == name:
            place.ready, place.doubtful_until, place.trouble = True, None, ""
            self._grant()
            self._tell_of_capacity()

    def _host_ended(self, name: str, reason: str) -> None:
        place = next((p for p in self._places.values() if p.name == name), None)
        if place is None or place.host is None:
            return
        place.host.end()
        place.host, place.ready, place.trouble = None, False, reason
        place.doubtful_until = time.monotonic() + TRY_AGAIN
        for lease in self._active:
            if name in lease.hosts.values():
                lease.inbox.post(HostLost(host=name, reason=reason))
        for lease in self._waiting:
            if any(self._places.get(node) is place for node, _ in lease.plan):
                self._drop_plan(lease)
        self._grant()

    def _serve(self, place: Place, inbox: Inbox) -> None:
        if inbox.run_id in place.serving or place.host is None:
            return
        place.serving.add(inbox.run_id)
        endpoint = inbox.endpoint
        place.host.order(
            {
                "type": "Serve",
                "run_id": inbox.run_id,
                "host": place.name,
                "endpoint": {name: getattr(endpoint, name) for name in endpoint.__struct_fields__},
                "limit": self._limit,
            }
        )

    def _say_what_is_missing(self, lease: ClusterLease) -> None:
        now = time.monotonic()
        if now < lease.say_at:
            return
        lease.say_at = now + (now - lease.since)
        rooms = {name: place.room(lease.request) for name, place in self._places.items()}
        there = ", ".join(f"{shown(name)}: {count}" for name, count in rooms.items()) or "no machine"
        starting = ", ".join(shown(name) for name, _ in lease.plan if not self._places[name].ready)
        doubt = "; ".join(f"{shown(n)}: {p.trouble}" for n, p in self._places.items() if p.doubtful_until is not None)
        lease.inbox.post(
            EngineSays(
                text=f"waiting for {now - lease.since:.0f} s for room for {lease.request}; there is room for workers "
                f"on {there}"
                + (f" ({doubt})" if doubt else "")
                + (f"; hosts are starting on {starting}" if starting else ""),
                level="info",
            )
        )
