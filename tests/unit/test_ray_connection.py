"""What becomes of a call to a Ray cluster whose head cannot take it at once; the head is played."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shoal._core.errors import ShoalError
from shoal.engines.ray import CALLS, connected

DIED = "Initialization failure from server: RuntimeError: Starting Ray client server failed. See the log"
DIED_LATER = "Initialization failure from server: RuntimeError: Proxy failed to Connect to backend! Check the log"


class Played:
    """Ray, whose head's server for a client dies as often as told."""

    def __init__(self, deaths: int, error: Exception | None = None):
        self.deaths, self.calls = deaths, 0
        self.error = error or ConnectionAbortedError(DIED)

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **settings: Any) -> None:
        self.calls += 1
        if self.calls <= self.deaths:
            raise self.error

    def get_runtime_context(self) -> Played:
        return self

    def get_node_id(self) -> str:
        return "here"


@pytest.fixture
def head() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"ray://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("words", [DIED, DIED_LATER])
def test_a_client_whose_server_died_as_it_started_calls_again_and_says_so(head: str, words: str):
    played = Played(deaths=2, error=ConnectionAbortedError(words))
    with pytest.warns(UserWarning, match="connecting again"):
        assert connected(played, head, None) == "here"
    assert played.calls == 3


def test_a_head_whose_servers_always_die_is_told_of_with_what_it_said(head: str):
    played = Played(deaths=100)
    with (
        pytest.warns(UserWarning, match="connecting again"),
        pytest.raises(ShoalError, match="Starting Ray client server failed"),
    ):
        connected(played, head, None)
    assert played.calls == CALLS


def test_other_failures_are_told_at_once(head: str):
    played = Played(deaths=100, error=ConnectionError("ray client connection timeout"))
    with pytest.raises(ShoalError, match="timeout"):
        connected(played, head, None)
    assert played.calls == 1
