"""Options of tasks, runs, schedules and watchers, each defined once.

The engine, the queue, the HTTP contract, the client, the CLI, the dashboard and MCP take their options from these classes.
`contract.option_fields` lists them. Durations are a `timedelta` or seconds in Python, and seconds on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from treadle.api.contract import Doc
from treadle.model.clock import Duration
from treadle.model.names import DEFAULT_LIST, HANDLER
from treadle.model.retry import RetryPolicy
from treadle.model.tags import TagValue
from treadle.model.text import suggestion
from treadle.model.values import Json

SECONDS = "seconds"
BYTES = "bytes"

Retry = RetryPolicy | int | None
"""A policy, or a number of retries; None: the handler's own policy. On the wire: a number of retries."""


OnConflict = Literal["return", "reject", "replace", "debounce"]

_ON_CONFLICT = Doc("If the key is taken: `return` the live work (default), `reject`, `replace` it, or `debounce` its start")
_MAX_WAIT = Doc("Longest delay of `debounce` after the first call, in seconds", unit=SECONDS)


class EnqueueOptions(TypedDict, total=False):
    """When a task is due, how it is deduplicated, limited and retried."""

    delay: Annotated[Duration | None, Doc("Earliest start, in seconds from now", 5, unit=SECONDS)]
    at: Annotated[datetime | None, Doc("Earliest start")]
    priority: Annotated[int, Doc("Smaller numbers run first", default=0)]
    task_list: Annotated[str, Doc("The task list that workers select tasks from", default=DEFAULT_LIST)]
    unique_key: Annotated[str | None, Doc("At most one live task has this key")]
    on_conflict: Annotated[OnConflict | None, _ON_CONFLICT]
    max_wait: Annotated[Duration | None, _MAX_WAIT]
    idempotency_key: Annotated[str | None, Doc("For seven days, a call with this key returns the same task, also after its end")]
    limit_key: Annotated[str | Sequence[str] | None, Doc("Count the task under the limit of this key or keys")]
    fairness_key: Annotated[
        str | None,
        Doc("Fair queueing: tasks of different keys with the same name, list and priority are claimed alternately", "tenant-7"),
    ]
    limit: Annotated[int | None, Doc("Maximum concurrently running tasks with the limit key, unless an operator has set another")]
    retry: Annotated[Retry, Doc("Retries after a failure; default: the handler's policy")]
    timeout: Annotated[Duration | None, Doc("Longest time for one attempt, in seconds", unit=SECONDS)]
    progress_every: Annotated[Duration | None, Doc("Longest time without a progress report, in seconds", unit=SECONDS)]
    deadline: Annotated[Duration | None, Doc("Fail the task instead of starting it after this many seconds", unit=SECONDS)]
    trace_id: Annotated[str | None, Doc("Trace id, inherited unchanged by all work that follows from the task")]
    scope: Annotated[str | None, Doc("Selects among specialists of the same name")]
    tags: Annotated[
        Mapping[str, TagValue] | None, Doc("Search attributes: text, numbers, true or false, times", {"customer": "acme"})
    ]


PYTHON = "python"
"""The actor of calls from Python that name none."""


def check_known(call: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` for an option that the call does not take, with the one that is probably meant."""
    for name in options:
        if name not in known:
            raise TypeError(f"{call} has no option {name!r}{suggestion(name, known)}")


class SpecOptions(EnqueueOptions, total=False):
    """Options of a `TaskSpec`; those that are not options of `enqueue` are not accepted over HTTP."""

    kind: Annotated[str, Doc("The kind of the task", default=HANDLER)]
    idempotency_for: Annotated[Duration, Doc("How long the idempotency key is kept, in seconds", unit=SECONDS, default=7 * 86_400)]
    root_id: Annotated[str | None, Doc("The tree to which the task belongs; None: the task is the root of its own")]
    id: Annotated[str | None, Doc("The id of the task: enqueueing an existing id is a no-op")]
    created_by: Annotated[str | None, Doc("The actor, shown with the task", default=PYTHON)]


class StartOptions(TypedDict, total=False):
    """Options of every new run."""

    idempotency_key: Annotated[str | None, Doc("A repeated start with this key returns the first run")]
    task_list: Annotated[str, Doc("The task list that workers select tasks from", default=DEFAULT_LIST)]
    priority: Annotated[int, Doc("Smaller numbers run first", default=0)]
    trace_id: Annotated[str | None, Doc("Trace id, inherited unchanged by all work that follows from the run")]
    deadline: Annotated[Duration | None, Doc("Cancel the run this many seconds after its start", 7200, unit=SECONDS)]
    deadline_at: Annotated[datetime | None, Doc("Cancel the run at this time")]
    fairness_key: Annotated[
        str | None,
        Doc("Fair queueing for the tasks of the run: those of different keys in a list are claimed alternately", "tenant-7"),
    ]
    tags: Annotated[
        Mapping[str, TagValue] | None, Doc("Search attributes: text, numbers, true or false, times", {"customer": "acme"})
    ]


class RunOptions(StartOptions, total=False):
    """Options of a new run of a workflow."""

    lenient: Annotated[bool, Doc("Skip the check of the inputs against the workflow's parameters", default=False)]
    budget: Annotated[float | None, Doc("Maximum cost of model requests, in dollars", 1.5)]
    on_failure: Annotated[
        Literal["stop", "finish"] | None,
        Doc("Once the run cannot succeed: `stop` starts nothing new (default), `finish` runs the other branches to their end"),
    ]


class FunctionOptions(StartOptions, total=False):
    """Options of a new run of a durable function."""

    version: Annotated[int | None, Doc("The version; null: the newest known", 1)]
    delay: Annotated[Duration | None, Doc("Earliest start, in seconds from now", 5, unit=SECONDS)]
    start_at: Annotated[datetime | None, Doc("Earliest start")]
    signal: Annotated[str | None, Doc("Send this signal to the run, whether it is new or live", "changed")]
    signal_payload: Annotated[Json, Doc("Payload of the signal")]
    unique_key: Annotated[str | None, Doc("At most one live run has this key", "nightly")]
    on_conflict: Annotated[OnConflict | None, _ON_CONFLICT]
    max_wait: Annotated[Duration | None, _MAX_WAIT]
    limit_key: Annotated[str | None, Doc("Count the run against the limit of this key from its first step to its end")]
    limit: Annotated[int | None, Doc("Maximum live runs with the limit key, which is the function's name by default")]


class WorkOptions(RunOptions, FunctionOptions, total=False):
    """Options of `Engine.start`, which starts functions and workflows."""

    strict: Annotated[bool, Doc("Of AFL sources: treat warnings as errors", default=False)]


class TargetOptions(TypedDict, total=False):
    """The work that a schedule or a watcher starts: one of `task`, `workflow` and `function`."""

    task: Annotated[str | None, Doc("Start a task of this handler", "billing.Report")]
    workflow: Annotated[str | None, Doc("Start a run of this workflow of `flow`")]
    function: Annotated[str | None, Doc("Start a run of this durable function")]
    flow: Annotated[str | None, Doc("The published flow that contains the workflow")]
    version: Annotated[int | None, Doc("Version of the flow or the function; default: the newest")]
    inputs: Annotated[Mapping[str, Any] | None, Doc("Payload of the task, or inputs of the run", {"region": "eu"})]
    task_list: Annotated[str, Doc("The task list that workers select tasks from")]
    priority: Annotated[int, Doc("Smaller numbers run first")]
    retry: Annotated[Retry, Doc("Retries of the task after a failure; default: the handler's policy")]
    timeout: Annotated[Duration | None, Doc("Longest time for one attempt of the task, in seconds", unit=SECONDS)]
    deadline: Annotated[
        Duration | None, Doc("Cancel the run, or fail the task instead of starting it, after this many seconds", unit=SECONDS)
    ]
    fairness_key: Annotated[str | None, Doc("Fair queueing: work of different keys in a list is claimed alternately", "tenant-7")]
    tags: Annotated[
        Mapping[str, TagValue] | None,
        Doc("Search attributes of the work: text, numbers, true or false, times", {"customer": "acme"}),
    ]


class TimeOptions(TypedDict, total=False):
    """The times at which a schedule fires: one of `cron`, `every` and `at`."""

    cron: Annotated[
        str | None,
        Doc("Cron expression (minute hour day month weekday; six fields start with seconds), or `@daily` etc.", "0 3 * * *"),
    ]
    zone: Annotated[str, Doc("Time zone of the cron expression; default: `UTC`", "Europe/Berlin")]
    every: Annotated[Duration | None, Doc("Interval in seconds", unit=SECONDS)]
    anchor: Annotated[datetime | None, Doc("Start of the first interval; default: `start`, or now")]
    at: Annotated[datetime | None, Doc("Fire once at this time; a time in the past is due immediately")]
    start: Annotated[datetime | None, Doc("Ignore ticks before this time")]
    end: Annotated[datetime | None, Doc("Ignore ticks after this time")]


class CatchUpOptions(TypedDict, total=False):
    """Treatment of missed ticks: those that are more than `grace` late."""

    catch_up: Annotated[
        Literal["skip", "latest", "all", "window"],
        Doc("Missed ticks that fire: none, the latest (default), all, or those within `catch_up_window`"),
    ]
    catch_up_limit: Annotated[int, Doc("With `all` and `window`: fire only the newest N missed ticks, up to 10000")]
    catch_up_window: Annotated[Duration | None, Doc("With `window`: maximum age of a missed tick, in seconds", unit=SECONDS)]
    grace: Annotated[Duration, Doc("Seconds by which a tick may be late without counting as missed; default: 120", unit=SECONDS)]


class ScheduleOptions(TimeOptions, TargetOptions, CatchUpOptions, total=False):
    """When a schedule fires, the work it starts, and its treatment of late and overlapping ticks."""

    tick_as: Annotated[str | None, Doc("Input field that receives the tick's time; default: `tick` for tasks, none for runs")]
    overlap: Annotated[
        Literal["allow", "skip", "queue", "cancel"],
        Doc("While the previous work still runs: start anyway, skip the tick (default), queue it, or cancel the previous work"),
    ]
    jitter: Annotated[Duration, Doc("Delay every tick by up to this many seconds, a fixed amount per schedule", unit=SECONDS)]


class SourceOptions(TypedDict, total=False):
    """The source that a watcher scans: one of `directory`, `file` and `url`. It cannot be edited."""

    directory: Annotated[str | None, Doc("Absolute path of a directory on the workers' machines", "/srv/incoming")]
    file: Annotated[str | None, Doc("Absolute path of a single file")]
    url: Annotated[str | None, Doc("An http or https URL")]
    pattern: Annotated[str, Doc("Files of the directory, e.g. `*.csv` or `2027/**/*.csv`; default: all", "*.csv")]
    recursive: Annotated[bool, Doc("Apply the pattern at every depth of the directory")]
    existing: Annotated[
        Literal["seen", "new"], Doc("Treat items that exist when the watcher is added as `seen` (default) or as `new`")
    ]


class WatcherChanges(TargetOptions, total=False):
    """Options of a watcher that can be edited."""

    change_as: Annotated[str | None, Doc("Input field that receives the change; default: `change`")]
    changes: Annotated[
        Sequence[Literal["created", "modified", "deleted"]],
        Doc("Changes that start work; default: `created` and `modified`", ["created"]),
    ]
    every: Annotated[Duration, Doc("Scan interval in seconds; default: 30, at least 1", 60, unit=SECONDS)]
    settle: Annotated[Duration, Doc("Seconds that a file must stay unchanged before it counts; default: 2", unit=SECONDS)]
    hashing: Annotated[bool, Doc("Report a file as modified only if its content has changed; default: true")]
    hash_limit: Annotated[int, Doc("Larger files are compared by size and time instead of content, in bytes", unit=BYTES)]
    fetch_timeout: Annotated[Duration, Doc("Timeout of a request to the URL, in seconds", unit=SECONDS)]
    scan_on: Annotated[str, Doc("Scan only on workers of this task list; default: all workers")]


class AlertOptions(TypedDict, total=False):
    """The condition of an alert rule, the target of its messages, and when it sends them."""

    when: Annotated[
        Literal["run_failed", "dead_letters", "queue_age", "trigger_failing", "worker_lost", "budget_spent", "problem"],
        Doc(
            "The condition: runs fail, there are dead letters, ready tasks are too old, a schedule or watcher fails, a worker is "
            "lost, runs fail because their budget is spent, or `status` names any problem",
            "run_failed",
        ),
    ]
    to: Annotated[
        str,
        Doc(
            "The target: an http or https URL, or the name of an environment variable of the workers (`TREADLE_ALERT_...`) with "
            "such a URL or one of Apprise",
            "TREADLE_ALERT_ONCALL",
        ),
    ]
    workflow: Annotated[str, Doc("For `run_failed` and `budget_spent`: only workflows and functions of this name or glob")]
    task_list: Annotated[str, Doc("For `queue_age` and `dead_letters`: only this task list")]
    over: Annotated[int, Doc("For `dead_letters`: fire when there are more than this many; default: 0")]
    age: Annotated[
        Duration, Doc("For `queue_age`: fire when a ready task has waited longer, in seconds; default: 300", unit=SECONDS)
    ]
    code: Annotated[str, Doc("For `problem`: only problems with this code or glob, such as `list_*`")]
    within: Annotated[
        Duration,
        Doc(
            "For `run_failed` and `budget_spent`: resolve when no run has failed for this time, in seconds; default: 900",
            unit=SECONDS,
        ),
    ]
    lasts: Annotated[
        Duration,
        Doc(
            "Fire only when the cause has lasted this long, and resolve when it has been gone as long, in seconds; for "
            "`run_failed` and `budget_spent`, shorter than `within` by two evaluations",
            unit=SECONDS,
        ),
    ]
    repeat: Annotated[Duration, Doc("Send the message again after this time while the cause lasts, in seconds", unit=SECONDS)]
    resolved: Annotated[bool, Doc("Also send a message when the cause is gone; default: true")]
    every: Annotated[Duration, Doc("Interval of evaluation in seconds; default: 15, at least 1", unit=SECONDS)]


class WatcherOptions(SourceOptions, WatcherChanges, total=False):
    """The source that a watcher scans, the work a change starts, and how it scans."""
