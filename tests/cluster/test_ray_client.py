"""A driver outside of a Ray cluster, whose server on the head dies: real nodes, and a real process that aborts."""

from __future__ import annotations

import contextlib

import psutil
import pytest
from conftest_cluster import Hosts
from test_ray import Run

ABORTING = """
import os, pathlib, sys
first = pathlib.Path(__file__).with_name("has died")
if any("specific-server" in argument for argument in sys.orig_argv) and not first.exists():
    first.touch()
    os.abort()
"""


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_driver_whose_server_on_the_head_aborts_is_given_another(hosts: Hosts):
    pytest.importorskip("ray", reason="Ray is not installed here")
    place = hosts.home / "aborting"
    place.mkdir()
    (place / "sitecustomize.py").write_text(ABORTING)
    hosts.environment |= {
        "PYTHONPATH": str(place),
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "12",  # how long the head waits for a server: by itself 30 s,
        "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "2",  # and then for its client to come back
    }
    hosts.join(1)
    run = Run(hosts, "aborted", host=3, num_workers=1, address="ray://10.77.0.11:10001")
    assert run.ends()["rows"]["step"] == list(range(5))
    assert (place / "has died").exists()
    assert "the server for this client ended as it started" in run.output
    assert _environment_of_the_servers_parent(hosts)["GRPC_ENABLE_FORK_SUPPORT"] == "0"


def _environment_of_the_servers_parent(hosts: Hosts) -> dict[str, str]:
    """Return the environment of the process on the head that forks a server for each client."""
    for pid in hosts.pids(1):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if "--mode=proxy" in process.cmdline():
                return process.environ()
    raise AssertionError("there is no process for ray:// on the head")
