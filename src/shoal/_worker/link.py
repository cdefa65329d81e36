"""The worker's end of the conversation with the supervisor: one background thread that owns the socket.

``say()`` costs the training thread a list append. The thread sends at once when it was idle or the matter is urgent,
and otherwise what has come together in a twentieth of a second: to wake up for every report of a loop that reports each
step took 12% of its speed (two workers on two cores, 11 ms a step), since it takes the GIL from the training thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from shoal._core.messages import Batch, Boot, FromWorker, Report, ToWorker, WorkerHello
from shoal._worker.connection import Connection, connection
from shoal._worker.process import set_signal
from shoal._worker.usage import Meter

QUEUE_LIMIT = 10_000  # messages; then say() waits, so that memory stays flat
BATCH_LIMIT = 500
FRAMES_IN_FLIGHT = 20
REST = 0.05  # seconds between two batches
ALIVE_INTERVAL = 5.0  # seconds between two times that a worker says what it uses
FIRST_MEASURE = 1.0

# Made once, before workers are forked: to make the decoder takes a millisecond.
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


class Link:
    """Connects a worker with the supervisor at ``boot.endpoint``.

    Parameters
    ----------
    boot : Boot
        Who this worker is, and whom to talk to.
    receive : callable
        Is called in the link's thread with every message that arrives, and must not block.
    """

    def __init__(self, boot: Boot, receive: Callable[[ToWorker], None]):
        self._boot = boot
        self.receive = receive
        self._notices: dict[int, Callable[[], None]] = {}
        self._queue: deque[FromWorker] = deque()
        self._room = threading.Event()
        self._asleep = False
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="shoal-link", daemon=True)

    def start(self) -> None:
        """Connect and say hello."""
        self._queue.append(WorkerHello(token=self._boot.endpoint.token, pid=os.getpid()))
        self._thread.start()

    def say(self, message: FromWorker, urgent: bool = False) -> None:
        """Queue a message. Waits only where the supervisor is ten thousand messages behind."""
        if len(self._queue) >= QUEUE_LIMIT:
            self._wait_for_room()
        self._queue.append(message)
        if self._asleep or urgent or type(message) is not Report or len(self._queue) == BATCH_LIMIT:
            self._asleep = False
            self._wake()

    def watch_signal(self, number: int, notice: Callable[[], None]) -> None:
        """Call ``notice`` in the link's thread when the process gets a signal, whatever its main thread is doing.

        Children that the process forks do not inherit this: a signal to them is theirs alone.
        """
        self._notices[number] = notice
        set_signal(int(number), lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

        def forget() -> None:
            signal.set_wakeup_fd(-1)
            # Whoever sends SIGTERM to a child means it; other signals reach all processes of a group alike.
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)

        os.register_at_fork(after_in_child=forget)

    def close(self) -> None:
        """Send what was said, then disconnect."""
        self._closing = True
        self._wake()
        self._thread.join(timeout=5.0)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake_write, b"x")

    def _wait_for_room(self) -> None:
        while len(self._queue) >= QUEUE_LIMIT:
            self._room.clear()
            if len(self._queue) < QUEUE_LIMIT:
                return
            self._room.wait(1.0)

    def _run(self) -> None:
        boot = self._boot
        link = connection(boot.endpoint, f"w/{boot.run_id}/{boot.attempt}/{boot.rank}", FRAMES_IN_FLIGHT)
        meter, due = Meter(), time.monotonic() + FIRST_MEASURE
        while not (self._closing and not self._queue):
            if self._queue:
                self._send_batch(link)
                self._wait(link, 0.0 if len(self._queue) >= BATCH_LIMIT else REST)
            else:
                self._asleep = True
                if not self._queue:
                    self._wait(link, max(REST, due - time.monotonic()))
                self._asleep = False
            if time.monotonic() >= due:
                due = time.monotonic() + ALIVE_INTERVAL
                self._queue.append(meter.read())
            self._listen(link)
        link.close(linger=2.0)

    def _wait(self, link: Connection, seconds: float) -> None:
        link.wait(seconds, self._wake_read)
        with contextlib.suppress(BlockingIOError):
            for number in set(os.read(self._wake_read, 4096)) & self._notices.keys():
                self._notices[number]()

    def _send_batch(self, link: Connection) -> None:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_LIMIT))]
        frame = _encode(Batch(messages=batch))
        taken = link.send(frame)
        while not (taken and link.flush()):  # the supervisor is behind: go on listening, a stop may be on its way
            link.wait(0.1)
            self._listen(link)
            taken = taken or link.send(frame)
        self._room.set()

    def _listen(self, link: Connection) -> None:
        while frames := link.receive():
            for frame in frames:
                self.receive(_decoder.decode(frame))
