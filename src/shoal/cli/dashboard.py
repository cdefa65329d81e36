"""``shoal dashboard``: runs and searches in the browser."""

from __future__ import annotations

import os
import secrets
import socket
import webbrowser
from typing import Annotated

import typer

from shoal._core.errors import ShoalError
from shoal.cli.app import Storage, command

VARIABLE = "SHOAL_DASHBOARD_TOKEN"


@command("dashboard")
def dashboard(
    host: Annotated[
        str, typer.Option(help="Where to listen. Any address but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = 7440,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    storage: Storage = None,
) -> None:
    """Show runs and searches in a browser: live metrics, workers, attempts, checkpoints, logs; stop and resume."""
    try:
        import uvicorn

        from shoal.dashboard.guard import is_loopback
        from shoal.dashboard.server import application
    except ImportError as error:
        raise ImportError(f'the dashboard needs: pip install "shoal[dashboard]" ({error})') from error
    token = "" if is_loopback(host) else os.environ.get(VARIABLE) or secrets.token_urlsafe(24)
    listening = _listen(host, port)
    shown = host if ":" not in host else f"[{host}]"
    url = f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
    print(f"shoal dashboard: {url}", flush=True)
    if token:
        print(
            "whoever has this link can see and stop runs; over a network put it behind TLS or an SSH tunnel", flush=True
        )
    if open_:
        webbrowser.open(url)
    config = uvicorn.Config(application(storage, token), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # so that whoever follows the link at once waits, and is not refused
    except OSError as error:
        listening.close()
        raise ShoalError(
            f"cannot listen at {host}:{port}: {error.strerror or error}. --port 0 takes any that is free"
        ) from error
    return listening
