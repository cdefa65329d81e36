"""Ray Core as the cluster: an actor on each machine runs the host there, placement groups hold what workers use.

Nothing of ray.train or ray.tune is used.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from shoal._core.errors import ShoalError
from shoal._core.nodes import Node
from shoal._runtime.accelerators import ACCELERATORS
from shoal._runtime.addresses import own_address
from shoal._runtime.requirements import require
from shoal._version import __version__
from shoal._worker.ray_names import installed
from shoal.engines.cluster import LIMIT, ClusterEngine
from shoal.engines.places import ClusterLease, shown

CALLS = 4  # how often a client from outside calls, if the head's server for it ends as it starts
DIED = ("Starting Ray client server failed", "Proxy failed to Connect to backend")  # what Ray says of that
CONNECT_LIMIT = 5.0  # seconds for something to answer where the cluster is said to be
LAST_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # where Ray writes down which cluster this machine is part of
RESERVE_LIMIT = 10.0  # seconds in which Ray reserves what was free a moment ago
KEPT = ("CPU", "GPU", "TPU", "NPU", "neuron_cores", "memory")


class RayEngine(ClusterEngine):
    """Runs workers on the machines of a Ray cluster.

    Parameters
    ----------
    address : str
        ``"auto"`` for the cluster that this machine is part of, ``"host:port"`` of its head, or ``"ray://host:10001"``
        for one that this machine is not part of.
    heartbeat_s : float
        After how many seconds of silence a machine counts as lost.
    runtime_env : mapping, optional
        What the machines need of this one, as Ray takes it: ``{"working_dir": "."}``, ``{"pip": [...]}``,
        ``{"env_vars": {...}}``.
    autoscaling : bool, optional
        Whether machines come when they are asked for. By default what the cluster itself says.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "auto",
        heartbeat_s: float = LIMIT,
        runtime_env: Mapping[str, Any] | None = None,
        autoscaling: bool | None = None,
    ):
        super().__init__(heartbeat_s)
        if installed():
            raise ShoalError(
                "the engine 'ray' needs Ray itself, whose names this program gets from shoal (--as-ray): "
                "replace ray by shoal in its imports, and run it without --as-ray"
            )
        use_token(os.environ)
        require("ray", extra="ray", tested="2.60", trainer="the engine 'ray'")
        import ray

        self._ray: Any = ray
        self._address = address
        self._here = connected(ray, address, runtime_env)
        self.where = f"the Ray cluster at {ray.get_runtime_context().gcs_address}"
        head = address.removeprefix("ray://").rpartition(":")[0]
        self.listen_on = own_address([head or ray.get_runtime_context().gcs_address.rpartition(":")[0]])
        self.grows = _has_autoscaler(ray) if autoscaling is None else autoscaling
        self._ids: dict[str, str] = {}
        self._asked_for: object = None
        self._watches: list[threading.Thread] = []
        atexit.register(self.shutdown)  # before Ray's own, which was registered earlier

    # ---- machines ---------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        available = self._available()
        found = []
        for node in alive:
            address, number = node["NodeManagerAddress"], node["NodeID"]
            name = f"{address}/{number[:8]}"  # a machine that comes back is another one
            self._ids[name] = number
            resources = dict(node["Resources"])
            kinds = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
            labels = {**node.get("Labels", {}), **({"accelerator_type": kinds[0]} if kinds else {})}
            total = {key: float(amount) for key, amount in resources.items() if _is_of_machine(key)}
            found.append(Node(name, total, labels, (), self._taken_by_others(name, number, total, available)))
        return sorted(found, key=lambda node: (self._ids[node.name] != self._here, node.name))

    def _available(self) -> dict[str, dict[str, float]] | None:
        """Return what Ray has left on each machine; ``None`` where it does not say (through ``ray://``)."""
        if self._address.startswith("ray://"):
            return None
        return dict(self._ray._private.state.available_resources_per_node())

    def _taken_by_others(
        self, name: str, number: str, total: Mapping[str, float], available: dict[str, dict[str, float]] | None
    ) -> dict[str, float]:
        if available is None:
            return {}
        ours: dict[str, float] = {}
        for lease in self._active:
            for node, count in lease.plan:
                if node == name:
                    for key, amount in lease.request.resources.items():
                        ours[key] = ours.get(key, 0.0) + amount * count
        left = available.get(number, {})
        return {key: max(0.0, amount - left.get(key, 0.0) - ours.get(key, 0.0)) for key, amount in total.items()}

    # ---- room -------------------------------------------------------------------------------------------------------

    def reserve(self, lease: ClusterLease) -> bool:
        """Take what a lease has planned out of Ray's own accounting: one bundle for each machine, tied to it."""
        if not lease.amounts:
            return True
        ray = self._ray
        bundles = [{key: amount * count for key, amount in lease.amounts.items()} for _, count in lease.plan]
        nodes = [{"ray.io/node-id": self._ids[name]} for name, _ in lease.plan]
        group = ray.util.placement_group(
            bundles, strategy="PACK", bundle_label_selector=nodes, name=f"shoal/{lease.inbox.title}"
        )
        if not group.wait(RESERVE_LIMIT):
            ray.util.remove_placement_group(group)
            return False
        lease.reservation = group
        kind = next((a for a in ACCELERATORS if lease.request.resources.get(a.resource)), None)
        if kind is not None:
            amounts = [lease.amounts[kind.resource] * count for _, count in lease.plan]
            asked = [
                ray.remote(_devices_here)
                .options(
                    num_cpus=0,
                    **({"num_gpus": amount} if kind.resource == "GPU" else {"resources": {kind.resource: amount}}),
                    scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index),
                )
                .remote(kind.resource)
                for index, amount in enumerate(amounts)
            ]
            lease.devices = dict(zip((name for name, _ in lease.plan), ray.get(asked, timeout=60.0), strict=True))
        if self._asked_for is lease:
            self._asked_for = None
            ray.autoscaler.sdk.request_resources(bundles=[])
        return True

    def unreserve(self, lease: ClusterLease) -> None:
        if lease.reservation is not None:
            self._ray.util.remove_placement_group(lease.reservation)
            lease.reservation = None

    def want(self, lease: ClusterLease) -> None:
        """Ask the cluster's autoscaler for machines that hold the smallest group."""
        if self.grows and self._asked_for is not lease:
            self._asked_for = lease
            self._ray.autoscaler.sdk.request_resources(bundles=[lease.amounts] * lease.request.min_workers)

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def launch(self, node: str, name: str, ready: Callable[[], None], ended: Callable[[str], None]) -> _ActorHost:
        from shoal.engines.ray_host import HostActor  # it imports Ray, which looks at once whether it has a token

        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self._ids[node], soft=False)
        remote = self._ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"wait": 1})(HostActor)
        actor = remote.options(scheduling_strategy=strategy).remote(shown(node), name)
        watch = threading.Thread(
            target=self._watch, args=(actor, node, ready, ended), name=f"shoal-host-{shown(node)}", daemon=True
        )
        self._watches = [*(other for other in self._watches if other.is_alive()), watch]
        watch.start()
        return _ActorHost(self._ray, actor)

    def _watch(self, actor: Any, node: str, ready: Callable[[], None], ended: Callable[[str], None]) -> None:
        try:
            there = self._ray.get(actor.start.remote())
            here = {"shoal": __version__, "Python": _minor(platform.python_version())}
            other = [f"{what} {there[what]} there, {version} here" for what, version in here.items()]
            if any(there[what] != version for what, version in here.items()):
                ended(f"versions differ: {', '.join(other)}. The same ones are needed on every machine")
                return
            ready()
            ended(self._ray.get(actor.wait.remote()))
        except Exception as error:
            ended(_reason(error))

    def close(self) -> None:
        for watch in self._watches:
            watch.join(timeout=5.0)  # its host is ended; to ask Ray once it is shut down would start another
        if self._ray.is_initialized():
            self._ray.shutdown()


class _ActorHost:
    """A host, by the actor that holds it."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor

    def order(self, order: Mapping[str, object]) -> None:
        self._actor.order.remote(dict(order))

    def end(self) -> None:
        if self._ray.is_initialized():  # else Ray would start a cluster for this
            with contextlib.suppress(Exception):  # it may be gone
                self._ray.kill(self._actor)


def _devices_here(resource: str) -> list[str]:
    import ray

    return [str(device) for device in ray.get_runtime_context().get_accelerator_ids()[resource]]


def connected(ray: Any, address: str, runtime_env: Mapping[str, Any] | None) -> str:
    """Connect with a cluster, unless this process has, and return the identifier of this machine in it.

    Raises
    ------
    ShoalError
        If that is not possible; the message says why and what to do.
    """
    if not ray.is_initialized():
        place = address.removeprefix("ray://")
        if address == "auto":
            place = os.environ.get("RAY_ADDRESS") or _text(LAST_CLUSTER)
        if ":" in place:
            check_answers(place)
        before = signal.getsignal(signal.SIGTERM) if threading.current_thread() is threading.main_thread() else None
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
        settings: dict[str, Any] = {"namespace": "shoal", "log_to_driver": False, "configure_logging": False}
        if address == place:
            settings["_node_ip_address"] = own_address([place.rpartition(":")[0]])
        try:
            _connect(ray, address, runtime_env=dict(runtime_env) if runtime_env else None, **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ShoalError(_why(place or address, error)) from error
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)  # Ray's would end this process without a word to the run
    return str(ray.get_runtime_context().get_node_id())


def _connect(ray: Any, address: str, **settings: Any) -> None:
    """Connect. The head starts a server of its own for each client from outside, which may die as it starts.

    It does on a head that ``shoal start`` has not started, see there. Ray names that, after half a minute or more, and
    leaves it to the caller; another call is another client, and gets another server.
    """
    for left in reversed(range(CALLS)):
        try:
            ray.init(address=address, **settings)
            return
        except ConnectionAbortedError as error:
            if not left or not any(words in str(error) for words in DIED):
                raise
            warnings.warn(
                f"the server for this client ended as it started on {address}: connecting again", stacklevel=5
            )


def _text(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def use_token(environment: MutableMapping[str, str]) -> None:
    """Have Ray's token authentication on where this machine has a token, or a person has said where it is."""
    given = environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH")
    if given or (Path.home() / ".ray/auth_token").exists():
        environment.setdefault("RAY_AUTH_MODE", "token")


def check_answers(place: str) -> None:
    """Raise :class:`ShoalError` where nothing listens at ``host:port``."""
    host, _, port = place.rpartition(":")
    advice = "Start the head with `shoal start --head`, and each other machine with `shoal start --address=<head>:6379`"
    if place.endswith(":8265"):
        advice = (
            "Jobs are taken on the head only, unless it has `shoal start --head --dashboard-host=0.0.0.0`: "
            "submit from there, or through `ssh -L 8265:127.0.0.1:8265 <head>`"
        )
    if not port.isdigit():
        raise ShoalError(f"address={place!r} is no host:port, such as 'head:6379'")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_LIMIT).close()
    except socket.gaierror as error:
        raise ShoalError(f"the name {host!r} of the cluster's head has no address here: {error}") from error
    except ConnectionRefusedError as error:
        raise ShoalError(
            f"nothing listens at {place}: there is no cluster, or it has another port. {advice}"
        ) from error
    except OSError as error:
        raise ShoalError(
            f"{place} does not answer within {CONNECT_LIMIT:g} s ({error}): is the machine up, and does a firewall let "
            f"the port through? {advice}"
        ) from error


def _why(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the cluster at {address} has other versions than this process: {text}"
    if "auth" in text.lower() or "token" in text.lower():
        return (
            f"the cluster at {address} does not take this machine's token: {text}. Copy ~/.ray/auth_token from its head"
        )
    if "Could not find any running Ray instance" in text:
        return (
            "no cluster runs on this machine. Start one with `shoal start --head`, join one with "
            "`shoal start --address=<head>:6379`, or give its address: shoal.init('<head>:6379')"
        )
    if "Failed to connect" in text:
        return (
            f"something listens at {address}, but does not take this machine in: either it does not take this machine's"
            " token (copy ~/.ray/auth_token from the cluster's head to here), or it is no Ray head"
        )
    return f"there is no connection with the cluster at {address}: {type(error).__name__}: {text}"


def _reason(error: Exception) -> str:
    text = str(error)
    if "No module named" in text:
        missing = text.rpartition("No module named ")[2].split("\n")[0]
        return (
            f"Python there has no module {missing}: install shoal on every machine, or give "
            "shoal.init(..., runtime_env={'pip': ['shoal']})"
        )
    return f"{type(error).__name__}: {' '.join(text.split())[:500]}"


def _has_autoscaler(ray: Any) -> bool:
    """Whether the cluster's configuration has groups of machines of which there may be more."""
    with contextlib.suppress(Exception):  # it is not told through ray://, nor by old clusters
        config = ray._private.state.state.get_cluster_config()
        return any(group.max_count > group.min_count for group in getattr(config, "node_group_configs", []))
    return False


def _is_of_machine(resource: str) -> bool:
    """Whether a resource is one that people ask for, and not one by which Ray marks a machine or a group."""
    own = resource.startswith(("node:", "accelerator_type:", "object_store_memory", "bundle_"))
    return resource in KEPT or not (own or "_group_" in resource)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
