"""Curves of any length in a bounded number of points, without losing a spike."""

from __future__ import annotations


class Curve:
    """A curve that is added to at its end, and told in at most ``3 * limit`` points.

    Neighbouring points share a bucket that keeps the lowest, highest and last of them (as a plotting program does
    that draws a column of pixels). When there are too many buckets, each two become one. To add a point costs the same
    whether it is the tenth or the millionth.

    Parameters
    ----------
    limit : int
        How many buckets there are at most; an even number.

    Examples
    --------
    >>> curve = Curve(limit=4)
    >>> for x in range(100):
    ...     curve.add(x, 50.0 if x == 37 else 0.0)
    >>> max(y for _, y in curve.points())
    50.0
    >>> len(curve.points()) <= 12
    True
    """

    def __init__(self, limit: int = 1000):
        self._limit = limit
        self._width = 1
        self._buckets: list[list[tuple[float, float]]] = []
        self._filled = 0
        self.count = 0

    def add(self, x: float, y: float) -> None:
        """Add a point. One whose ``x`` is not beyond the last one's takes the place of what was there from it on."""
        if self._buckets and x <= self._buckets[-1][-1][0]:
            self._cut(x)
        self.count += 1
        if self._filled == 0:
            if len(self._buckets) == self._limit:
                self._halve()
            self._buckets.append([(x, y)])
        else:
            self._buckets[-1] = _extremes([*self._buckets[-1], (x, y)])
        self._filled = (self._filled + 1) % self._width

    def points(self) -> list[tuple[float, float]]:
        """Return the points, by ``x``."""
        return [point for bucket in self._buckets for point in bucket]

    def _cut(self, x: float) -> None:
        while self._buckets and self._buckets[-1][0][0] >= x:
            self._buckets.pop()
        if self._buckets:
            self._buckets[-1] = [point for point in self._buckets[-1] if point[0] < x]
        self._filled = 0

    def _halve(self) -> None:
        pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
        self._buckets = [_extremes([*one, *other]) for one, other in pairs]
        self._width *= 2


def _extremes(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the lowest and the highest of some points and the last of them, in their order."""
    chosen = {min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1]), points[-1]}
    return sorted(chosen)
