"""Metrics: work, durations, waits and costs of an hour to a month, with a chart whose selected range narrows the page."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.api.metrics import MetricSeries, MetricsReport
from treadle.interfaces.web.forms import arguments_of, parameters_of
from treadle.interfaces.web.site import Visit, page

RANGES = {3600: "1 h", 86_400: "24 h", 604_800: "7 d", 2_592_000: "30 d"}
"""The ranges of the page in seconds; the second one is the default."""
_SUMS = ("completed", "failed", "retried", "taken_over", "depth")
_DURATIONS = ("median", "p95", "p99", "wait_median", "wait_p95")


@page("/metrics/work")
async def work(visit: Visit) -> Response:
    which = arguments_of(visit.query, parameters_of("metrics.series"))
    if "since" not in which:
        which.setdefault("last", 86_400.0)
    report = await visit.api.metrics.series(**which)
    if which.get("by") == "workflow" and "name" in which:
        drawn = report.series[:1]
    else:
        drawn = (await visit.api.metrics.series(**which | {"by": "all"})).series
    chart = chart_of(report, drawn[0] if drawn else None)
    return await visit.render("metrics.html", report=report, drawn=drawn, chart=chart, ranges=RANGES, last=which.get("last"))


def chart_of(report: MetricsReport, series: MetricSeries | None) -> dict[str, Any]:
    """The data of the charts, by step, with the marks of releases. Instants and durations are seconds."""
    points = {point.at.ms: point for point in series.points} if series is not None else {}
    steps = [points.get(at) for at in range(report.since_at.ms, report.until_at.ms, report.step_for)]
    columns: dict[str, list[float | None]] = {name: [getattr(point, name) if point else 0 for point in steps] for name in _SUMS}
    for name in _DURATIONS:
        durations = [getattr(point, f"{name}_for") if point else None for point in steps]
        columns[name] = [None if duration is None else duration / 1000 for duration in durations]
    return {
        "at": [at / 1000 for at in range(report.since_at.ms, report.until_at.ms, report.step_for)],
        **columns,
        "marks": [[release.at.ms / 1000, release.release] for release in report.releases[1:]],
    }
