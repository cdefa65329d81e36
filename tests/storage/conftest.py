"""Storage on a server: one for all tests of this folder, a bucket for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from storage.servers import Proxy, S3Server

BUCKETS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


def _reach(port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let this process, and workers that it starts, reach a server; return a new bucket on it."""
    import s3fs

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket{next(BUCKETS)}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/runs"


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place on an S3 server."""
    return _reach(server.port, monkeypatch)


@pytest.fixture
def proxy(server: S3Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.stop()


@pytest.fixture
def s3_behind_proxy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place on an S3 server that is reached through the proxy."""
    return _reach(proxy.port, monkeypatch)
