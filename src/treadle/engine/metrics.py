"""Prometheus metrics of one engine: counters and histograms from its telemetry, gauges from its store.

Each engine has its own registry, so that several engines in a process stay separate. Counting starts when the metrics are first
requested. Needs the extra `metrics`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.engine.metric_table import BY_NAME, COUNTER, GAUGE, METRICS, BoundedLabel, outcome_of
from treadle.kernel.store.queries import DeadLetterFilter, RunFilter
from treadle.kernel.telemetry.events import (
    LeaseLost,
    LeasesExpired,
    LoopError,
    PollRaised,
    Recovered,
    ResultDropped,
    TaskSettled,
    TelemetryEvent,
    TickFailed,
)
from treadle.kernel.telemetry.observer import (
    AttemptEnded,
    JobPolled,
    Measure,
    SettleAnswered,
    StoreCalled,
    TasksClaimed,
    TasksStored,
)
from treadle.model.errors import MissingDependency, StoreError
from treadle.model.states import ALERT
from treadle.version import VERSION

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
except ImportError:
    raise MissingDependency("Metrics need the package prometheus-client: pip install 'treadle[metrics]'.") from None

if TYPE_CHECKING:
    from treadle.engine.kernel import Kernel
    from treadle.kernel.telemetry.observer import EventEmitter
    from treadle.model.clock import Clock

FRESH_FOR = 2.0
"""Seconds for which gauges are cached."""
SHARE = 10
"""Gauges that took long to read are cached this many times as long, so that reading takes at most a tenth of the time."""
READ_WITHIN = 5.0
"""Seconds that the store gets to answer; shorter than the timeout of most scrapers."""

_STOPPED = "stopped"
_DEPTHS = ("ready", "running", "waiting", "blocked")


@dataclass(slots=True)
class _Gauges:
    """Gauges as last read: for each metric, the values by labels."""

    values: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)
    until: float = float("-inf")
    """The end of the cache time, on the monotonic clock."""

    def add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Add to the value; bounded labels share one."""
        of = self.values.setdefault(name, {})
        of[labels] = of.get(labels, 0) + value

    def at_least(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Raise the value to at least this one."""
        of = self.values.setdefault(name, {})
        of[labels] = max(of.get(labels, 0), value)


class Metrics:
    """The metrics of one engine; an endpoint needs only `render`."""

    def __init__(self, telemetry: EventEmitter, clock: Clock, source: Callable[[], Kernel]) -> None:
        """`source` returns the current kernel, because an engine may move to another store."""
        self._clock = clock
        self._source = source
        self.registry = CollectorRegistry(auto_describe=False)
        self._series: dict[str, Any] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        for metric in METRICS:
            if metric.kind == COUNTER:
                self._series[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            elif metric.kind != GAUGE:
                self._series[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
                )
        self._bounds = {label: BoundedLabel() for label in ("kind", "task_list", "name", "operation", "loop")}
        self._gauges = _Gauges()
        self._reading = asyncio.Lock()
        self.registry.register(self)
        telemetry.add(self.observe)

    async def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return all metrics as text in the format that the `Accept` header requests, and the content type."""
        await self._refresh()
        encode, content_type = choose_encoder(accept or "")
        return encode(self.registry), content_type

    # counters and histograms

    def observe(self, event: TelemetryEvent | Measure) -> None:
        """Count an event or a measurement; called from any thread."""
        match event:
            case TasksClaimed(tasks):
                for task in tasks:
                    self._of("treadle_claims", task.kind, task.task_list).inc()
                    if task.claim_version == 1 and task.claimed_at is not None:
                        late = max(task.claimed_at - task.due_at, 0) / 1000
                        self._of("treadle_start_delay_seconds", task.task_list).observe(late)
            case AttemptEnded(task, transition, took):
                self._of("treadle_handler_duration_seconds", task.kind, task.name, outcome_of(transition)).observe(took)
            case TaskSettled():
                self._of("treadle_settles", event.kind, event.task_list, outcome_of(event.transition)).inc()
                if event.transition == "retry":
                    self._of("treadle_retries", event.kind, event.task_list).inc()
            case SettleAnswered():
                self._of("treadle_settle_duration_seconds").observe(event.took)
            case StoreCalled(operation, took, count, failed):
                self._of("treadle_store_duration_seconds", operation).observe(took)
                if failed:
                    self._of("treadle_store_errors", operation).inc()
                elif operation == "commit":
                    self._of("treadle_commit_units").observe(count)
            case TasksStored(tasks):
                for new in tasks:
                    self._of("treadle_enqueued", new.queue.kind, new.queue.task_list).inc()
            case LeaseLost():
                self._of("treadle_lease_losses").inc()
            case ResultDropped():
                self._of("treadle_dropped_results").inc()
            case LeasesExpired(count):
                self._of("treadle_takeovers").inc(count)
            case Recovered(expired_leases=expired, own_tasks=own):
                self._of("treadle_takeovers").inc(expired + own)
            case JobPolled(name, late):
                self._of("treadle_poll_lateness_seconds", name).observe(late)
            case PollRaised(name=name):
                self._of("treadle_poll_errors", name).inc()
            case LoopError(loop):
                self._of("treadle_loop_errors", loop).inc()
            case TickFailed():
                self._of("treadle_loop_errors", "external polling").inc()
            case _:
                pass  # events for people

    def _of(self, name: str, *values: str) -> Any:
        """Return the series with those labels; values from users are bounded."""
        key = (name, *values)
        series = self._children.get(key)
        if series is None:
            metric = BY_NAME[name]
            pairs = zip(metric.labels, values, strict=True)
            bounded = [self._bounds[label](value) if label in self._bounds else value for label, value in pairs]
            series = self._series[name].labels(*bounded) if metric.labels else self._series[name]
            if bounded == list(values):  # `OTHER` is looked up each time: it stands for any number of values
                self._children[key] = series
        return series

    # gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges as last read; called by the registry."""
        for metric in METRICS:
            if metric.kind == GAUGE and (values := self._gauges.values.get(metric.name)):
                family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in values.items():
                    family.add_metric(labels, value)
                yield family

    async def _refresh(self) -> None:
        """Read the gauges unless they are cached; concurrent callers share one read."""
        async with self._reading:
            began = self._clock.monotonic()
            if began < self._gauges.until:
                return
            gauges = _Gauges()
            try:
                async with asyncio.timeout(READ_WITHIN):
                    await self._read(gauges)
            except (StoreError, TimeoutError):
                gauges = _Gauges()
            gauges.add("treadle_store_up", (), 1 if gauges.values else 0)
            gauges.add("treadle_info", (VERSION,), 1)
            now = self._clock.monotonic()
            gauges.until = now + max(FRESH_FOR, (now - began) * SHARE)
            self._gauges = gauges

    async def _read(self, gauges: _Gauges) -> None:
        source = self._source()
        namespace = source.settings.namespace
        bounded = BoundedLabel()
        now = await source.store.now()
        for task_list, scaling in (await source.reads.desired_by_list()).items():
            place = (namespace, bounded(task_list))
            gauges.add("treadle_desired_workers", place, scaling.desired)
            gauges.at_least("treadle_oldest_ready_age_seconds", place, 0)
            for state in _DEPTHS:
                gauges.add("treadle_queue_depth", (*place, state), 0)
        for depth in await source.store.tasks.list_depths():
            if depth.queue.namespace == namespace:
                place = (namespace, bounded(depth.queue.task_list))
                for state in _DEPTHS:
                    gauges.add("treadle_queue_depth", (*place, state), getattr(depth, state))
                oldest_for = 0 if depth.oldest_due_at is None else max(now - depth.oldest_due_at, 0)
                gauges.at_least("treadle_oldest_ready_age_seconds", place, oldest_for / 1000)
        dead, _, _ = await source.store.dead_letters.count(DeadLetterFilter(namespace=namespace))
        gauges.add("treadle_dead_letters", (namespace,), dead)
        for state, count in (await source.store.records.count(namespace, ALERT.entity)).items():
            gauges.add("treadle_alerts", (namespace, state), count)
        for state, count in (await source.store.runs.count(RunFilter(namespace=namespace))).items():
            gauges.add("treadle_runs", (namespace, state), count)
        for server in await source.reads.list_servers():
            if server.state != _STOPPED:
                gauges.add("treadle_servers", (server.state,), 1)
