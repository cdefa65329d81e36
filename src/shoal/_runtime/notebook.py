"""A live picture in the output of a notebook's cell: HTML without widgets, which the saved notebook keeps."""

from __future__ import annotations

import contextvars
import sys
from collections import deque
from html import escape
from typing import Any

from shoal._runtime.picture import Cell, Picture

MESSAGES = 20  # the last ones are shown; the run's directory has them all
LEFT = "text-align:left"
STYLES = {"dim": "opacity:.65", "bold": "font-weight:600"}
# Each is readable on white and on the dark gray of notebooks alike.
COLORS = {"red": "#d1434b", "green": "#2e9e50", "cyan": "#1f93b0", "yellow": "#b5851b"}


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Output:
    """The output of the cell that runs now, also when another thread draws."""

    interval = 0.5  # each picture is a message to the browser

    def __init__(self) -> None:
        self._context = contextvars.copy_context()  # the kernel keeps in it which cell this is
        self._messages: deque[Cell] = deque(maxlen=MESSAGES)
        self._handle: Any = None

    def show(self, picture: Picture) -> None:
        """Draw a picture in the place of the last one."""
        content = {"text/html": html(picture, tuple(self._messages)), "text/plain": plain(picture, self._messages)}
        self._context.run(self._publish, content)

    def say(self, text: str, style: str) -> None:
        """Keep a message for the next picture, which has it below the table."""
        self._messages.append(Cell(text, style))

    def print(self, lines: list[str]) -> None:
        """Show what workers have written, below the picture."""
        self._context.run(self._write, "".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        """The last picture stays."""

    def _publish(self, content: dict[str, str]) -> None:
        if self._handle is None:
            ipython: Any = sys.modules["IPython"].display
            self._handle = ipython.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def html(picture: Picture, messages: tuple[Cell, ...] = ()) -> str:
    """Return a picture as HTML that needs no style sheet and no script."""
    head = "".join(f"<th{_style('dim', LEFT)}>{escape(name)}</th>" for name in picture.header)
    body = "".join(f"<tr>{''.join(map(_data, row))}</tr>" for row in picture.rows)
    below = "".join(f"<div{_style(cell.style)}>{escape(cell.text)}</div>" for cell in (*picture.lines, *messages))
    return (
        f'<div style="border-left:4px solid {COLORS[picture.color]};padding:2px 12px;margin:4px 0">'
        f"<div{_style('bold')}>{escape(picture.title)}</div>"
        f'<table style="margin:4px 0;border:none">{f"<tr>{head}</tr>" if head else ""}{body}</table>'
        f"{below}<div{_style('dim')}>{escape(picture.path)}</div></div>"
    )


def plain(picture: Picture, messages: deque[Cell]) -> str:
    """Return a picture as text, for whatever shows a notebook without HTML."""
    rows = ["  ".join(cell.text for cell in row if cell.text) for row in picture.rows]
    below = [cell.text for cell in (*picture.lines, *messages)]
    return "\n".join(filter(None, [picture.title, "  ".join(picture.header), *rows, *below, picture.path]))


def _data(cell: Cell) -> str:
    return f"<td{_style(cell.style, LEFT, 'white-space:pre')}>{escape(cell.text)}</td>"


def _style(words: str, *more: str) -> str:
    """Return the attribute for words such as ``bold green``."""
    rules = [STYLES.get(word) or f"color:{COLORS[word]}" for word in words.split()] + list(more)
    return f' style="{";".join(rules)}"' if rules else ""
