"""The table of all metrics: help text and labels. The reference page is generated from it."""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bucket bounds for short operations: store calls, settles, start delays."""
LONG_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
"""Bucket bounds for handlers."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

OTHER = "other"
"""The label value for all values after the first `MAX_LABEL_VALUES`."""
MAX_LABEL_VALUES = 100


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` is without the suffix that Prometheus adds to counters."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown_name(self) -> str:
        """Return the name used in queries."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


METRICS = (
    # work of this process, counted since its metrics were first requested
    Metric("treadle_enqueued", COUNTER, "Tasks stored by this process, including steps of runs.", ("kind", "task_list")),
    Metric("treadle_claims", COUNTER, "Tasks claimed by workers of this process.", ("kind", "task_list")),
    Metric(
        "treadle_settles",
        COUNTER,
        "Settled attempts of this process, by outcome.",
        ("kind", "task_list", "outcome"),
    ),
    Metric("treadle_retries", COUNTER, "Settled attempts that failed and will be retried.", ("kind", "task_list")),
    Metric(
        "treadle_lease_losses",
        COUNTER,
        "Attempts stopped because their claim was lost: canceled, taken over, or not renewed in time.",
    ),
    Metric("treadle_dropped_results", COUNTER, "Results dropped because the claim had been lost."),
    Metric("treadle_takeovers", COUNTER, "Tasks with an expired lease that this process made ready again."),
    Metric("treadle_poll_errors", COUNTER, "Polls of external jobs that raised an error.", ("name",)),
    Metric("treadle_store_errors", COUNTER, "Failed store calls, by operation.", ("operation",)),
    Metric("treadle_loop_errors", COUNTER, "Errors from which a loop of this process recovered, by loop.", ("loop",)),
    Metric(
        "treadle_start_delay_seconds",
        HISTOGRAM,
        "Time from when a task was due until it was first claimed.",
        ("task_list",),
        LONG_SECONDS,
    ),
    Metric(
        "treadle_handler_duration_seconds",
        HISTOGRAM,
        "Run time of handlers (functions: until they were suspended), by outcome; `stopped` for attempts that were stopped.",
        ("kind", "name", "outcome"),
        LONG_SECONDS,
    ),
    Metric(
        "treadle_settle_duration_seconds",
        HISTOGRAM,
        "Time from the end of a handler to the durable settle of its task.",
        (),
        SECONDS,
    ),
    Metric(
        "treadle_poll_lateness_seconds",
        HISTOGRAM,
        "Delay of polls of external jobs.",
        ("name",),
        LONG_SECONDS,
    ),
    Metric(
        "treadle_store_duration_seconds",
        HISTOGRAM,
        "Duration of store calls: `claim`, `commit`, `renew`, `wake`.",
        ("operation",),
        SECONDS,
    ),
    Metric("treadle_commit_units", HISTOGRAM, "Units in one commit.", (), SIZES),
    # state of the store, the same from every process
    Metric(
        "treadle_queue_depth",
        GAUGE,
        "Live tasks: `ready` to be claimed, `running`, `waiting` for a time, a poll or a person, `blocked` by a pause or a limit.",
        ("namespace", "task_list", "state"),
    ),
    Metric(
        "treadle_oldest_ready_age_seconds",
        GAUGE,
        "Time since the oldest ready task was due; 0 if none is ready.",
        ("namespace", "task_list"),
    ),
    Metric(
        "treadle_desired_workers",
        GAUGE,
        "Workers that the list could use, as shown by `treadle lists desired`.",
        ("namespace", "task_list"),
    ),
    Metric("treadle_dead_letters", GAUGE, "Dead letters: failed tasks that were neither retried nor discarded.", ("namespace",)),
    Metric("treadle_alerts", GAUGE, "Retained alerts, by state: `firing`, `resolved`.", ("namespace", "state")),
    Metric("treadle_runs", GAUGE, "Retained runs, by state.", ("namespace", "state")),
    Metric("treadle_servers", GAUGE, "Servers by state, without stopped ones.", ("state",)),
    Metric("treadle_store_up", GAUGE, "1 if the store answers; 0 if not, in which case the gauges above are missing."),
    Metric("treadle_info", GAUGE, "1, with the version of Treadle.", ("version",)),
)

BY_NAME = {metric.name: metric for metric in METRICS}

OUTCOMES = {
    "succeed": "succeeded",
    "fail": "failed",
    "retry": "retry",
    "wait": "waiting",
    "hand_off": "awaiting_external",
    "ask": "awaiting_approval",
    "still_working": "still_working",
    "pause": "paused",
    "release": "released",
    "ignore": "ignored",
    "deny": "denied",
    "approve": "approved",
}
"""The outcome label of an attempt, by its transition."""
STOPPED = "stopped"
"""The outcome of an attempt without a transition: its claim was lost, or its worker stops."""


def outcome_of(transition: str | None) -> str:
    """Return the outcome label of a transition."""
    return STOPPED if transition is None else OUTCOMES.get(transition, transition)


class BoundedLabel:
    """Values of one label: the first `MAX_LABEL_VALUES` are kept, all others become `OTHER`.

    Names come from users; without a bound, a program that generates names would create as many series.
    """

    def __init__(self, most: int = MAX_LABEL_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value
