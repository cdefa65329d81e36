"""The routes: pages and data are read with GET, and what changes something is asked with POST."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shoal._core.errors import ShoalError
from shoal._runtime import attendance, catalog
from shoal._version import __version__
from shoal.dashboard.guard import Guard
from shoal.dashboard.watching import Watch, Watched, kept_stacks, log_lines

STATIC = Path(__file__).parent / "static"
LINES = 500
Answer = Callable[[Request], Awaitable[Response]]


def application(storage: str | None = None, token: str = "") -> Starlette:
    """Return the application for the runs of a storage."""
    pages = Pages(Watch(storage))
    return Starlette(
        routes=[
            Route("/", pages.index),
            Route("/api/runs", _told(pages.runs)),
            Route("/api/run", _told(pages.run)),
            Route("/api/metrics", _told(pages.metrics)),
            Route("/api/curves", _told(pages.curves)),
            Route("/api/importance", _told(pages.importance)),
            Route("/api/log", _told(pages.log)),
            Route("/api/stacks", _told(pages.stacks)),
            Route("/api/ask", _told(pages.ask), methods=["POST"]),
            Route("/api/resume", _told(pages.resume), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, token=token)],
    )


def _told(answer: Callable[[Request, dict[str, Any]], Any]) -> Answer:
    """Return a route that answers with JSON, in a thread of its own since it reads files."""

    async def route(request: Request) -> Response:
        body: dict[str, Any] = {}
        if request.method == "POST":
            try:
                body = dict(msgspec.json.decode(await request.body()))
            except (msgspec.DecodeError, TypeError, ValueError):
                return _json({"error": "the request is not JSON"}, 400)
        try:
            return _json(await run_in_threadpool(answer, request, body))
        except ShoalError as error:
            return _json({"error": str(error)}, 404 if request.method == "GET" else 409)
        except OSError as error:
            return _json({"error": f"the storage does not answer: {error}"}, 503)

    return route


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(_finite(msgspec.to_builtins(value))), status, media_type="application/json")


def _finite(value: Any) -> Any:
    """Return data in which what JSON lacks is text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


class Pages:
    """Answers what the pages ask for."""

    def __init__(self, watch: Watch):
        self._watch = watch

    async def index(self, request: Request) -> Response:
        """The one page."""
        return FileResponse(STATIC / "index.html")

    def runs(self, request: Request, body: dict[str, Any]) -> Any:
        """All runs and searches."""
        fields = ["kind", "name", "state", "started_at", "ended_at", "progress", "metric", "best", "metrics"]
        listed = [{field: getattr(one, field) for field in fields} for one in self._watch.listed()]
        return {"root": str(self._watch.root), "version": __version__, "runs": listed}

    def run(self, request: Request, body: dict[str, Any]) -> Any:
        """One of them, whole."""
        one = self._of(request).overview(sized=request.query_params.get("sized") == "1")
        return {**msgspec.to_builtins(one), "progress": one.progress, "live": one.live}

    def metrics(self, request: Request, body: dict[str, Any]) -> Any:
        """The curves of a run, unless there is nothing beyond the ``seen`` rows."""
        count, curves = self._of(request).curves()
        return {"count": count, "curves": None if str(count) == request.query_params.get("seen") else curves}

    def curves(self, request: Request, body: dict[str, Any]) -> Any:
        """The curves of the best trials of a search."""
        return self._watch.trial_curves(_name(request), request.query_params.get("metric", ""))

    def importance(self, request: Request, body: dict[str, Any]) -> Any:
        """How much each parameter of a search matters."""
        from shoal.tune.importance import importance

        return importance(self._of(request).overview())

    def log(self, request: Request, body: dict[str, Any]) -> Any:
        """The last lines of a rank."""
        rank = request.query_params.get("rank", "0")
        if not rank.isdigit():
            raise ShoalError(f"rank {rank!r} is not a number")
        return log_lines(self._of(request).place, int(rank), LINES, request.query_params.get("search", ""))

    def stacks(self, request: Request, body: dict[str, Any]) -> Any:
        """The stacks that were kept."""
        return kept_stacks(self._of(request).place)

    def ask(self, request: Request, body: dict[str, Any]) -> Any:
        """Stop a run, kill it, or ask for stacks."""
        what, name = body.get("ask"), str(body.get("name", ""))
        if what not in attendance.ASKS:
            raise ShoalError(f"{what!r} cannot be asked: choose one of {', '.join(attendance.ASKS)}")
        watched = self._watch[name]
        if watched.kind == "trial":
            watched = self._watch[name.partition("/")[0]]
        holder = catalog.driver_of(watched.place)
        if holder is None:
            raise ShoalError(f"{name} is not running")
        attendance.ask(watched.place, what, str(holder.get("token", "")))
        return {"asked": what}

    def resume(self, request: Request, body: dict[str, Any]) -> Any:
        """Start the script of a run once more; what it prints is kept beside the logs of its workers."""
        name = str(body.get("name", ""))
        place = self._watch[name].place
        command = [sys.executable, "-m", "shoal.cli", "resume", name, "--storage", str(self._watch.root)]
        tried = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=False)
        if tried.returncode:
            raise ShoalError(tried.stderr.strip() or tried.stdout.strip())
        output: Any = subprocess.DEVNULL
        if isinstance(place, Path):
            (place / "logs").mkdir(exist_ok=True)
            output = open(place / "logs" / "driver.log", "ab")  # noqa: SIM115
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        finally:
            if output is not subprocess.DEVNULL:
                output.close()
        return {"pid": process.pid}

    def _of(self, request: Request) -> Watched:
        return self._watch[_name(request)]


def _name(request: Request) -> str:
    return request.query_params.get("name", "")
