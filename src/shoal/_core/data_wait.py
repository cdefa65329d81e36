"""Training that waits for its data: told as a share of each report's time, and once with a hint when it is much."""

from __future__ import annotations

MUCH = 1 / 3
ENOUGH_SECONDS = 5.0  # the first batch of a short function says nothing


class DataWaitWatch:
    """Adds up what the ranks of a group report.

    Examples
    --------
    >>> watch = DataWaitWatch()
    >>> watch.told(1, (6.0, 4.0)).partition(":")[0]
    'rank 1 has waited for its data 60% of the time'
    >>> watch.told(1, (6.0, 4.0))
    ''
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float]] = {}
        self._warned = False

    def told(self, rank: int, data: tuple[float, float] | None) -> str:
        """Take the seconds that a rank waited for batches and used them; return a warning the first time it is much."""
        if data is None or self._warned:
            return ""
        waited, used = self._sums.get(rank, (0.0, 0.0))
        waited, used = waited + data[0], used + data[1]
        self._sums[rank] = waited, used
        if waited + used < ENOUGH_SECONDS or waited <= MUCH * (waited + used):
            return ""
        self._warned = True
        return (
            f"rank {rank} has waited for its data {share(data=(waited, used)):.0%} of the time: have batches made "
            "ahead (prefetch_batches=4, or DataLoader(num_workers=2)), do less for each row, or use larger row groups"
        )


def share(data: tuple[float, float]) -> float:
    """Return the share of the time that was waiting, to a thousandth."""
    return round(data[0] / (data[0] + data[1]), 3)
