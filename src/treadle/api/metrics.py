"""Metrics: counts, durations, waits, depths and costs of work over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.clock import span

By = Literal["handler", "workflow", "queue", "release", "all"]


class MetricsPoint(ApiRecord, frozen=True):
    """The work of one step of time; the engine's own tasks are not counted. Durations are milliseconds.

    Quantiles come from buckets, so they are off by less than an eighth.
    """

    at: Instant
    """Start of the step."""
    started: int
    """Attempts that began, counted once they have ended; runs of workflows at their start."""
    completed: int
    failed: int
    """Permanently failed, including those that were retried or discarded since."""
    canceled: int
    """Canceled or ignored."""
    retried: int
    """Failed attempts that are retried."""
    taken_over: int
    """Attempts whose lease expired."""
    median_for: int | None
    """Median duration of the attempts that ended a task, or of whole runs; null if there is none."""
    p95_for: int | None
    p99_for: int | None
    wait_median_for: int | None
    """Median delay between due time and start, of tasks that ended with their first claim; null if there is none."""
    wait_p95_for: int | None
    wait_p99_for: int | None
    waited_for: int
    """The longest such delay, exactly."""
    depth: int
    """The greatest number of ready tasks, as sampled each minute."""
    oldest_for: int
    """The greatest age of a ready task, as sampled each minute."""
    cost_micros: int
    """Cost of models in millionths of a dollar, counted at the end of the task."""
    tokens: int
    """Tokens of models, counted at the end of the task."""


class MetricSeries(ApiRecord, frozen=True):
    """The work of one handler, workflow, queue or release."""

    name: str
    """Empty for work without a known release, and for all work together."""
    total: MetricsPoint
    points: list[MetricsPoint]
    """Oldest first; steps without work are left out."""


class ReleaseStart(ApiRecord, frozen=True):
    """A release of the application, and when its first work in the range ended."""

    release: str
    at: Instant


class MetricsReport(ApiRecord, frozen=True):
    """The work of a range of time."""

    since_at: Instant
    """Start of the first step."""
    until_at: Instant
    step_for: int
    by: str
    counted_at: Instant
    """Work that ended later is not counted yet: a busy store is counted with a delay of up to a minute."""
    series: list[MetricSeries]
    """By number of finished tasks or runs, the greatest first."""
    releases: list[ReleaseStart]


def _milliseconds(name: str) -> Column:
    def text(series: MetricSeries) -> str | None:
        duration = getattr(series.total, f"{name}_for")
        return None if duration is None else span(duration)

    return Column(name.replace("_", " "), text, spare=name.startswith("wait"))


View(
    MetricSeries,
    columns=(
        "name",
        Column("completed", "total.completed"),
        Column("failed", "total.failed"),
        Column("retried", "total.retried"),
        *(_milliseconds(name) for name in ("median", "p95", "p99", "wait_median", "wait_p95")),
        Column("depth", "total.depth", spare=True),
        Column("cost", lambda series: f"${series.total.cost_micros / 1e6:.4f}" if series.total.cost_micros else None, spare=True),
    ),
    empty="No work in this time.",
)


class MetricsApi(Protocol):
    """Counts, durations, waits, depths and costs over time."""

    @contract.get("/metrics/series", lists=True)
    async def series(
        self,
        *,
        by: Annotated[By, Doc("One series per handler, workflow (and function), queue or release; or one for all")] = "handler",
        last: Annotated[float | None, Doc("Length of the range, unless `since` is given", 86_400, unit="seconds")] = None,
        since: Annotated[datetime | None, Doc("Start of the range; default: an hour before its end")] = None,
        until: Annotated[datetime | None, Doc("End of the range; default: now")] = None,
        step: Annotated[
            float | None, Doc("Seconds of a step: 60, 600, 3600, 21600 or 86400; default: by the range", 3600, unit="seconds")
        ] = None,
        name: Annotated[str | None, Doc("Only this handler, workflow or function", "billing.Charge")] = None,
        task_list: Annotated[str | None, Doc("Only this task list", "default")] = None,
        release: Annotated[str | None, Doc("Only this release of the application", "2026-11-20.3")] = None,
        limit: Annotated[int, Doc("Maximum number of series, up to 1000", 20)] = 20,
    ) -> MetricsReport:
        """Work by minute, hour or day: started, completed and failed tasks, durations, waits, depths, costs.

        Read from roll-ups, which are kept longer than the tasks themselves: by minute for two days, by hour for 30 days, by day
        for 400 days, unless `TREADLE_KEEP_METRICS` sets other times.
        """
