"""What is drawn of a run or a search while it goes on, as data: a terminal and a notebook each draw it their way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

COLORS = {"FAILED": "red", "FINISHED": "green", "RUNNING": "cyan"}
CLOCK = 1.0  # seconds after which a picture is drawn anew for its clock alone


class Cell(NamedTuple):
    """A text and how it looks: words of ``dim``, ``bold`` and the names of colors."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Picture:
    """A framed table with a title above it, lines below it, and the place of its files."""

    title: str
    state: str
    path: str
    rows: list[tuple[Cell, ...]]
    header: tuple[str, ...] = ()
    lines: tuple[Cell, ...] = ()

    @property
    def color(self) -> str:
        """The color of the frame: how it stands."""
        return COLORS.get(self.state.partition(":")[0], "yellow")


class Canvas(Protocol):
    """Where pictures are drawn, each in the place of the last one."""

    interval: float  # seconds between two pictures

    def show(self, picture: Picture) -> None:
        """Draw a picture."""

    def say(self, text: str, style: str) -> None:
        """Show a message that stays."""

    def print(self, lines: list[str]) -> None:
        """Show lines that workers have written."""

    def close(self) -> None:
        """Leave the last picture standing."""


class View:
    """A picture that is drawn anew once it has changed, as often as its canvas bears it."""

    def __init__(self, canvas: Canvas, picture: Callable[[], Picture]) -> None:
        self._canvas = canvas
        self._picture = picture
        self._drawn_at = -CLOCK
        self._changed = True

    def change(self) -> None:
        """What it shows is another from now on."""
        self._changed = True

    def tick(self) -> float:
        """Draw if it is time; return after how many seconds to call again."""
        pause = self._canvas.interval if self._changed else CLOCK
        since = time.monotonic() - self._drawn_at
        if since < pause:
            return pause - since
        self._draw()
        return self._canvas.interval

    def close(self) -> None:
        """Draw a last time and leave that standing."""
        self._draw()
        self._canvas.close()

    def _draw(self) -> None:
        self._canvas.show(self._picture())
        self._drawn_at = time.monotonic()
        self._changed = False
