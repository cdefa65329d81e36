"""A host: ``python -m shoal._host DIRECTORY PARENT_PID`` (``-`` makes a directory, 0 is no parent).

Its input has an engine's orders, a JSON line each."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Fork the fork server while there is one thread only, then be the network side."""
    directory, parent = Path(sys.argv[1]), int(sys.argv[2])
    if sys.argv[1] == "-":
        from shoal._host import scratch

        directory = scratch.make()
    network, forks = socket.socketpair()
    from shoal._host import forks as fork_server

    if os.fork() == 0:
        network.close()
        fork_server.run(forks)
    forks.close()
    from shoal._host import host  # zmq is nothing that each fork should bear

    host.run(network, directory, parent)


if __name__ == "__main__":
    main()
