"""Prometheus: how runs and searches are doing, for those who keep machines running to scrape and to alert on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal._core.contracts import Callback
from shoal._core.tracker import search_of
from shoal._core.trial_callback import TrialCallback
from shoal._core.trials import Trial
from shoal.air.integrations._common import client

PORT = 9464  # where Prometheus's exporters of this kind are by convention
STATES = ("STARTING", "RUNNING", "FINISHED", "FAILED", "STOPPED")


class _Metrics:
    """The metrics of all runs of this process that go to one registry, and where they are served."""

    _made: dict[int, _Metrics] = {}

    def __init__(self, prometheus: Any, registry: Any):
        self._prometheus, self._registry, self._servers = prometheus, registry, dict[int, Any]()

        def of(kind: str, name: str, text: str, *labels: str) -> Any:
            return getattr(prometheus, kind)(f"shoal_{name}", text, labels, registry=registry)

        self.reports = of("Counter", "reports", "Reports of rank 0", "run")
        self.attempts = of("Counter", "attempts", "Worker groups that were started", "run")
        self.failures = of("Counter", "failures", "Attempts that failed", "run")
        self.checkpoints = of("Counter", "checkpoints", "Checkpoints that became visible", "run")
        self.last_report = of("Gauge", "last_report_timestamp_seconds", "When rank 0 reported last", "run")
        self.data_wait = of("Gauge", "data_wait_ratio", "Share of the time that training waited for batches", "run")
        self.workers = of("Gauge", "workers", "Workers by phase", "run", "phase")
        self.world_size = of("Gauge", "world_size", "Workers of the newest attempt", "run")
        self.state = of("Gauge", "run_state", "1 for the state that the run is in", "run", "state")
        self.trials = of("Gauge", "trials", "Trials of a search by status", "search", "status")
        self.trial_reports = of("Counter", "trial_reports", "Reports of trials", "search")

    @classmethod
    def of(cls, registry: Any) -> _Metrics:
        """Return the metrics of a registry, made once."""
        prometheus = client("prometheus_client", "prometheus", "PrometheusCallback")
        kept = prometheus.REGISTRY if registry is None else registry
        if id(kept) not in cls._made:
            cls._made[id(kept)] = cls(prometheus, kept)
        return cls._made[id(kept)]

    def serve(self, port: int, address: str) -> int:
        """Serve them, once at each port; return the port."""
        if port not in self._servers:
            self._servers[port] = self._prometheus.start_http_server(port, address, registry=self._registry)[0]
        return int(self._servers[port].server_port)


class _Served:
    """What both callbacks have: the metrics, and where they are.

    Attributes
    ----------
    port : int
        Where the metrics are.
    """

    def __init__(self, port: int = PORT, address: str = "127.0.0.1", registry: Any = None):
        self._metrics = _Metrics.of(registry)
        self.port = self._metrics.serve(port, address)


class PrometheusCallback(_Served, Callback):
    """Serves metrics of a run to Prometheus over HTTP, from the driver. Give it in ``RunConfig(callbacks=[...])``.

    ``shoal_last_report_timestamp_seconds`` tells a run that hangs, ``shoal_failures_total`` one that fails again and
    again, ``shoal_data_wait_ratio`` one that waits for data. Needs ``pip install 'shoal[prometheus]'``.

    Parameters
    ----------
    port : int
        Where they are served; all runs of a process share one. 0 takes any free one, see ``port``.
    address : str
        Of which interface; only this machine reaches the default.
    registry : optional
        A ``prometheus_client.CollectorRegistry`` of your own.

    Examples
    --------
    >>> from shoal import train
    >>> from shoal.air.integrations.prometheus import PrometheusCallback
    >>> config = train.RunConfig(callbacks=[PrometheusCallback(port=0)])
    """

    def __init__(self, port: int = PORT, address: str = "127.0.0.1", registry: Any = None):
        super().__init__(port, address, registry)
        self._run, self._phases = "", Counter[str]()

    def on_run_start(self, name: str, path: str, **info: Any) -> None:
        """Begin with a run."""
        self._run = name
        self._set_state("STARTING")

    def on_attempt_start(self, attempt: int, world_size: int, **info: Any) -> None:
        """Count a worker group."""
        self._metrics.attempts.labels(self._run).inc()
        self._metrics.world_size.labels(self._run).set(world_size)

    def on_failure(self, attempt: int, cause: str, **info: Any) -> None:
        """Count a failure."""
        self._metrics.failures.labels(self._run).inc()

    def on_state(self, state: str, attempt: int, workers: Mapping[int, str]) -> None:
        """Count workers by phase."""
        self._set_state(state)
        phases = Counter(workers.values())
        for phase in self._phases.keys() | phases.keys():
            self._metrics.workers.labels(self._run, phase).set(phases[phase])
        self._phases = phases

    def on_report(self, metrics: Mapping[str, Any]) -> None:
        """Count a report."""
        self._metrics.reports.labels(self._run).inc()
        self._metrics.last_report.labels(self._run).set(metrics["timestamp"])
        if "data_wait_share" in metrics:
            self._metrics.data_wait.labels(self._run).set(metrics["data_wait_share"])

    def on_checkpoint(self, report: int, path: str, metrics: Mapping[str, Any]) -> None:
        """Count a checkpoint."""
        self._metrics.checkpoints.labels(self._run).inc()

    def on_run_end(self, state: str, reason: str) -> None:
        """Say how it ended; no worker is left."""
        self._set_state(state)
        for phase in self._phases:
            self._metrics.workers.labels(self._run, phase).set(0)

    def _set_state(self, state: str) -> None:
        for one in {*STATES, state}:
            self._metrics.state.labels(self._run, one).set(int(one == state))


class PrometheusTrialCallback(_Served, TrialCallback):
    """Serves metrics of a search to Prometheus, as :class:`PrometheusCallback` does those of a run."""

    def __init__(self, port: int = PORT, address: str = "127.0.0.1", registry: Any = None):
        super().__init__(port, address, registry)
        self._statuses: dict[str, str] = {}
        self._counts = Counter[str]()

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial runs."""
        self._look(trial)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Count a report, after which the trial may be paused."""
        self._metrics.trial_reports.labels(search_of(trial)).inc()
        self._look(trial)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has ended."""
        self._look(trial)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has failed."""
        self._look(trial)

    def _look(self, trial: Trial) -> None:
        before, now = self._statuses.get(trial.trial_id), trial.status.value
        if before == now:
            return
        self._statuses[trial.trial_id] = now
        self._counts.update([now])
        self._counts.subtract([before] if before else [])
        for status in filter(None, (before, now)):
            self._metrics.trials.labels(search_of(trial), status).set(self._counts[status])
