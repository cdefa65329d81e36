"""Which machine of a cluster gets how many workers of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal._core.errors import InfeasibleRequest
from shoal._core.scaling import GroupRequest, describe_resources

Amounts = Mapping[str, float]


class Node(NamedTuple):
    """A machine: its name, all its resources, labels to choose it by, its accelerators, what others use of it.

    One that is ``leaving`` is wanted back: nothing begins there any more.
    """

    name: str
    total: Amounts
    labels: Mapping[str, str] = {}
    devices: Sequence[str] = ()
    taken: Amounts = {}
    leaving: bool = False


def fits(request: GroupRequest, there: Amounts) -> int:
    """Return how many workers of a request fit into the resources of one machine, at most ``max_workers``."""
    counts = [int(there.get(name, 0.0) / amount + 1e-9) for name, amount in request.resources.items() if amount > 0]
    return min([request.max_workers, *counts])


def suitable(request: GroupRequest, labels: Mapping[str, str]) -> bool:
    """Whether a machine has the labels that a request wants."""
    return all(matches(wanted, labels.get(name)) for name, wanted in request.labels.items())


def matches(wanted: str, value: str | None) -> bool:
    """Whether a label is as wanted: ``"a"``, ``"!a"``, ``"in(a, b)"`` or ``"!in(a, b)"``.

    Examples
    --------
    >>> matches("in(a, b)", "b"), matches("!a", "a"), matches("!a", None)
    (True, False, True)
    """
    denied = wanted.startswith("!")
    wanted = wanted.removeprefix("!").strip()
    choices = [wanted]
    if wanted.startswith("in(") and wanted.endswith(")"):
        choices = [choice.strip() for choice in wanted[3:-1].split(",")]
    return (value in choices) != denied


def distribute(request: GroupRequest, rooms: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return how many workers each machine gets, in the order of the machines; nothing if the group does not fit.

    Parameters
    ----------
    rooms : sequence of (str, int)
        For how many workers there is room on each machine now, the preferred machines first.
    """
    chosen = _STRATEGIES[request.strategy](request.max_workers, dict(rooms))
    if sum(chosen.values()) < request.min_workers:
        return []
    return [(name, chosen[name]) for name, _ in rooms if chosen.get(name)]


def _pack(wanted: int, rooms: dict[str, int]) -> dict[str, int]:
    """Use as few machines as possible: each time the smallest that holds all that is left, or else the largest."""
    chosen: dict[str, int] = {}
    left = dict(rooms)
    while wanted and any(left.values()):
        enough = [name for name, room in left.items() if room >= wanted]
        name = min(enough, key=lambda n: left[n]) if enough else max(left, key=lambda n: left[n])
        chosen[name] = min(wanted, left.pop(name))
        wanted -= chosen[name]
    return chosen


def _spread(wanted: int, rooms: dict[str, int]) -> dict[str, int]:
    """Give each machine one worker after the other, in turns."""
    chosen = dict.fromkeys(rooms, 0)
    while wanted:
        open_ = [name for name in rooms if chosen[name] < rooms[name]]
        if not open_:
            break
        for name in open_[:wanted]:
            chosen[name] += 1
        wanted -= len(open_[:wanted])
    return chosen


def _strict_pack(wanted: int, rooms: dict[str, int]) -> dict[str, int]:
    name = max(rooms, key=lambda n: min(rooms[n], wanted), default="")
    return {name: min(rooms[name], wanted)} if name else {}


def _strict_spread(wanted: int, rooms: dict[str, int]) -> dict[str, int]:
    return dict.fromkeys([name for name, room in rooms.items() if room][:wanted], 1)


_STRATEGIES: dict[str, Callable[[int, dict[str, int]], dict[str, int]]] = {
    "PACK": _pack,
    "SPREAD": _spread,
    "STRICT_PACK": _strict_pack,
    "STRICT_SPREAD": _strict_spread,
}


def check_nodes(request: GroupRequest, nodes: Sequence[Node], where: str) -> None:
    """Raise :class:`InfeasibleRequest` where even the smallest group never fits, with everything free."""
    rooms = [(n.name, fits(request, n.total) if suitable(request, n.labels) else 0) for n in nodes]
    if distribute(request, rooms):
        return
    each = describe_resources(request.resources)
    held = sum(room for _, room in rooms)
    why = f"there is room for {held} workers with {each} each"
    unsuited = [n.name for n in nodes if not suitable(request, n.labels)]
    if unsuited:
        why += f"; not labelled {dict(request.labels)}: {', '.join(unsuited)}"
    if request.strategy.startswith("STRICT"):
        why += f", and placement_strategy={request.strategy!r} wants " + (
            "all of them on one machine" if request.strategy == "STRICT_PACK" else "a machine for each"
        )
    lacking = [
        name
        for name, amount in request.resources.items()
        if amount > 0 and not any(n.total.get(name, 0.0) >= amount for n in nodes)
    ]
    if lacking:
        most = {name: max((n.total.get(name, 0.0) for n in nodes), default=0.0) for name in lacking}
        why += "; the most on one machine is " + describe_resources(most)
    machines = (
        "; ".join(f"{n.name.partition('/')[0]}: {describe_resources(_main(n.total))}" for n in nodes[:8]) or "none"
    )
    raise InfeasibleRequest(
        f"{where} can never hold {request}: {why}. Its machines: {machines}. Ask for fewer workers or less for each of "
        "them, or add machines"
    )


def _main(total: Amounts) -> dict[str, float]:
    return {name: amount for name, amount in total.items() if name in {"CPU", "GPU", "TPU"} and amount}
