"""The actor that runs a host on a machine of a Ray cluster: full of threads, so the host is a process of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping

import ray

from shoal._host.place import host_environment
from shoal._version import __version__


class HostActor:
    """Starts a host, passes orders of the engine on to it, and says when it has ended.

    ``wait`` runs beside the other methods, which run one after the other. When the actor ends, so does the host.
    """

    def __init__(self, node: str, name: str):
        self._node, self._name = node, name
        self._said: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, str]:
        """Start the host and return the versions of this machine."""
        # Ray hides accelerators from an actor that has asked for none, and gives it one thread.
        hidden = {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal._host", "-", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=host_environment({**environment, "SHOAL_NODE_NAME": self._node}, os.getcwd()),
        )
        self.order({"type": "Names", "names": {self._node: self._name}})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"shoal host ready: "):
                break
            self._said.append(line.decode("utf-8", "replace").strip())
        else:
            raise RuntimeError(f"the host did not start: {'; '.join(self._said[-5:])}")
        threading.Thread(target=self._read, daemon=True).start()
        return {"shoal": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}

    def order(self, order: Mapping[str, object]) -> None:
        """Pass an order on."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps({**order, "host": self._name}).encode() + b"\n")
            self._process.stdin.flush()

    @ray.method(concurrency_group="wait")
    def wait(self) -> str:
        """Return how the host ended, once it has."""
        if self._process is None:
            return "the host was not started"
        code = self._process.wait()
        return ": ".join([f"its host process ended (code {code})", *self._said[-3:]])

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self._said = [*self._said[-4:], line.decode("utf-8", "replace").strip()]
