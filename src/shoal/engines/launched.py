"""The engine for processes that somebody else started as ranks: torchrun, srun, mpirun, an operator of Kubernetes.

Rank 0 keeps the run's directory; the others learn from it where its supervisor listens, through the store of the launch
(``MASTER_ADDR``, ``MASTER_PORT``). The launcher decides about restarts, so a failure ends the run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from shoal._core.contracts import Inbox, InProcessEngine
from shoal._core.errors import InfeasibleRequest, ShoalError
from shoal._core.events import Acquired, HostSlots
from shoal._core.launches import launch_of
from shoal._core.scaling import GroupRequest
from shoal._host.place import towards
from shoal.engines.inline import InlineLease

LOCAL = {"127.0.0.1", "localhost", "::1"}


class LaunchedEngine(InProcessEngine):
    """Runs the function in this process as the rank that ``RANK`` says."""

    name = "launched"

    def __init__(self) -> None:
        try:
            launch = launch_of(os.environ)
        except ValueError as error:
            raise ShoalError(f"the launcher's variables are not as they should be: {error}") from error
        if launch is None or not launch.master:
            raise ShoalError(
                "the launched engine needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the "
                "environment, as torchrun sets them, or the variables of srun, mpirun, PyTorchJob, TrainJob or an "
                "indexed Job (with MASTER_ADDR where there are several machines)"
            )
        os.environ.update(launch.variables())  # under these names frameworks look for them
        self._rank, self._world_size, self._local_size = launch.rank, launch.world_size, launch.local_size
        self._store: Any = None
        one_machine = self._local_size == self._world_size
        self.listen_on = None if one_machine else self.address

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def address(self) -> str:
        if self._local_size == self._world_size:
            return "127.0.0.1"
        master = os.environ["MASTER_ADDR"]
        if self._rank == 0 and master not in LOCAL:
            return master
        return towards(f"tcp://{master}:9")

    def share(self, data: bytes) -> bytes:
        self.shared += 1
        store, key = self._launch_store(), f"shoal/{self.shared}"
        if self._rank == 0:
            store.set(key, data)
            return data
        return bytes(store.get(key))

    def total(self) -> Mapping[str, float]:
        return {"CPU": float(self._world_size)}

    def check(self, request: GroupRequest) -> None:
        if not request.min_workers <= self._world_size <= request.max_workers:
            raise InfeasibleRequest(
                f"the launcher started {self._world_size} ranks, and the script asks for {request}. Start as many "
                "ranks as ScalingConfig(num_workers=...) says, or write a range there, such as num_workers=(1, 8)"
            )

    def acquire(self, request: GroupRequest, inbox: Inbox) -> InlineLease:
        hostname = socket.gethostname()
        machines = max(1, self._world_size // max(1, self._local_size))
        slots = tuple(
            HostSlots(
                host=f"machine {index}", hostname=hostname if index == 0 else f"machine {index}", count=self._local_size
            )
            for index in range(machines)
        )
        inbox.post(Acquired(slots=slots))
        return InlineLease()

    def shutdown(self) -> None:
        self._store = None

    def _launch_store(self) -> Any:
        if self._store is None:
            try:
                from torch.distributed.rendezvous import rendezvous
            except ImportError as error:
                raise ShoalError(
                    'the launched engine meets through torch\'s store: pip install "shoal[torch]"'
                ) from error
            self._store, _, _ = next(iter(rendezvous("env://")))
        return self._store
