"""Why a task waits: one reason per task, from the state that a read of the store shows. Pure.

A handler that held the interpreter lock of its worker kept everything else in that process from running: the worker stores the last
such hold with its row in `servers`, from where reasons, the status and the handler's page take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from treadle.kernel.queue.kinds import EXTENSION_KINDS
from treadle.model.clock import as_text, span
from treadle.model.errors import UnreadableValue
from treadle.model.lists import IGNORE, WAIT, Limit, QueueRule
from treadle.model.names import DEFAULT_LIST, ENGINE_LIST, EXTERNAL_CANCEL, FUNCTION, HANDLER, PLAN, QueueKey, handles, short_name
from treadle.model.outcomes import TYPE_CHANGED
from treadle.model.states import BlockReason, TaskState
from treadle.model.stored import Stored, read
from treadle.model.tasks import LIVE_SERVER_STATES, LOST_AFTER, Server, Task, evidence_text, noted_steps
from treadle.model.text import suggestion
from treadle.model.values import decode_error, decode_or_error, decode_shown

CODE = "interpreter_held"
STEPS_NAMED = 3
"""Number of steps in progress that a reason names."""
SHOWN_FOR = 3_600_000
"""Milliseconds for which a hold is shown."""


class InterpreterHold(Stored, frozen=True, kw_only=True):
    """A hold that the lease sidecar noticed."""

    code: str = CODE
    handler: str | None
    """None: it is not known."""
    seconds: float
    at: int
    """When it ended."""
    message: str


def hold_text(handler: str | None, seconds: float) -> str:
    """Return the line for people, with the fix."""
    who = "unknown code" if handler is None else f"handler {handler}"
    fix = "" if handler is None else '; run it in a process of its own: `isolation="process"`'
    return f"{who} held the Python interpreter for {seconds:.0f} s, so that nothing else in its worker ran{fix}"


def find_hold(server: Server | None, now: int) -> InterpreterHold | None:
    """Return the last hold in that server, unless it was long ago."""
    if server is None or server.error is None or CODE not in server.error:
        return None
    try:
        hold = read(InterpreterHold, server.error)
    except UnreadableValue:
        return None
    return hold if hold.code == CODE and now - hold.at <= SHOWN_FOR else None


OPEN_SERVICE = "http --open"
"""The service name of a server that is registered because its callers need no token; it has no worker."""


class Reason(msgspec.Struct, frozen=True):
    """A stable code and one line for people."""

    code: str
    text: str


class WaitContext(msgspec.Struct, frozen=True):
    """The reason beyond the task itself: its pause, the settings and limits of its queue, and the record that it awaits."""

    rule: QueueRule | None = None
    no_handler: str = WAIT
    limit: Limit | None = None
    holders: Sequence[Task] = ()
    """Some of the tasks admitted under the task's limit key."""
    waits_for: Reason | None = None
    """A more precise reason for a task that awaits an approval or external job."""
    pause: str | None = None
    """The actor and the reason of the pause of a paused task."""


def shown_server_state(server: Server, now: int) -> str:
    """The server's state, or `lost` if it should be alive but missed three heartbeats, or others found that it is dead."""
    if server.evidence is not None:
        return "lost"
    alive = server.state in LIVE_SERVER_STATES
    return "lost" if alive and now - server.heartbeat_at > LOST_AFTER * server.heartbeat_every_for else server.state


def shown_servers(servers: Sequence[Server], now: int) -> list[Server]:
    """The servers, in the states as shown."""
    return [replace(server, state=shown_server_state(server, now)) for server in servers]


def releases_of(servers: Iterable[Server]) -> dict[str | None, str]:
    """The releases of the application by the ids of the servers that have one."""
    return {server.id: server.release for server in servers if server.release}


def is_own(task: Task | QueueKey) -> bool:
    """Whether it is one of the engine's own tasks, such as pruning, schedules and watchers."""
    return task.kind != HANDLER and task.task_list == ENGINE_LIST


def serves(server: Server, task: Task | QueueKey) -> bool:
    """Whether the server's handlers and task lists cover the task or queue; every worker has the engine's own kinds."""
    if server.service_name == OPEN_SERVICE:
        return False
    if task.kind == FUNCTION:
        own = task.name.startswith(f"{PLAN}@")
        return (own or task.name in server.handlers) and task.task_list in server.task_lists
    covered = task.kind != HANDLER or handles(server.handlers, task.name)
    if (kind := EXTENSION_KINDS.get(task.kind)) is not None:
        covered = kind.serves(server, task.name)
    if isinstance(task, Task) and task.kind in (HANDLER, EXTERNAL_CANCEL):
        covered = covered and _serves_scope(server, task)
    return covered and (is_own(task) or task.task_list in server.task_lists)


def _serves_scope(server: Server, task: Task) -> bool:
    """Whether the server has the specialist of the task's scope (`NAME@SCOPE`, or `NAME@` for all), if it has any of that name."""
    offers = [handler.rpartition("@") for handler in server.handlers]
    scopes = {scope for name, _, scope in offers if name in (task.name, short_name(task.name))}
    functions_only = all(scope.isdigit() and scope != task.scope for scope in scopes)  # NAME@VERSION
    return functions_only or not scopes.isdisjoint({"", task.scope or ""})


def why(task: Task, servers: Sequence[Server], now: int, context: WaitContext | None = None) -> Reason:
    """The most decisive reason."""
    context = context or WaitContext()
    if task.finished:
        return _why_finished(task)
    if task.blocked_by & BlockReason.TASK_PAUSED:
        running = "" if task.owner_id is None else "; its attempt in progress may end"
        return Reason("paused", f"paused{context.pause or ''}{running}; resume it with `treadle tasks resume {task.id}`")
    if task.blocked_by & BlockReason.RUN_PAUSED:
        return Reason("run_paused", f"its run {task.run_id} is paused; resume it with `treadle runs resume {task.run_id}`")
    list_paused = Reason(
        "list_paused", f"its task list {task.task_list} is paused; resume it with `treadle lists resume {task.task_list}`"
    )
    if task.blocked_by & BlockReason.LIST_PAUSED:
        return list_paused
    if task.owner_id is not None:
        return _why_running(task, servers, now)
    if context.waits_for is not None:
        return context.waits_for
    if task.wake_at is not None:
        return _why_waiting(task, now)
    if context.rule is not None and context.rule.paused:
        return list_paused
    if task.blocked_by & BlockReason.OVER_LIMIT:
        return _why_over_limit(task, context, now)
    live = [server for server in servers if shown_server_state(server, now) == "running" and serves(server, task)]
    if not live:
        named = task.kind in (HANDLER, FUNCTION)
        wanted = f"no live worker serves {task.name} in list" if named else "no live worker serves list"
        task_list = "" if task.task_list == DEFAULT_LIST else f" --list {task.task_list}"
        what = f"start one with `treadle worker --handlers MODULE{task_list}`"
        if task.scope is not None and task.kind in (HANDLER, EXTERNAL_CANCEL):
            wanted = f"no live worker serves {task.name} in the scope {task.scope} in list"
        if (kind := EXTENSION_KINDS.get(task.kind)) is not None:
            wanted, what = f"{kind.missing_text(task)} in list", kind.start_with
        if task.kind == HANDLER and context.no_handler == IGNORE:
            what = "the list ignores tasks without a handler: one of its workers will end it"
        if task.kind == FUNCTION:
            what = f"start one with that version, or adopt the run: `treadle functions adopt {task.run_id} --version N`"
        return Reason("no_worker", f"{wanted} {task.task_list}{_elsewhere(task, servers, now)}; {what}")
    if context.rule is not None and (token_for := context.rule.next_token_for(now)):
        until = as_text(now + token_for)
        limit = f"`treadle lists limit --handler {task.name} --list {task.task_list} --rate R`"
        rate = f"{context.rule.rate_text} of {task.name} in list {task.task_list}"
        return Reason("rate", f"rate until {until}: {rate}; {limit} raises it")
    return Reason("ready", f"ready; it is next; {len(live)} live worker(s) serve it")


def _elsewhere(task: Task, servers: Sequence[Server], now: int) -> str:
    """The lists whose live workers have the handler; else a similar name that live workers have."""
    if task.kind != HANDLER:
        return ""
    live = [server for server in servers if shown_server_state(server, now) == "running"]
    serving = [server for server in live if handles(server.handlers, task.name)]
    if lists := sorted({name for server in serving if _serves_scope(server, task) for name in server.task_lists}):
        return f", but in {', '.join(lists)}"
    return "" if serving else suggestion(task.name, {name for server in live for name in server.handlers})


def _why_finished(task: Task) -> Reason:
    error = decode_error(task.error)
    tail = f": {error.get('message', '')}" if error else ""
    remedy = ""
    if task.state == TaskState.FAILED and task.run_id is not None:
        remedy = f"; retry it with `treadle runs retry {task.run_id}`"
    elif task.state == TaskState.FAILED and task.kind == HANDLER:
        retry = f"treadle tasks retry {task.id}"
        remedy = f"; retry it with `{retry}`, or with another payload: `{retry} --payload JSON`"
    ended = f"{task.state} at {as_text(task.finished_at)} by {task.actor or task.owner_id}"
    return Reason(f"finished_{task.state}", f"{ended}{tail}{remedy}")


def _why_over_limit(task: Task, context: WaitContext, now: int) -> Reason:
    limit = context.limit
    if limit is None:
        return Reason("over_limit", f"the limit of {task.limit_key or task.name} is used up by other tasks")
    next_for = limit.next_start_for(now)
    if next_for is not None and limit.rate is not None:
        next_at = "due now" if next_for == 0 else f"expected at {as_text(now + next_for)}"
        waits = f"waits for the rate of {limit.key} ({limit.text}); {limit.waiting} wait; the next start is {next_at}"
        return Reason("rate", f"{waits}; `treadle lists limit --key {limit.key} --rate R` raises it")
    others = limit.admitted - len(context.holders)
    held = ", ".join(_holder(task, now) for task in context.holders) + (f" and {others} more" if others > 0 else "")
    raised = f"`treadle lists limit --key {limit.key} --max N` raises it"
    oldest = min((task for task in context.holders if _may_hang(task, now)), key=_began_at, default=None)
    if oldest is not None:
        raised += f"; {_ended(oldest)}"
    return Reason("over_limit", f"the limit of {limit.max_running} on {limit.key} is held by {held or 'no task now'}; {raised}")


HANGS_AFTER = 10_000
"""Milliseconds after which the reason of a running task says how to end it."""


def _began_at(task: Task) -> int:
    return task.created_at if task.claimed_at is None else task.claimed_at


def _holder(task: Task, now: int) -> str:
    return task.id if task.owner_id is None else f"{task.id} (running for {span(max(now - _began_at(task), 0))})"


def _may_hang(task: Task, now: int) -> bool:
    return task.owner_id is not None and task.kind == HANDLER and now - _began_at(task) >= HANGS_AFTER


def _ended(task: Task) -> str:
    return f"if it hangs, `treadle tasks cancel {task.id}` ends it"


def _why_running(task: Task, servers: Sequence[Server], now: int) -> Reason:
    owner = next((server for server in servers if server.id == task.owner_id), None)
    place = f"owner {task.owner_id}"
    if owner is not None:
        place = f"{owner.host} pid {owner.pid}" if owner.pid else f"the remote worker {owner.name} ({owner.host})"
    activity = "being polled" if task.state == TaskState.AWAITING_EXTERNAL else "running"
    lease = f"lease until {as_text(task.wake_at)}"
    if owner is not None and shown_server_state(owner, now) == "lost":
        if owner.evidence is not None:
            evidence = evidence_text(owner.evidence)
            return Reason("owner_lost", f"{activity} on {place}, which is dead ({evidence}); a worker takes it over now")
        return Reason("owner_lost", f"{activity} on {place}, which has missed its heartbeats; taken over when its {lease} ends")
    reported = decode_or_error(task.progress)
    progress = f", {reported['message']}" if reported.get("message") else ""
    hold = find_hold(owner, now)
    held = "" if hold is None else f"; {hold.message}"
    age = f" for {span(max(now - _began_at(task), 0))}"
    ended = f"; {_ended(task)}" if _may_hang(task, now) and task.state != TaskState.AWAITING_EXTERNAL else ""
    steps = _executing(task, now)
    return Reason("running", f"{activity} on {place}{age}, attempt {task.attempt}, {lease}{steps}{progress}{held}{ended}")


def _executing(task: Task, now: int) -> str:
    """The steps that the task's function executes, as far as they take long enough to be noted."""
    steps = sorted(noted_steps(task), key=lambda step: step.get("began_at", now))
    named = [f"{step.get('name')} for {span(max(now - step.get('began_at', now), 0))}" for step in steps[:STEPS_NAMED]]
    more = f" and {len(steps) - STEPS_NAMED} more" if len(steps) > STEPS_NAMED else ""
    return f", in {'the steps' if steps[1:] else 'the step'} {', '.join(named)}{more}" if steps else ""


def _why_waiting(task: Task, now: int) -> Reason:
    at = as_text(task.wake_at)
    due = " (due now; a worker will wake it within a second)" if task.wake_at is not None and task.wake_at <= now else ""
    if task.state == TaskState.AWAITING_EXTERNAL:
        return Reason("next_poll", f"an external job is running; next poll at {at}{due}")
    if task.state == TaskState.AWAITING_APPROVAL:
        return Reason("approval", f"waits for an approval until {at}{due}")
    if task.kind == FUNCTION and task.error:
        error = decode_error(task.error)
        message = error.get("message", "")
        if error.get("code") == TYPE_CHANGED:
            return Reason(TYPE_CHANGED, f"{message}; next try at {at}{due}")
        adopt = f"`treadle functions adopt {task.run_id} --version N` continues it with a version that matches"
        return Reason(
            "nondeterministic",
            f"{message}; next try at {at}{due}, which succeeds once the code matches the recorded history; {adopt}",
        )
    if task.kind == FUNCTION and (task.claim_version > 0 or task.activity is not None):
        note = None if task.activity is None else decode_shown(task.checkpoint)  # an older version requeues it without a note
        due_at = None if note is None else note.get("wake_at")
        timed = at if note is None else as_text(due_at) if isinstance(due_at, int) else None
        check = f"; next check at {timed}{due}" if timed else ""
        return Reason("suspended", f"suspended; `treadle why {task.run_id}` reports the reason{check}")
    if task.failures and task.error:
        message = decode_error(task.error).get("message", "")
        return Reason("backoff", f"failed {task.failures} time(s), next attempt at {at}{due}: {message}")
    return Reason("delayed", f"not due before {at}{due}")
