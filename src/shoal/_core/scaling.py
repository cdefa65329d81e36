"""How many workers a run gets, what each of them takes, and which rank sits where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal._core.commands import Placement
from shoal._core.errors import InfeasibleRequest
from shoal._core.events import HostSlots
from shoal._core.messages import Ranks


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks an engine for: between ``min_workers`` and ``max_workers`` times ``resources``.

    ``explicit`` has the names of the resources that a person wrote down; CPUs that nobody asked for may be
    oversubscribed. ``labels`` are those that a machine must have.
    """

    min_workers: int
    max_workers: int
    resources: dict[str, float]
    explicit: frozenset[str] = frozenset()
    strategy: str = "PACK"
    labels: dict[str, str] = {}

    def __str__(self) -> str:
        count = str(self.max_workers)
        if self.min_workers != self.max_workers:
            count = f"{self.min_workers} to {self.max_workers}"
        workers = "worker" if count == "1" else "workers"
        return f"{count} {workers} with {describe_resources(self.resources)} each"


def describe_resources(resources: Mapping[str, float]) -> str:
    """Return resources as a person would write them: ``CPU 1, GPU 2``."""
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items()) or "nothing"


def strict_resources(request: GroupRequest) -> dict[str, float]:
    """Return those resources of one worker that must really be there."""
    return {
        name: amount
        for name, amount in request.resources.items()
        if amount > 0 and (name != "CPU" or name in request.explicit)
    }


def fitting(request: GroupRequest, available: Mapping[str, float]) -> int:
    """Return how many workers of the request fit into what is available, at most ``max_workers``."""
    counts = [int(available.get(name, 0.0) / amount + 1e-9) for name, amount in strict_resources(request).items()]
    return min([request.max_workers, *counts])


def check_feasible(request: GroupRequest, total: Mapping[str, float], where: str) -> None:
    """Raise :class:`InfeasibleRequest` where even the smallest group of the request never fits."""
    if fitting(request, total) >= request.min_workers:
        return
    lacking = [
        f"{name}: {amount * request.min_workers:g} asked ({request.min_workers} x {amount:g}), "
        f"{total.get(name, 0):g} there"
        for name, amount in strict_resources(request).items()
        if total.get(name, 0.0) + 1e-9 < amount * request.min_workers
    ]
    advice = "Ask for fewer workers or less for each of them"
    if "GPU" in strict_resources(request) and not total.get("GPU"):
        advice = (
            "Use ScalingConfig(use_gpu=False) to train on CPUs, or check that the driver shows the GPUs (nvidia-smi)"
        )
    raise InfeasibleRequest(f"{where} can never hold {request}. " + "; ".join(lacking) + f". {advice}.")


def oversubscribed(request: GroupRequest, world_size: int, total: Mapping[str, float]) -> str:
    """Return a warning where more CPUs are used than there are, an empty text otherwise."""
    asked = world_size * request.resources.get("CPU", 0.0)
    if "CPU" in request.explicit or asked <= total.get("CPU", 0.0):
        return ""
    return f"{world_size} workers share {total.get('CPU', 0.0):g} CPUs; ask for resources_per_worker to limit that"


def place(slots: Sequence[HostSlots]) -> tuple[Placement, ...]:
    """Give out ranks, grouped by host in the order of the slots."""
    world_size = sum(slot.count for slot in slots)
    placements: list[Placement] = []
    for node_rank, slot in enumerate(slots):
        for local_rank in range(slot.count):
            ranks = Ranks(
                world_rank=len(placements),
                world_size=world_size,
                local_rank=local_rank,
                local_world_size=slot.count,
                node_rank=node_rank,
            )
            devices = slot.devices[local_rank] if local_rank < len(slot.devices) else ()
            placements.append(
                Placement(
                    host=slot.host,
                    hostname=slot.hostname,
                    ranks=ranks,
                    devices=devices,
                    device_variable=slot.device_variable,
                )
            )
    return tuple(placements)
