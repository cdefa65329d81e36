"""The main function of a worker: get the task, set the framework up, call the user's function, tell how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

import cloudpickle

from shoal._core.errors import ShoalError
from shoal._core.messages import Boot, ErrorInfo, Failed, Finished, FromWorker, Left, Ready, Setup
from shoal._worker import session as sessions
from shoal._worker.code import remember_sources
from shoal._worker.connection import kept_task
from shoal._worker.link import Link
from shoal._worker.session import Session
from shoal._worker.task import StopTraining, Task

HERE = os.path.dirname(os.path.abspath(__file__))


_spare: Session | None = None


def make_ready() -> None:
    """Make in a process that forks what each of its children would make otherwise: the session, which begins later."""
    global _spare
    _spare = Session()


def main(boot: Boot) -> NoReturn:
    """Be a worker from beginning to end. Never returns.

    The process ends with ``os._exit``: destructors of process groups are not run, since some of them deadlock (torch
    2.13 with gloo in the destructor of a DDP model, in about one of four exits).
    """
    link, session = connect(boot)
    link.watch_signal(signal.SIGTERM, session.preempted)
    if "SLURM_JOB_ID" in os.environ:  # sent to every process of a step, before a time limit
        link.watch_signal(signal.SIGUSR1, session.preempted)
    existing = set(threading.enumerate())
    try:
        while True:
            link.say(work(session, existing).message)
            session.farewell.wait()  # it is said when all has arrived
            if session.following is None:
                break
            session = next_session(session, link)
    except BaseException:
        traceback.print_exc()
        link.close()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)


def next_session(last: Session, link: Link) -> Session:
    """Make the session of the trial that this process runs next."""
    session = Session()
    session.begin(last.scratch_path, link)
    sessions.install(session)
    last.hand_over(session)
    link.receive = session.receive
    return session


@dataclass(frozen=True, kw_only=True)
class EndHere:
    """How a worker ended that is no process of its own."""

    metrics: dict[str, Any]
    stopped: bool
    value: Any
    error: BaseException | None


def main_here(boot: Boot, task: Task, over: threading.Event) -> EndHere:
    """Be a worker in the calling thread of this process. ``over`` is set when its supervisor is gone, whyever."""
    link, session = connect(boot)
    threading.Thread(target=_release_after, args=(over, session), name="shoal-over", daemon=True).start()
    try:
        end = work(session, set(threading.enumerate()), task)
        link.say(end.message)
        session.farewell.wait()
        return EndHere(
            metrics=session.last_metrics,
            stopped=isinstance(end.message, Finished) and end.message.stopped,
            value=end.value,
            error=end.error,
        )
    finally:
        over.set()
        link.say(Left())
        link.close()
        sessions.install(None)


def _release_after(over: threading.Event, session: Session) -> None:
    over.wait()
    session.release()


def connect(boot: Boot) -> tuple[Link, Session]:
    """Make this process's session and connect it."""
    global _spare
    session, _spare = _spare or Session(), None
    link = Link(boot, session.receive)
    session.begin(boot.scratch, link)
    sessions.install(session)
    link.start()
    return link, session


@dataclass(frozen=True)
class End:
    """How the function ended: what to tell the supervisor, and the exception itself."""

    message: FromWorker
    error: BaseException | None = None
    value: Any = None


def work(session: Session, existing: set[threading.Thread], task: Task | None = None) -> End:
    """Wait for the task and do it. A worker in the driver's own process has it already, as the objects themselves."""
    session.arrived.wait()
    if session.setup is None:
        return End(Left(), ShoalError("the supervisor ended before this worker had its task"))
    stopped = False
    value: Any = None
    try:
        remember_sources(session.task.sources)
        if session.task.reused:
            own_log(session.task)
        todo: Task = task or task_of(session.task, os.path.dirname(session.scratch_path))
        config = cloudpickle.loads(session.task.config) if session.task.config else todo.config
        session.open(todo)
        todo.framework.start(session)
        session._say(Ready())
        value = todo.function(config) if todo.takes_config else todo.function()
        session.finish_uploads()
        todo.framework.stop()
    except StopTraining:
        stopped = True
        session.finish_uploads()
    except SystemExit as error:
        if error.code not in (None, 0):
            return End(Failed(error=describe(error)), error)
    except BaseException as error:
        return End(Failed(error=describe(error)), error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return End(
        Finished(
            value=_pickled_value(value) if session.ranks.world_rank == 0 and task is None else None,
            stopped=stopped,
            informed=session.informed,
            reports=session.reports,
            leftovers=[t.name for t in threading.enumerate() if t not in existing and not _harmless(t)],
        ),
        value=value,
    )


def own_log(setup: Setup) -> None:
    """Have what a trial prints in its own log, where several trials share a process and so its output."""
    directory = os.path.join(setup.run_path, "logs")
    if not os.path.isdir(setup.run_path):
        return  # another machine's disk: the output of all of them is the first one's
    os.makedirs(directory, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(os.path.join(directory, f"worker_{setup.ranks.world_rank}.log"), flags, 0o666)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)


_last_task: tuple[bytes, Task] | None = None


def task_of(setup: Setup, host: str) -> Task:
    """Return the task, the same object as before if it is the same. ``host`` is the directory of this worker's host."""
    global _last_task
    which = setup.at_host.encode() or setup.task
    if _last_task is None or _last_task[0] != which:
        data = kept_task(host, setup.trial_id, setup.at_host).read_bytes() if setup.at_host else setup.task
        _last_task = (which, cloudpickle.loads(data))
    return _last_task[1]


def _harmless(thread: threading.Thread) -> bool:
    return thread.daemon or thread.name.startswith("shoal-")


def describe(error: BaseException) -> ErrorInfo:
    """Return an exception as text, and as a pickle where one can be made that can be read again."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"<its __str__ raised {type(broken).__name__}>"
    if isinstance(error, SystemExit):
        message = f"the function called sys.exit({error.code!r})"
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(HERE):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    except Exception:
        text = f"{type(error).__name__}: {message}\n"
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )
    return ErrorInfo(type=name, message=message, traceback=text, pickled=_pickled_error(error))


def _pickled_error(error: BaseException) -> bytes | None:
    try:
        pickled: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)
    except BaseException:
        return None
    return pickled


def _pickled_value(value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:
        print(f"shoal: the value that the function returned cannot be sent to the driver: {error}", file=sys.stderr)
        return None
    return pickled
