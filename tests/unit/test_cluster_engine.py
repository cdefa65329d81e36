"""What engines of several machines share, with machines that a test takes away and gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from shoal._core.events import Acquired, CapacityChanged, EngineSays, Event, HostLost, Infeasible
from shoal._core.messages import Endpoint
from shoal._core.nodes import Node
from shoal._core.scaling import GroupRequest
from shoal.engines import cluster
from shoal.engines.cluster import ClusterEngine


class Machines(ClusterEngine):
    """Hosts that are ready as soon as they are started, unless a machine is cut off."""

    name = "test"
    listen_on = "127.0.0.1"

    def __init__(self) -> None:
        super().__init__()
        self.there = {"a": 2.0, "b": 2.0, "c": 2.0}
        self.cut: set[str] = set()
        self.broken = False
        self.orders: list[tuple[str, str]] = []
        self.ended: dict[str, Callable[[str], None]] = {}
        self.running: dict[str, str] = {}

    def nodes(self) -> list[Node]:
        if self.broken:
            raise ConnectionError("the head is gone")
        return [Node(name, {"CPU": cpus}) for name, cpus in self.there.items()]

    def launch(self, node: str, name: str, ready: Callable[[], None], ended: Callable[[str], None]) -> Any:
        self.running[node], self.ended[node] = name, ended
        if node not in self.cut:
            ready()
        return _Host(self, name)


class _Host:
    def __init__(self, engine: Machines, name: str):
        self._engine, self._name = engine, name

    def order(self, order: Mapping[str, object]) -> None:
        self._engine.orders.append((self._name, str(order["type"])))

    def end(self) -> None:
        self._engine.orders.append((self._name, "end"))


class Inbox:
    """Keeps what the engine says."""

    title = "run"
    endpoint = Endpoint(address="tcp://127.0.0.1:1", token="t")

    def __init__(self, run_id: str = "run"):
        self.run_id = run_id
        self.events: list[Event] = []

    def post(self, event: Event) -> None:
        self.events.append(event)

    def first(self, kind: type[Event]) -> Any:
        end = time.monotonic() + 10
        while not (found := [event for event in self.events if isinstance(event, kind)]):
            assert time.monotonic() < end, (kind, self.events)
            time.sleep(0.01)
        return found[0]

    def places(self) -> dict[str, int]:
        return {slot.hostname: slot.count for slot in self.first(Acquired).slots}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setattr(cluster, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(cluster, "TRY_AGAIN", 0.2)
    one = Machines()
    yield one
    one.shutdown()


def request(low: int, high: int | None = None, cpus: float = 1.0, strategy: str = "PACK") -> GroupRequest:
    return GroupRequest(min_workers=low, max_workers=high or low, resources={"CPU": cpus}, strategy=strategy)


def test_room_is_given_in_the_order_of_asking_and_taken_back(engine: Machines):
    one, two, three = Inbox("one"), Inbox("two"), Inbox("three")
    lease = engine.acquire(request(4), one)
    assert sum(one.places().values()) == 4
    engine.acquire(request(4), two)  # waits
    engine.acquire(request(1), three)  # does not overtake
    time.sleep(0.3)
    assert not [event for event in two.events + three.events if isinstance(event, Acquired)]
    lease.release()
    assert sum(two.places().values()) == 4
    assert sum(three.places().values()) == 1
    assert [kind for _, kind in engine.orders].count("Drop") == len(one.places())


def test_hosts_stay_for_the_next_lease(engine: Machines):
    first = Inbox("first")
    lease = engine.acquire(request(3, strategy="SPREAD"), first)
    first.places()
    hosts = dict(engine.running)
    lease.release()
    second = Inbox("second")
    engine.acquire(request(3, strategy="SPREAD"), second)
    assert second.places() == {"a": 1, "b": 1, "c": 1}
    assert engine.running == hosts


def test_a_machine_that_was_silent_is_used_again_once_a_host_is_ready_there(engine: Machines):
    inbox = Inbox()
    lease = engine.acquire(request(1, 3, cpus=2.0), inbox)
    assert inbox.places() == {"a": 1, "b": 1, "c": 1}
    silent = engine.running["c"]
    engine.cut.add("c")
    engine.lost(silent)
    assert inbox.first(HostLost).host == silent
    lease.release()
    again = Inbox()
    engine.acquire(request(1, 3, cpus=2.0), again)
    assert again.places() == {"a": 1, "b": 1}
    time.sleep(0.5)  # a host is being started there, and is not ready
    assert engine.running["c"] != silent
    assert not [event for event in again.events if isinstance(event, CapacityChanged)]
    engine.cut.clear()
    engine.ended["c"]("its start was given up")
    assert again.first(CapacityChanged).workers == 3


def test_a_machine_that_is_gone_takes_its_room_along(engine: Machines):
    inbox = Inbox()
    engine.acquire(request(1, 3, cpus=2.0), inbox)
    inbox.places()
    del engine.there["b"]
    lost = inbox.first(HostLost)
    assert lost.host == engine.running["b"] and "has no machine b any more" in lost.reason
    assert inbox.first(CapacityChanged).workers == 2


def test_a_host_that_cannot_start_is_said_while_a_run_waits_for_it(engine: Machines, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shoal.engines.places.TELL_AFTER", 0.1)
    engine.there = {"a": 2.0}
    engine.cut.add("a")
    inbox = Inbox()
    engine.acquire(request(2), inbox)
    end = time.monotonic() + 5
    while "a" not in engine.ended and time.monotonic() < end:
        time.sleep(0.01)
    engine.ended["a"]("Python there has no module shoal")
    assert "(a: Python there has no module shoal)" in inbox.first(EngineSays).text


def test_a_cluster_that_does_not_answer_is_asked_again_and_given_up_in_the_end(
    engine: Machines, monkeypatch: pytest.MonkeyPatch
):
    inbox, other = Inbox("one"), Inbox("two")
    engine.acquire(request(6), inbox)
    inbox.places()
    engine.acquire(request(1), other)
    engine.broken = True
    assert "does not answer: ConnectionError: the head is gone" in inbox.first(EngineSays).text
    engine.broken = False
    time.sleep(0.2)
    assert not [event for event in other.events if isinstance(event, Infeasible)]
    monkeypatch.setattr(cluster, "TROUBLE_LIMIT", 0.2)
    engine.broken = True
    assert "does not answer" in other.first(Infeasible).reason


def test_what_never_fits_is_refused(engine: Machines):
    inbox = Inbox()
    engine.acquire(request(7), inbox)
    assert "can never hold 7 workers" in inbox.first(Infeasible).reason
    with pytest.raises(ValueError, match=r"heartbeat_s=0\.5"):
        ClusterEngine.__init__(engine, 0.5)
