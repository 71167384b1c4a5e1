"""Tools that are one operation each, or the choice of one: their names, texts, limits and short answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter as Argument
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from treadle.api.contract import ApiRecord, Call, Doc, Parameter, doc_of, parameters_of
from treadle.api.facade import all_calls, protocol_of
from treadle.api.objectives import StatusWord
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp.answers import (
    ADOPTED_RUN,
    APPROVAL,
    CAUSE,
    JOB,
    JOB_VIEW,
    LOG_LINE,
    NEW_RUN,
    OBJECTIVE,
    OBJECTIVE_VIEW,
    PAGE,
    PAGE_LIMIT,
    RUN,
    RUNNER,
    SCHEDULE,
    STEP,
    TASK,
    TASK_VIEW,
    WATCHER,
    After,
    Before,
    Brief,
    Fields,
    Limit,
    Shape,
    Whole,
    page_size,
)
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import Tool
from treadle.interfaces.typed_inputs import check_inputs
from treadle.model.access import Scope
from treadle.model.names import DEFAULT_LIST
from treadle.model.runs import ActivityKind
from treadle.model.states import RunState, StepState, TaskState

_CALLS = {f"{call.group}.{call.name}": call for call in all_calls()}
_PAGE: dict[str, Any] = {"limit": Limit, "before": Before, "after": After}
_REQUIRED = Argument.empty
_PREVIEW = Doc("Return only the counts; change nothing")
_CONDITION = Literal["run_failed", "dead_letters", "queue_age", "trigger_failing", "worker_lost", "budget_spent", "problem"]
_BOUNDED = frozenset({"limit", "count"})
"""Parameters that are page sizes."""
_NONE: Mapping[str, Any] = {}


def operation(
    name: str,
    operations: str | Mapping[str, str],
    doc: str = "",
    *,
    takes: str = "",
    rename: Mapping[str, str] = _NONE,
    hints: Mapping[str, Any] = _NONE,
    defaults: Mapping[str, Any] = _NONE,
    answer: Brief | None = None,
    items: Brief | None = None,
    whole: bool = False,
    changes: bool | None = None,
    ends: bool = False,
    repeatable: bool = False,
) -> Tool:
    """A tool that is one operation, or one of several by the argument `action`.

    It has the parameters of the operations, or only those that it `takes`, in this order. Where they differ from the operation's,
    `rename` has their names by those of the operation, `hints` their texts (with or without a type) and `defaults` their defaults.
    It answers the record, or its short form `answer`; of a page, `items` is the short form of the items. With `whole`, callers can
    ask for large values.
    """
    calls = {action: _CALLS[call] for action, call in ({"": operations} if isinstance(operations, str) else operations).items()}
    first = next(iter(calls.values()))
    reads = all(call.route.method == "GET" for call in calls.values())
    if reads:
        defaults = {"limit": PAGE, **defaults}
    accepted = {
        action: {rename.get(parameter.name, parameter.name): parameter for parameter in _parameters(call)}
        for action, call in calls.items()
    }
    originals = {key: parameter for parameters in accepted.values() for key, parameter in parameters.items()}
    names = takes.split() or list(originals)
    parameters = [_tuned(key, originals[key], hints, defaults, pages=reads) for key in names]
    if len(calls) > 1:
        hint = hints.get("action", Doc("The action"))
        parameters.insert(len(first.path), Parameter("action", Literal[tuple(calls)], _REQUIRED, True, hint))
    if whole:
        parameters.append(Parameter("whole", Whole, False, False, doc_of(Whole)))
    items_name = _items_field(first.returns)[0] if items else ""
    preset = {key: defaults[key] for key in names if key in defaults and defaults[key] is not _REQUIRED}

    async def perform(context: RequestContext, *, whole: bool = False, **values: Any) -> Any:
        action = values.pop("action") if len(calls) > 1 else ""
        own = accepted[action]
        arguments = {own[key].name: value for key, value in (preset | values).items() if key in own}
        if reads:
            for key in _BOUNDED & arguments.keys():
                page_size(arguments[key])
        call = calls[action]
        if call.route.creates:
            await check_inputs(context.api, f"{call.group}.{call.name}", arguments)
        result = await getattr(getattr(context.api, call.group), call.name)(**arguments)
        return _page(result, items_name, items) if items else answer.of(result, whole) if answer else result

    scopes = {call.route.scope for call in calls.values()}
    return Tool(
        name=name,
        doc=doc or first.doc,
        parameters=tuple(parameters),
        shape=_page_shape(first.returns, items) if items else answer.shape(first.returns) if answer else first.returns,
        perform=perform,
        scope=scopes.pop() if len(scopes) == 1 else Scope.READ,
        changes=not reads if changes is None else changes,
        ends=ends,
        repeatable=repeatable,
    )


def _parameters(call: Call) -> list[Parameter]:
    return parameters_of(getattr(protocol_of(call.group), call.name))


def _tuned(name: str, original: Parameter, hints: Mapping[str, Any], defaults: Mapping[str, Any], *, pages: bool) -> Parameter:
    """The parameter under this name, as the table and the rules for pages say."""
    hint, default = hints.get(name), defaults.get(name, original.default)
    if hint is None and pages and (name == "limit" or get_args(original.hint)[:1] == (str | None,)):
        hint = _PAGE.get(name)
    if isinstance(hint, Doc):
        hint = Annotated[get_args(original.hint)[0], hint]
    hint = original.hint if hint is None else hint
    return Parameter(name, hint, default, default is _REQUIRED, doc_of(hint))


def _items_field(page: type) -> tuple[str, Any]:
    """The field of a page with its records, and their type."""
    lists = {name: get_args(hint)[0] for name, hint in get_type_hints(page).items() if get_args(hint)}
    return next((name, item) for name, item in lists.items() if issubclass(item, ApiRecord))


def _page(page: Any, items_name: str, items: Brief) -> Fields:
    """A page with short items; the number of searched records is of no use to models."""
    values = {name: value for name, value in msgspec.structs.asdict(page).items() if name != "searched"}
    return {
        name: [items.of(record) for record in value] if name == items_name else to_builtins(value) for name, value in values.items()
    }


def _page_shape(page: type, items: Brief) -> Shape:
    items_name, item = _items_field(page)
    hints = {**get_type_hints(page), items_name: list[items.type(item)]}  # type: ignore[misc]
    return {name: hint for name, hint in hints.items() if name != "searched"}


OPERATIONS = (
    operation(
        "why",
        "system.why",
        "The reason for a state, in one line. Call this first when nothing happens.",
        rename={"any_id": "id"},
        hints={"id": Doc("Id of a task, run, objective, approval or external job; or name of a schedule or watcher")},
    ),
    operation("system_status", "system.status", "Status of the system and its problems."),
    operation(
        "run_list",
        "runs.list",
        "List runs of workflows and functions, newest first.",
        takes="state workflow flow search activity where limit before",
        hints={
            "state": Annotated[Sequence[RunState], Doc("Only these states", ["failed"])],
            "activity": Annotated[ActivityKind | None, Doc("Only unfinished runs with this activity", "waiting_for_approval")],
            "where": Doc("Only runs that match this query", 'tag.customer = acme and created > 2d ago and error ~ "timeout"'),
        },
        items=RUN,
    ),
    operation(
        "run_steps",
        "steps.list",
        "List the steps of a run in program order, with their states and errors.",
        takes="run_id state below blocks values limit after",
        hints={
            "state": Annotated[Sequence[StepState], Doc("Only these states; use `failed` to find failures", ["failed"])],
            "below": Doc("Only the children of this step or block (its id)"),
            "blocks": Doc("Include blocks, items and cases"),
            "values": Doc("Include params and returns"),
        },
        defaults={"blocks": False, "values": False},
        items=STEP,
    ),
    operation("run_logs", "runs.logs", defaults={"limit": 50}, items=LOG_LINE),
    operation("run_signal", "runs.signal"),
    operation("run_query", "runs.query"),
    operation(
        "run_update",
        "runs.update",
        "Send an update to a durable function and wait for its answer; repeat the call with the returned key to wait longer.",
        hints={"idempotency_key": Doc("A repeated update with this key is delivered once")},
    ),
    operation(
        "run_retry",
        "runs.retry",
        "Retry everything that failed in a run, in one commit; completed steps are not repeated.",
        answer=RUN,
    ),
    operation(
        "run_bulk",
        "runs.bulk",
        "Apply an action to the newest matching runs; a preview that only counts them, unless `dry_run` is false.",
        takes="action dry_run state workflow flow search where signal payload limit before",
        hints={
            "action": Doc("The action", "retry"),
            "dry_run": Doc("Return only the number of matching runs; change nothing"),
            "state": Annotated[Sequence[RunState], Doc("Only these states, out of those that allow the action")],
            "where": Doc("Only runs that match this query", "tag.customer = acme"),
        },
        defaults={"dry_run": True},
        ends=True,
    ),
    operation(
        "afl_manage_runner",
        {
            "pause": "runs.pause",
            "resume": "runs.resume",
            "cancel": "runs.cancel",
            "reschedule": "runs.reschedule",
            "reopen": "runs.reopen",
        },
        "Pause, resume or cancel a run, change its start, or reopen a canceled one. Canceling ends all its tasks.\n\n"
        "A canceled function with cleanup code stays running while it cleans up, for a limited time.",
        hints={
            "action": Doc("The action", "pause"),
            "reason": Doc("Reason; stored with a canceled run"),
            "force": Doc("Cancel a function without its cleanup"),
        },
        answer=RUNNER,
        ends=True,
        repeatable=True,
    ),
    operation(
        "task_enqueue",
        "tasks.enqueue",
        "Enqueue a task for a handler; when this returns, the task is durable. `task_result` waits for its result.",
    ),
    operation(
        "task_list",
        "tasks.list",
        takes="state name task_list run_id where limit before",
        hints={
            "state": Annotated[Sequence[TaskState], Doc("Only these states", ["failed"])],
            "task_list": Doc("Only this task list"),
        },
        items=TASK,
    ),
    operation(
        "task_show",
        "tasks.get",
        "One task: payload, result, error, history, and the reason for its state.",
        answer=TASK_VIEW,
        whole=True,
    ),
    operation("task_cancel", "tasks.cancel", answer=TASK, ends=True, repeatable=True),
    operation(
        "task_retry",
        "tasks.retry",
        "Requeue a failed, canceled or ignored task with new counters. For a step's task, use `afl_retry_step`.",
        answer=TASK,
    ),
    operation("task_pause", "tasks.pause", answer=TASK),
    operation("task_resume", "tasks.resume", answer=TASK),
    operation(
        "approval_list",
        "approvals.list",
        "List pending approvals, newest first, with the information needed to decide.",
        takes="state run_id every limit before",
        hints={
            "state": Annotated[
                Sequence[Literal["pending", "approved", "denied", "expired", "canceled"]],
                Doc("Only these states; default: `pending`"),
            ]
        },
        items=APPROVAL,
    ),
    operation(
        "approval_show", "approvals.get", "Show one approval: the question, its context and its state.", answer=APPROVAL, whole=True
    ),
    operation(
        "dead_letter_groups",
        "dead_letters.groups",
        "Permanently failed tasks grouped by cause, with the latest error of each.",
        items=CAUSE,
    ),
    operation(
        "dead_letter_list",
        "dead_letters.list",
        "Permanently failed tasks, latest failure first. `task_show` shows the payload and the error of one.",
        items=TASK,
    ),
    operation(
        "dead_letter_retry",
        "dead_letters.retry",
        "Requeue dead letters by `ids`, by conditions, or all; those of runs are retried with their run.\n\n"
        "Repeat with `after` until `next_after` is null.",
    ),
    operation(
        "dead_letter_discard",
        "dead_letters.discard",
        "Discard dead letters: they become canceled and keep their error. Only counts them, unless `dry_run` is false.",
        hints={"dry_run": _PREVIEW},
        defaults={"dry_run": True},
        ends=True,
        repeatable=True,
    ),
    operation(
        "list_manage",
        {"pause": "lists.pause", "resume": "lists.resume", "drain": "lists.drain"},
        "Pause a list (workers take nothing more), drain it (it refuses new tasks), or resume it from either.",
        repeatable=True,
    ),
    operation(
        "list_policy",
        "lists.set_policy",
        hints={"no_handler": Annotated[Literal["wait", "ignore"], Doc("Whether such tasks wait, or end as ignored")]},
        ends=True,
        repeatable=True,
    ),
    operation(
        "list_desired",
        "lists.desired",
        "Estimate the number of workers that a list needs, from its depth, its age and the duration of its tasks.",
        takes="task_list",
        defaults={"task_list": DEFAULT_LIST},
    ),
    operation(
        "external_job_list",
        "external_jobs.list",
        "List running external jobs, newest first.",
        hints={"every": Doc("Include ended jobs")},
        items=JOB,
    ),
    operation(
        "external_job_show",
        "external_jobs.get",
        "Show one external job: progress, kept events, and the reason for its task's state.",
        answer=JOB_VIEW,
    ),
    operation(
        "external_job_manage",
        {"poll": "external_jobs.poll_now", "cancel": "external_jobs.cancel"},
        "Poll a job now, or cancel its task and the job in the external service.",
        hints={"action": Doc("The action", "poll"), "reason": Doc("For `cancel`: stored with the task")},
        answer=JOB,
        ends=True,
        repeatable=True,
    ),
    operation(
        "function_list",
        "functions.list",
        "Durable functions by name and version, with the number of live workers and live runs of each.",
    ),
    operation(
        "function_start",
        "functions.start",
        "Start a run of a durable function; `run_outputs` waits for its result, `run_signal` sends it a signal.",
        hints={"payload": Doc("Input of the function")},
        answer=NEW_RUN,
    ),
    operation(
        "function_adopt",
        "functions.adopt",
        "Continue a run with another version of its function, whose code must fit the recorded steps; see `function_list`.",
        answer=ADOPTED_RUN,
        repeatable=True,
    ),
    operation("schedule_list", "schedules.list", items=SCHEDULE),
    operation("schedule_show", "schedules.get"),
    operation(
        "schedule_preview",
        "schedules.preview",
        "The missed ticks of a schedule that fire now, and the next ones.",
        hints={"count": Doc(f"Number of ticks, up to {PAGE_LIMIT}")},
    ),
    operation(
        "schedule_create",
        "schedules.create",
        "Create a schedule (one of `cron`, `every` and `at`) that starts one of `task`, `workflow` and `function`.",
        answer=SCHEDULE,
    ),
    operation(
        "schedule_edit",
        "schedules.edit",
        "Edit a schedule, effective immediately; omitted options stay. New times apply from now on.",
        answer=SCHEDULE,
        repeatable=True,
    ),
    operation(
        "schedule_manage",
        {"pause": "schedules.pause", "resume": "schedules.resume"},
        "Pause a schedule, or resume it; its catch-up policy applies to missed ticks.",
        answer=SCHEDULE,
        repeatable=True,
    ),
    operation("schedule_run", "schedules.run_now"),
    operation(
        "schedule_backfill",
        "schedules.backfill",
        "Start the work of past ticks that have not fired. Only lists them, unless `dry_run` is false.",
        hints={
            "start": Doc("First tick, at or after this time", "2026-01-01T00:00:00Z"),
            "end": Doc("Last tick, at or before this time", "2026-01-31T00:00:00Z"),
            "dry_run": Doc("Return only the ticks; start nothing"),
        },
        defaults={"dry_run": True},
    ),
    operation(
        "schedule_delete", "schedules.remove", "Delete a schedule permanently; started work continues.", answer=SCHEDULE, ends=True
    ),
    operation("watcher_list", "watchers.list", items=WATCHER),
    operation("watcher_show", "watchers.get", "One watcher: its source, target, last changes, and its error, if any."),
    operation("watcher_seen", "watchers.seen", takes="name limit after"),
    operation(
        "watcher_create",
        "watchers.create",
        "Create a watcher of one of `directory`, `file` and `url` that starts one of `task`, `workflow` and `function`.\n\n"
        "Without the scope `admin`, only sources that the server allows can be watched.",
        answer=WATCHER,
    ),
    operation(
        "watcher_edit",
        "watchers.edit",
        "Edit a watcher, effective immediately; omitted options stay. To change the source, delete it and create another.",
        answer=WATCHER,
        repeatable=True,
    ),
    operation(
        "watcher_manage",
        {"pause": "watchers.pause", "resume": "watchers.resume", "look": "watchers.look"},
        "Pause or resume a watcher, or scan now (`look`), once the cause of an error is gone.",
        answer=WATCHER,
        repeatable=True,
    ),
    operation(
        "watcher_delete",
        "watchers.remove",
        "Delete a watcher permanently; started work continues, and the name becomes free.",
        answer=WATCHER,
        ends=True,
    ),
    operation(
        "objective_list",
        "objectives.list",
        hints={"status": Annotated[Sequence[StatusWord], Doc("Only these statuses", ["TODO"])]},
        items=OBJECTIVE,
    ),
    operation(
        "objective_show",
        "objectives.get",
        "Show one objective: its status with the reason, and its last workorders with outputs and judgements.",
        answer=OBJECTIVE_VIEW,
    ),
    operation("objective_add", "objectives.add", answer=OBJECTIVE),
    operation(
        "objective_edit",
        "objectives.edit",
        "Edit an objective that is not DONE; omitted fields stay. A workorder in progress keeps its snapshot.",
        takes="objective_id title acceptance_criteria importance urgency",
        answer=OBJECTIVE,
        repeatable=True,
    ),
    operation(
        "objective_manage",
        {"approve": "objectives.approve", "block": "objectives.block", "unblock": "objectives.unblock"},
        "Approve a NEW objective, block a TODO one, or resolve all blockers of one.\n\n"
        "`approve` needs the scope `approve`; `block` and `unblock` need `operate`.",
        hints={
            "action": Doc("The action", "approve"),
            "reason": Doc("For `block`: reason; it stays blocked until somebody unblocks it"),
            "on": Doc("For `block`: id of the objective that it waits for"),
        },
        answer=OBJECTIVE,
    ),
    operation("metrics_show", "metrics.series", "Finished and failed work, durations, waits, depths and costs over time."),
    operation("event_list", "events.list", "State changes of tasks, runs and all other entities, with their actors."),
    operation("audit_list", "events.audit", "Changes by operators and tokens, newest first, with values before and after."),
    operation(
        "trace_show",
        "traces.get",
        "Everything that followed from one start, across runs, tasks, approvals and external jobs, as one timeline.",
        rename={"any_id": "id"},
        takes="id group after limit",
        hints={
            "id": Doc("Id of any run, task, step, approval or external job in it, or a trace id"),
            "group": Doc("List the members of this group entry"),
        },
        defaults={"limit": 100},
    ),
    operation(
        "effect_list",
        "effects.list",
        "List attempts at effects whose outcome is unknown, newest first: the effect may or may not have happened.",
    ),
    operation("alert_show", "alerts.get"),
    operation(
        "alert_add",
        "alerts.create",
        "Add a rule that sends a message once per cause, and another when the cause is gone.",
        takes="name when to workflow lasts",
        hints={
            "name": Doc("A name for the rule", "imports"),
            "when": Annotated[_CONDITION, Doc("The condition; `problem`: any problem that system_status names")],
            "to": Annotated[
                str, Doc("An http or https URL, or the name of an environment variable of the workers (TREADLE_ALERT_...)")
            ],
            "workflow": Doc("For run_failed and budget_spent: only this workflow or glob"),
            "lasts": Doc("Seconds that the cause must last before the alert fires"),
        },
        defaults={"when": _REQUIRED, "to": _REQUIRED},
    ),
    operation(
        "alert_test",
        "alerts.test",
        "Send a test message of an alert rule through a worker, and return the response.",
        hints={"name": Doc("The rule's name", "imports")},
    ),
    operation(
        "alert_silence",
        "alerts.silence",
        "Send no messages of a rule for some time.",
        hints={"lasting": Doc("Seconds; 0 ends the silence")},
        repeatable=True,
    ),
    operation("alert_remove", "alerts.remove", "Remove an alert rule and end its alerts without a message.", ends=True),
    operation("run_rerun", "runs.rerun", takes="run_id inputs", answer=NEW_RUN),
    operation("run_fork_preview", "runs.preview_fork"),
    operation(
        "run_fork",
        "runs.fork",
        "Start a new run that repeats a step, such as one with a wrong result, and its dependents; it keeps all other results.",
        answer=NEW_RUN,
        ends=True,
    ),
    operation(
        "external_job_rebuild",
        "external_jobs.rebuild",
        "Rebuild records of external jobs from their events, one page per call.",
        takes="before",
        hints={"before": Doc("`next_before` of the previous call")},
        repeatable=True,
    ),
    operation("store_verify", "store.verify", takes="after", changes=False),
    operation(
        "store_keep",
        "store.keep",
        "Set how long finished work of a list is kept.",
        hints={
            "task_list": Doc("The task list's name"),
            "completed": Doc("Seconds for completed, canceled and ignored work; null: the default"),
            "failed": Doc("Seconds for failed work; null: the default"),
        },
        ends=True,
        repeatable=True,
    ),
    operation(
        "store_prune",
        "store.prune",
        "Remove finished work past its retention, one step per call; only counts it, unless `dry_run` is false.",
        hints={"older_than": Doc("Age in seconds instead of the default rules"), "dry_run": _PREVIEW},
        defaults={"dry_run": True},
        ends=True,
    ),
)
BY_NAME = {tool.name: tool for tool in OPERATIONS}
