"""Prometheus rules and a Grafana dashboard from the metric table: recording rules, alerts with their runbooks, and panels.

Expressions name metrics as `{short}`, such as `{claims}` for `treadle_claims_total`; an unknown name is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from treadle.engine.metric_table import GAUGE, HISTOGRAM, METRICS, Metric

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/monitoring"
RUNBOOKS = "docs/operations/runbooks.md"
_NOTE = "# Made by `python -m build_tools.deploy` from the metric table; edit build_tools/deploy/monitoring.py.\n"
_NAMES = {metric.name.removeprefix("treadle_").removesuffix("_seconds"): metric.shown_name for metric in METRICS}


@dataclass(frozen=True)
class Alert:
    """A condition that an operator acts on; `runbook` is the heading of its section, as an anchor."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    runbook: str


def expression(text: str) -> str:
    """The expression with the names of metrics."""
    return text.format_map(_NAMES | {"_": "{", "__": "}"})


RECORDED = {
    # gauges come from the store and are the same in every process: max; counters belong to one process: sum
    "treadle:queue_depth:max": "max by (namespace, task_list, state) ({queue_depth})",
    "treadle:oldest_ready_age_seconds:max": "max by (namespace, task_list) ({oldest_ready_age})",
    "treadle:desired_workers:max": "max by (namespace, task_list) ({desired_workers})",
    "treadle:dead_letters:max": "max by (namespace) ({dead_letters})",
    "treadle:claims:rate5m": "sum by (task_list) (rate({claims}[5m]))",
    "treadle:settles:rate5m": "sum by (task_list, outcome) (rate({settles}[5m]))",
    "treadle:start_delay_seconds:p95": "histogram_quantile(0.95, sum by (task_list, le) (rate({start_delay}_bucket[5m])))",
    "treadle:store_duration_seconds:p99": "histogram_quantile(0.99, sum by (operation, le) (rate({store_duration}_bucket[5m])))",
}
"""Recording rules by name."""

_GONE = 'sum(max by (state) ({servers}{_}state=~"error|lost"{__}))'
"""Lost workers are listed until they are pruned; only new ones are a reason to act."""

ALERTS = (
    Alert(
        "TreadleWorkIsNotTaken",
        'sum by (task_list) (treadle:queue_depth:max{_}state="ready"{__}) > 0 unless on (task_list) (treadle:claims:rate5m > 0)',
        "10m",
        "critical",
        "Tasks of the list {{ $labels.task_list }} are ready, and no worker takes any",
        "work-is-not-taken",
    ),
    Alert(
        "TreadleTasksStartLate",
        "treadle:oldest_ready_age_seconds:max > 300",
        "10m",
        "warning",
        "The oldest ready task of the list {{ $labels.task_list }} has waited {{ $value | humanizeDuration }}",
        "tasks-start-late",
    ),
    Alert(
        "TreadleTasksFailPermanently",
        "delta(treadle:dead_letters:max[15m]) > 0",
        "1m",
        "warning",
        "{{ $value }} new dead letters in the namespace {{ $labels.namespace }} within 15 minutes",
        "tasks-fail-permanently",
    ),
    Alert(
        "TreadleWorkersDie",
        "sum(increase({takeovers}[15m])) > 0",
        "5m",
        "warning",
        "{{ $value }} tasks were taken over from workers that were lost",
        "workers-die",
    ),
    Alert(
        "TreadleServersAreLost",
        f"{_GONE} - ({_GONE.replace('{__}', '{__} offset 15m')} or vector(0)) > 0",
        "1m",
        "warning",
        "{{ $value }} servers were lost or ended with an error within 15 minutes",
        "workers-die",
    ),
    Alert(
        "TreadleNoWorkerIsRunning",
        'absent({servers}{_}state="running"{__}) and on () max({store_up}) == 1',
        "5m",
        "critical",
        "The store answers, and no worker is registered as running",
        "work-is-not-taken",
    ),
    Alert(
        "TreadleStoreDoesNotAnswer",
        "min by (job, instance) ({store_up}) == 0",
        "2m",
        "critical",
        "{{ $labels.instance }} cannot reach its store",
        "the-store-does-not-answer",
    ),
    Alert(
        "TreadleStoreIsSlow",
        "treadle:store_duration_seconds:p99 > 1",
        "10m",
        "warning",
        "One of 100 calls of {{ $labels.operation }} takes longer than {{ $value | humanizeDuration }}",
        "the-store-is-slow",
    ),
    Alert(
        "TreadleStoreErrors",
        "sum by (operation) (rate({store_errors}[5m])) > 0.1",
        "5m",
        "warning",
        "Calls of {{ $labels.operation }} fail",
        "the-store-does-not-answer",
    ),
    Alert(
        "TreadleLeasesAreLost",
        "sum(rate({lease_losses}[10m])) > 0.1 or sum(rate({dropped_results}[10m])) > 0.1",
        "10m",
        "warning",
        "Attempts lose their claims: workers are too slow to renew leases, or work is canceled",
        "leases-are-lost",
    ),
    Alert(
        "TreadleLoopErrors",
        "sum by (loop) (rate({loop_errors}[10m])) > 0",
        "10m",
        "warning",
        "The loop {{ $labels.loop }} of a worker recovers from errors again and again",
        "a-loop-reports-errors",
    ),
    Alert(
        "TreadlePollsFail",
        "sum by (name) (rate({poll_errors}[10m])) > 0.05",
        "15m",
        "warning",
        "Polls of external jobs of {{ $labels.name }} fail",
        "polls-of-external-jobs-fail",
    ),
    Alert(
        "TreadleMetricsAreMissing",
        "absent({info})",
        "10m",
        "critical",
        "Prometheus reads metrics of no process",
        "metrics-are-missing",
    ),
)


def rules() -> str:
    """The rules file of Prometheus."""
    recorded = [{"record": name, "expr": expression(text)} for name, text in RECORDED.items()]
    alerts = [
        {
            "alert": each.name,
            "expr": expression(each.expression),
            "for": each.lasting,
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "runbook_url": f"https://git.example/treadle/{RUNBOOKS}#{each.runbook}"},
        }
        for each in ALERTS
    ]
    groups = [{"name": "treadle.recording", "rules": recorded}, {"name": "treadle.alerts", "rules": alerts}]
    return _NOTE + yaml.safe_dump({"groups": groups}, sort_keys=False, width=200)


# --- dashboard ---


def query(metric: Metric) -> tuple[str, str]:
    """The expression that shows a metric, and the legend."""
    labels = [label for label in metric.labels if label != "namespace"]
    by = f" by ({', '.join(labels)})" if labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or metric.name.removeprefix("treadle_")
    scope = '{namespace=~"$namespace"}' if "namespace" in metric.labels else ""
    if metric.kind == GAUGE:
        return f"max{by} ({metric.shown_name}{scope})", legend
    if metric.kind == HISTOGRAM:
        return (
            f"histogram_quantile(0.95, sum by ({', '.join([*labels, 'le'])}) (rate({metric.name}_bucket[$__rate_interval])))",
            legend,
        )
    return f"sum{by} (rate({metric.shown_name}[$__rate_interval]))", legend


def _unit(metric: Metric) -> str:
    if metric.name.endswith("_seconds"):
        return "s"
    return "short" if metric.kind != "counter" else "ops"


def _panel(metric: Metric, number: int, top: int) -> dict[str, Any]:
    text, legend = query(metric)
    title = metric.name.removeprefix("treadle_").removesuffix("_seconds").replace("_", " ").capitalize()
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": f"{title}, 95th percentile"
        if metric.kind == HISTOGRAM
        else f"{title} per second"
        if metric.kind == "counter"
        else title,
        "description": metric.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": top + 8 * (number // 3)},
        "fieldConfig": {"defaults": {"unit": _unit(metric), "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [{"refId": "A", "expr": text, "legendFormat": legend}],
    }


def _variable(name: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "query": text, "label": name.capitalize(), **more}


def dashboard() -> str:
    """The dashboard: the state of the store first, then the work of processes, one panel for each metric."""
    shown = sorted((each for each in METRICS if each.name != "treadle_info"), key=lambda each: each.kind != GAUGE)
    source = {"type": "prometheus", "uid": "${datasource}"}
    namespaces = _variable(
        "namespace",
        "query",
        "label_values(treadle_queue_depth, namespace)",
        datasource=source,
        includeAll=True,
        multi=True,
        refresh=2,
        current={"text": "All", "value": "$__all"},
    )
    made = {
        "uid": "treadle",
        "title": "Treadle",
        "tags": ["treadle"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_variable("datasource", "datasource", "prometheus"), namespaces]},
        "panels": [_panel(metric, number, 0) for number, metric in enumerate(shown)],
    }
    return json.dumps(made, indent=2) + "\n"


FILES = {"rules.yaml": rules, "dashboard.json": dashboard}


def outdated() -> dict[Path, str]:
    """The wanted text of every file that is out of date."""
    wanted = {FOLDER / name: make() for name, make in FILES.items()}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}
