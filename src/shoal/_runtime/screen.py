"""A live picture at the bottom of a terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shoal._runtime.picture import Cell, Picture
from shoal._runtime.terminal import silent_control_characters

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text


class Screen:
    """A picture at the bottom of the terminal, above which lines scroll. It is there from its first use on."""

    interval = 0.1

    def __init__(self) -> None:
        self._live: Live | None = None
        self._terminal = contextlib.ExitStack()

    def show(self, picture: Picture) -> None:
        """Draw a picture in the place of the last one."""
        self._start().update(panel(picture), refresh=True)

    def say(self, text: str, style: str) -> None:
        """Show a message above the picture."""
        self._console.print(text, style=style, markup=False, highlight=False)

    def print(self, lines: list[str]) -> None:
        """Show what workers have written above the picture."""
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._terminal.close()

    @property
    def _console(self) -> Console:
        return self._start().console

    def _start(self) -> Live:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=False
            )
            self._terminal.enter_context(silent_control_characters())
            self._live.start()
        return self._live


def panel(picture: Picture) -> RenderableType:
    """Return a picture as the terminal shows it."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table

    if picture.header:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in picture.header:
            table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=24)
    else:
        table = Table.grid(padding=(0, 2))
    for row in picture.rows:
        table.add_row(*map(_text, row))
    return Panel(
        Group(table, *map(_text, picture.lines)) if picture.lines else table,
        title=_text(Cell(picture.title)),
        title_align="left",
        subtitle=_text(Cell(picture.path, "dim")),
        border_style=picture.color,
    )


def _text(cell: Cell) -> Text:
    from rich.text import Text

    return Text(cell.text, cell.style)
