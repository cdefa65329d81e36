"""The command line's frame: how commands are declared, and how mistakes are told."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shoal._core.errors import ShoalError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage", help="Where runs are kept: a directory or a URL. [default: $SHOAL_STORAGE_PATH or ~/shoal_results]"
    ),
]
CLUSTERS, RUNS = "Clusters", "Runs"

app = typer.Typer(
    name="shoal",
    epilog="Exit codes: 0 done, 1 not possible, 2 wrong arguments, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_versions(asked: bool) -> None:
    if asked:
        from shoal.cli.doctor import installed

        print("\n".join(f"{name} {version}" for name, version in installed().items()))
        raise typer.Exit(0)


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of shoal and what it works with.",
        ),
    ] = False,
) -> None:
    """Train and search on one machine or many."""


def command(
    name: str, panel: str = RUNS, **more: Any
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Declare a command: what it returns is its exit code, and a mistake of the user is told in a sentence."""

    def declared(function: Callable[..., int | None]) -> Callable[..., int | None]:
        @functools.wraps(function)
        def told(*arguments: Any, **options: Any) -> None:
            try:
                code = function(*arguments, **options)
            except (ShoalError, ImportError) as error:
                print(f"shoal {name}: {error}", file=sys.stderr)
                raise typer.Exit(1) from error
            except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
                sys.stdout = open("/dev/null", "w")  # noqa: SIM115
                raise typer.Exit(0) from None
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            raise typer.Exit(code or 0)

        app.command(name, rich_help_panel=panel, **more)(told)
        return function

    return declared
