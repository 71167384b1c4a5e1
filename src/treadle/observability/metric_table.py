"""Every metric that there is: what it counts and by which labels. The reference page is made from this table."""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds for what should be quick: the store, a settle, a start."""
LONG_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)
"""Bounds for what handlers do."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

OTHER = "other"
"""Stands for all values of a label that came after the first `MOST_VALUES`."""
MOST_VALUES = 100


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` without the suffix that Prometheus gives counters."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name as it is queried by."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


METRICS = (
    # what this process did, counted since it was first asked for its metrics
    Metric(
        "treadle_enqueued", COUNTER, "Tasks that were stored through this process, steps of runs among them.", ("kind", "task_list")
    ),
    Metric("treadle_claims", COUNTER, "Tasks that workers of this process took.", ("kind", "task_list")),
    Metric(
        "treadle_settles",
        COUNTER,
        "Attempts of this process that were settled, by what they came to.",
        ("kind", "task_list", "outcome"),
    ),
    Metric("treadle_retries", COUNTER, "Of these, those that failed and will be tried again.", ("kind", "task_list")),
    Metric(
        "treadle_lease_losses",
        COUNTER,
        "Attempts that were stopped because their claim was gone: canceled, taken over, or not renewed in time.",
    ),
    Metric("treadle_dropped_results", COUNTER, "Results that came too late: the claim had been lost."),
    Metric("treadle_takeovers", COUNTER, "Tasks whose lease had run out, made ready for others by this process."),
    Metric("treadle_poll_errors", COUNTER, "Polls of outside jobs that raised.", ("name",)),
    Metric("treadle_store_errors", COUNTER, "Calls of the store that failed, by operation.", ("operation",)),
    Metric("treadle_loop_errors", COUNTER, "Errors that a loop of this process met and survived, by loop.", ("loop",)),
    Metric(
        "treadle_start_delay_seconds",
        HISTOGRAM,
        "From when a task was due to when it was first taken.",
        ("task_list",),
        LONG_SECONDS,
    ),
    Metric(
        "treadle_handler_duration_seconds",
        HISTOGRAM,
        "How long handlers ran (functions: until they parked), by what the attempt came to; `stopped` where it was stopped.",
        ("kind", "name", "outcome"),
        LONG_SECONDS,
    ),
    Metric(
        "treadle_settle_duration_seconds",
        HISTOGRAM,
        "From the end of a handler to the durable settle of its task.",
        (),
        SECONDS,
    ),
    Metric(
        "treadle_poll_lateness_seconds",
        HISTOGRAM,
        "From when an outside job was due to be polled to when it was.",
        ("name",),
        LONG_SECONDS,
    ),
    Metric(
        "treadle_store_duration_seconds",
        HISTOGRAM,
        "How long calls of the store took: `claim`, `commit`, `renew`, `wake`.",
        ("operation",),
        SECONDS,
    ),
    Metric("treadle_commit_units", HISTOGRAM, "Units that went to the store in one commit.", (), SIZES),
    # what the store says, the same from every process
    Metric(
        "treadle_queue_depth",
        GAUGE,
        "Live tasks: `ready` to be taken, `running`, `waiting` for a time, a poll or a person, `held` by a pause or a limit.",
        ("namespace", "task_list", "state"),
    ),
    Metric(
        "treadle_oldest_ready_age_seconds",
        GAUGE,
        "How long the oldest ready task has been due; 0 where none is ready.",
        ("namespace", "task_list"),
    ),
    Metric(
        "treadle_desired_workers",
        GAUGE,
        "Workers that the list could use, as `treadle lists desired` says.",
        ("namespace", "task_list"),
    ),
    Metric("treadle_dead_letters", GAUGE, "Failed tasks that nobody has retried or discarded.", ("namespace",)),
    Metric("treadle_runs", GAUGE, "Runs by state, as far as they are kept.", ("namespace", "state")),
    Metric("treadle_servers", GAUGE, "Servers by state; those that stopped are not counted.", ("state",)),
    Metric("treadle_store_up", GAUGE, "1 if the store answered; 0 if not, and then the gauges above are missing."),
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
"""What is said of an attempt, by the move that it made."""
STOPPED = "stopped"
"""The outcome of an attempt that made no move: its claim was lost, or its worker stops."""


def outcome_of(move: str | None) -> str:
    """The outcome as a label."""
    return STOPPED if move is None else OUTCOMES.get(move, move)


class BoundedLabel:
    """Values of one label: the first `MOST_VALUES` stand for themselves, all others for `OTHER`.

    Names come from users; without a bound, a program that makes up names would make as many series.
    """

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value
