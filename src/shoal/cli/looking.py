"""``shoal runs``, ``show``, ``logs``, ``metrics`` and ``compare``: what there is, without changing anything."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from shoal._core.errors import ShoalError, StorageError
from shoal._core.overview import Overview
from shoal._core.plain_data import flat
from shoal._runtime import catalog
from shoal._runtime.display import HIDDEN, brief
from shoal.cli import jobs, screen
from shoal.cli.app import Json, Storage, command

FOLLOW = 0.3  # seconds between two looks at a log that grows
TRIALS = 15
Name = Annotated[str, typer.Argument(metavar="RUN", help="A name in the storage, search/trial, a path or a URL.")]


@command("runs")
def runs(
    storage: Storage = None,
    json: Json = False,
    states: Annotated[list[str] | None, typer.Option("--state", help="Only those; may be repeated.")] = None,
) -> None:
    """List runs and searches, the newest first."""
    wanted = {state.upper() for state in states or ()}
    found = [one for one in catalog.listed(storage) if not wanted or one.state in wanted]
    if json:
        screen.print_json([_short(one) for one in found])
        return
    if not found:
        print(f"there are no runs in {catalog.root_of(storage)}" + (" in these states" if wanted else ""))
        return
    now = time.time()
    rows = [
        (
            one.name,
            one.kind,
            screen.state(one),
            screen.age(now - one.started_at),
            one.progress,
            screen.best(one),
            screen.size(one.size),
        )
        for one in found
    ]
    screen.console().print(screen.table("name", "kind", "state", ">age", "progress", "best", ">size", rows=rows))


def _short(one: Overview) -> dict[str, Any]:
    fields = [
        "kind",
        "name",
        "path",
        "state",
        "reason",
        "started_at",
        "ended_at",
        "reports",
        "metric",
        "mode",
        "best",
        "metrics",
        "size",
    ]
    return {**{field: getattr(one, field) for field in fields}, "progress": one.progress}


@command("show")
def show(name: Name, storage: Storage = None, json: Json = False) -> None:
    """Show all there is to tell of a run: attempts, failures and their causes, checkpoints, configuration, files."""
    one = catalog.overview(catalog.find(name, storage))
    if json:
        screen.print_json(one)
        return
    screen.console().print(Group(*_described(one)))


def _described(one: Overview) -> list[RenderableType]:
    now = time.time()
    ended = one.ended_at or now
    facts: list[tuple[str, Any]] = [
        ("state", screen.state(one)),
        ("reason", one.reason),
        (
            "started",
            f"{screen.moment(one.started_at)}, {screen.age(now - one.started_at)} ago" if one.started_at else "",
        ),
        ("took" if one.ended_at else "for", screen.age(ended - one.started_at) if one.started_at else ""),
        ("progress", one.progress),
        ("function", one.function),
        ("best", screen.best(one)),
        ("driver", f"process {one.driver['pid']} on {one.driver['host']}" if one.driver else ""),
        ("directory", f"{one.path} ({screen.size(one.size)})"),
    ]
    if one.state == "DIED":
        facts[1] = ("reason", f"its driver is gone without a word; shoal resume {one.name} goes on with it")
    parts: list[RenderableType] = [
        Text(f"{one.kind} {one.name}", style="bold"),
        screen.table("", "", rows=[fact for fact in facts if str(fact[1])]),
    ]
    for title, content in (
        ("metrics", _pairs({k: v for k, v in one.metrics.items() if k not in HIDDEN})),
        ("configuration", _pairs(one.config if isinstance(one.config, dict) and one.kind != "search" else {})),
        ("workers", _workers(one)),
        ("attempts", _attempts(one)),
        ("failures", _failures(one)),
        ("checkpoints", _checkpoints(one)),
        (f"trials, the best {TRIALS}" if len(one.trials) > TRIALS else "trials", _trials(one)),
    ):
        if content is not None:
            parts += ["", Text(title, style="bold"), content]
    return parts


def _pairs(values: dict[str, Any]) -> RenderableType | None:
    rows = [(key, brief(value)) for key, value in flat(values).items()]
    return screen.table("", "", rows=rows) if rows else None


def _workers(one: Overview) -> RenderableType | None:
    if not one.workers:
        return None
    rows = [
        (
            worker.get("trial", ""), worker["rank"], worker["host"], worker["pid"] or "", worker["phase"],
            worker["report"],
            "" if worker["silent"] is None else f"{worker['silent']:.1f} s ago",
            f"{worker['cpu']:.1f}" if "cpu" in worker else "",
            screen.size(worker["memory"]) if "memory" in worker else "",
            screen.size(worker["gpu_memory"]) if worker.get("gpu_memory") else "",
        )
        for worker in one.workers
    ]  # fmt: skip
    columns = ("trial", ">rank", "host", ">pid", "phase", ">report", ">reported", ">CPUs", ">memory", ">GPU memory")
    return screen.table(*columns, rows=rows)


def _attempts(one: Overview) -> RenderableType | None:
    rows = [
        (
            attempt.number,
            attempt.world_size,
            ", ".join(attempt.hosts[:4]) + (" …" if len(attempt.hosts) > 4 else ""),
            screen.moment(attempt.started_at),
            screen.age((attempt.ended_at or time.time()) - attempt.started_at),
            f"checkpoint of report {attempt.checkpoint}" if attempt.checkpoint else "the beginning",
            attempt.reason or ("in progress" if one.live else "its driver died"),
        )
        for attempt in one.attempts
    ]
    columns = (">", ">workers", "hosts", "started", ">took", "from", "ended")
    return screen.table(*columns, rows=rows) if rows else None


def _failures(one: Overview) -> RenderableType | None:
    parts: list[RenderableType] = []
    for failure in one.failures:
        words = "" if failure.cause else "followed: "
        parts.append(Text(f"attempt {failure.attempt}, {words}{failure.text}", style="red" if failure.cause else "dim"))
        if failure.cause and failure.traceback:
            parts.append(Text(failure.traceback.rstrip()))
    return Group(*parts) if parts else None


def _checkpoints(one: Overview) -> RenderableType | None:
    rows = [
        (c.name, c.n, c.status.lower().replace("_", " "), "best" if c.best else "", screen.told(c.metrics))
        for c in one.checkpoints
    ]
    return screen.table("", ">report", "status", "", "metrics", rows=rows) if rows else None


def _trials(one: Overview) -> RenderableType | None:
    if not one.trials:
        return None
    rows = [
        (
            t.directory or t.trial_id,
            Text(t.status, style=screen.COLORS.get(t.status, "")),
            t.reports,
            brief(t.best) if t.best is not None else "",
            t.error or screen.told(t.config),
        )
        for t in one.best_first[:TRIALS]
    ]
    return screen.table("", "status", ">reports", f">best {one.metric or ''}", "", rows=rows)


@command("logs")
def logs(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run, a trial, or a job of shoal submit.")],
    rank: Annotated[int, typer.Option(help="Whose output.")] = 0,
    lines: Annotated[int | None, typer.Option("--lines", "-n", help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run's end.")] = False,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster, for a job there.")] = None,
    storage: Storage = None,
) -> int:
    """Print what a rank of a run has written, also from native code; or what a job has printed."""
    try:
        place = catalog.find(name, storage)
    except StorageError:
        if not jobs.is_job(name, address):
            raise
        return jobs.print_logs(name, address, follow)
    if catalog.kind_of(place) == "search":
        raise ShoalError(f"{name} is a search, whose trials have the output: shoal logs {name}/<trial>")
    written = catalog.log_of(place, rank) if not follow or catalog.ranks_of(place) else b""
    kept = written.splitlines(keepends=True)
    _write(b"".join(kept if lines is None else kept[len(kept) - min(lines, len(kept)) :]))
    if follow:
        _follow(place, rank, len(written))
    return 0


def _follow(place: catalog.Place, rank: int, begin: int) -> None:
    while True:
        live = catalog.driver_of(place) is not None
        new = catalog.log_of(place, rank, begin) if rank in catalog.ranks_of(place) else b""
        _write(new)
        begin += len(new)
        if not live:
            return
        time.sleep(FOLLOW)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


@command("metrics")
def metrics(
    name: Name,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[METRIC]...", help="Which; all by default.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw this metric in the terminal.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw it (or all given) into this file.")] = None,
    last: Annotated[int, typer.Option(help="How many of the last reports; 0 for all.")] = 20,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Print what a run has reported, or draw it."""
    from shoal.cli import drawing

    place = catalog.find(name, storage)
    wanted = [*(keys or ()), *([plot] if plot else ())]
    if catalog.kind_of(place) == "search":
        if json or not wanted:
            raise ShoalError(f"{name} is a search: shoal show {name} has its trials; --plot METRIC draws their curves")
        curves = drawing.curves_of_search(place, wanted[-1])
        title = f"{name}: {wanted[-1]}"
    else:
        rows = drawing.rows_of(place)
        check_known(name, rows, wanted)
        if not plot and png is None:
            _print_rows(rows[-last:] if last else rows, wanted, json)
            return
        curves = drawing.curves_of_run(rows, wanted or drawing.numeric(rows))
        title = name
    if png is not None:
        drawing.to_png(curves, title, png)
        print(f"written: {png}")
    else:
        print(drawing.in_terminal(curves, title))


def check_known(name: str, rows: list[dict[str, Any]], keys: list[str]) -> None:
    """Raise an error for a metric that was never reported."""
    known = sorted({key for row in rows for key in row})
    for key in keys:
        if key not in known:
            there = ", ".join(k for k in known if k not in HIDDEN) or "no reports yet"
            raise ShoalError(f"{name} has never reported {key!r}; it has reported: {there}")


def _print_rows(rows: list[dict[str, Any]], keys: list[str], json: bool) -> None:
    if json:
        screen.print_json(
            [{k: row[k] for k in row if not keys or k in keys or k == "training_iteration"} for row in rows]
        )
        return
    columns = keys or list(dict.fromkeys(key for row in rows for key in row if key not in HIDDEN))
    cells = [[row["training_iteration"], *(brief(row.get(key, "")) for key in columns)] for row in rows]
    screen.console().print(screen.table(">report", *(f">{key}" for key in columns), rows=cells))


@command("compare")
def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Two or more.")],
    every: Annotated[bool, typer.Option("--all", help="Also what is the same in all of them.")] = False,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Compare runs: where their configurations differ, and how they ended."""
    if len(names) < 2:
        raise ShoalError("give two runs or more to compare")
    found = [catalog.overview(catalog.find(name, storage)) for name in names]
    told = [_comparable(one) for one in found]
    keys = list(dict.fromkeys(key for one in told for key in one))
    rows = {key: [one.get(key, "") for one in told] for key in keys}
    shown = {key: row for key, row in rows.items() if every or any(value != row[0] for value in row)}
    if json:
        screen.print_json({"runs": [one.name for one in found], "values": shown})
        return
    cells = [[key, *(brief(value) for value in row)] for key, row in shown.items()]
    screen.console().print(screen.table("", *(one.name for one in found), rows=cells))


def _comparable(one: Overview) -> dict[str, Any]:
    config = one.config if isinstance(one.config, dict) and one.kind != "search" else {}
    scaling = one.asked.get("scaling_config") or {}
    ended = one.ended_at or time.time()
    return {
        "state": one.state,
        **{f"config/{key}": value for key, value in flat(config).items()},
        **{key: value for key, value in scaling.items() if value},
        **{key: value for key, value in flat(one.metrics).items() if key not in HIDDEN},
        "best": screen.best(one) if one.best is not None else "",
        "reports": one.reports,
        "attempts": len(one.attempts),
        "seconds": round(ended - one.started_at, 1),
    }
