"""What Ctrl-C and SIGTERM mean while a run goes on: once, stop at the next report; Ctrl-C twice, end it now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from shoal._core.contracts import Engine
from shoal._core.events import Event, PreemptionNotice, StopAsked


@contextmanager
def stop_on_signals(post: Callable[[Event], None], engine: Engine) -> Iterator[Callable[[], bool]]:
    """Turn signals into events for as long as the block runs; yields a function that says whether it was Ctrl-C twice.

    Only the main thread receives signals; in another thread nothing is changed.
    """
    interrupts = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        if number in engine.preemption_signals:
            post(PreemptionNotice(reason=engine.preemption_reason, grace=engine.preemption_grace_s))
            return
        if number == signal.SIGTERM:
            post(StopAsked(reason="SIGTERM"))
            return
        interrupts += 1
        if interrupts == 1:
            post(StopAsked(reason="interrupted with Ctrl-C"))
        else:
            post(StopAsked(reason="interrupted with Ctrl-C twice", kill=True))

    def twice() -> bool:
        return interrupts > 1

    if threading.current_thread() is not threading.main_thread():
        yield twice
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A program that handles a signal by itself, or ignores it, goes on doing so.
    ours = [n for n, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for number in engine.preemption_signals:
        before[number] = signal.getsignal(number)
        ours += [number] if before[number] in (signal.SIG_DFL, signal.SIG_IGN) else []
    for number in ours:
        signal.signal(number, on_signal)
    try:
        yield twice
    finally:
        for number in ours:
            signal.signal(number, before[number])
