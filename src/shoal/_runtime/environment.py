"""The environment variables of a worker."""

from __future__ import annotations

from collections.abc import Mapping

from shoal._core.commands import Placement
from shoal._core.messages import Ranks

# Of a launcher around the driver; a worker must not take them for its own.
FOREIGN = ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")


def rank_variables(ranks: Ranks) -> dict[str, str]:
    """Return a worker's place under the names that torchrun uses."""
    return {
        "RANK": str(ranks.world_rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(ranks.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "GROUP_RANK": str(ranks.node_rank),
    }


def worker_environment(driver: Mapping[str, str], placement: Placement, run_name: str) -> dict[str, str]:
    """Return the driver's environment with what differs for one worker: its ranks and the accelerators it may use."""
    environment = {name: value for name, value in driver.items() if name not in FOREIGN}
    environment.update(rank_variables(placement.ranks))
    if placement.device_variable:
        environment[placement.device_variable] = ",".join(placement.devices)
    environment["SHOAL_RUN_NAME"] = run_name
    return environment
