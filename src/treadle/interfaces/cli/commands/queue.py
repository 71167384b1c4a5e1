"""`treadle enqueue`, `treadle lists limit` and `treadle dlq ...`: tasks of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from click.exceptions import Exit

from treadle.api.dead_letters import BATCH, GROUP, LETTER, DeadLetterConditions
from treadle.api.facade import Api
from treadle.api.lists import LIMIT, LIST, LimitChange, TaskLists, TaskListStatus
from treadle.api.options import EnqueueOptions
from treadle.api.tasks import TaskCreated, TaskResult, TaskSpec
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.calls import until_end, wait_for_end
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import details, plain, pretty, table, together
from treadle.interfaces.cli.messages import FAILED, print_error, print_warning
from treadle.interfaces.cli.process import arm_crash
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import Params, Payload, wait_limit
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.interfaces.typed_inputs import check_inputs
from treadle.model.errors import Forbidden, InvalidInput, NotFound, TaskFailed
from treadle.model.lists import check_count, check_rate, parse_rate
from treadle.model.names import DEFAULT_LIST
from treadle.model.states import TaskState

if TYPE_CHECKING:
    from treadle.api.dead_letters import DeadLettersChanged


async def enqueue(
    session: CommandSession,
    name: Annotated[str, argument(help="The handler's name, e.g. billing.Charge")],
    payload: Payload = None,
    parameters: Params = None,
    wait: Annotated[bool, option("--wait", help="Wait for the result and print it; exit 1 if the task failed")] = False,
    wait_for: Annotated[str | None, option(metavar="DURATION", help="Maximum time to wait; exit 6 after it")] = None,
    **options: Unpack[EnqueueOptions],
) -> None:
    """Enqueue a task; when this returns, it is durable.

    A DURATION is 90, 1.5s, 5m, 2h or 1d; a TIME is 2027-01-15T09:00 in UTC, or has its own offset.
    """
    arm_crash(session.settings.crash_at)
    value = parse_payload(payload, parameters or ())
    limit = wait_limit(wait_for)
    spec = TaskSpec(name=name, payload=value, **options)
    async with session.api(migrate=True, first=lambda engine: engine.kernel.queue.check([spec])) as api:
        await check_inputs(api, "tasks.enqueue", {"name": name, "payload": value})
        task = await api.tasks.enqueue(name, value, **options)
        if wait or limit is not None:
            await _wait(session, api, task, limit)
        else:
            message = f"Enqueued {name} as {task.id}" if task.created else f"A task already has this key: {task.id}"
            session.show(task, lambda: plain(message))
            if task.created and not session.json:
                with suppress(Forbidden):  # a token may allow only enqueueing
                    await _warn(api, task)


async def _warn(api: Api, task: TaskCreated) -> None:
    """Warn if no live worker can take the task: its name may be misspelled."""
    reason = await api.tasks.why(task.id)
    if reason.code == "no_worker":
        print_warning(f"task {task.id} waits: {reason.text}")


async def _wait(session: CommandSession, api: Api, task: TaskCreated, limit: float | None) -> None:
    """Print only the result, so that it can be piped; errors and warnings go to stderr."""
    if not session.json:
        await _warn(api, task)
    try:
        ended = await wait_for_end(lambda part: api.tasks.result(task.id, wait_for=part), limit, "Task", task.id)
    except asyncio.CancelledError:
        print_warning(f"task {task.id} continues; `treadle why {task.id}` shows its state")
        raise
    summary = {"id": task.id, "name": task.name, "created": task.created, "state": ended.state, "result": ended.result}
    if ended.state == TaskState.COMPLETED:
        session.show(summary, lambda: pretty(ended.result))
        return
    if session.json:
        session.show(summary | {"error": ended.error}, lambda: plain(""))
    print_error(f"task_{ended.state}", _how(ended), as_json=session.json)
    raise Exit(FAILED)


def _how(ended: TaskResult) -> str:
    """Describe the end of a task that did not complete."""
    message = (ended.error or {}).get("message", "")
    match ended.state:
        case TaskState.FAILED:
            return str(TaskFailed(ended.id, ended.error_code or "failed", message))
        case TaskState.CANCELED:
            return f"Task {ended.id} was canceled: {message}"
        case _:
            return f"Task {ended.id} ended as {ended.state}."


_REMOVABLE = ("max", "rate", "backlog")


async def limit(
    session: CommandSession,
    key: Annotated[str | None, option(metavar="KEY", help="Tasks with this limit key, e.g. customer:42")] = None,
    handler: Annotated[str | None, option(metavar="NAME", help="Tasks of this handler")] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="With --rate and --backlog: in this list")] = DEFAULT_LIST,
    most: Annotated[
        int | None, option("--max", metavar="N", help="Maximum number of concurrently running tasks, over all workers")
    ] = None,
    rate: Annotated[str | None, option(metavar="R", help="Maximum number of tasks started per second, or 100/min, 5/hour")] = None,
    burst: Annotated[int | None, option(metavar="N", help="Maximum burst size (default: one second's worth of --rate)")] = None,
    backlog: Annotated[int | None, option(metavar="N", help="Reject new tasks while this many are ready")] = None,
    none: Annotated[list[str] | None, option(metavar="max|rate|backlog", help="Remove a limit; repeatable")] = None,
) -> None:
    """Limit concurrency, rate or backlog of a handler, or concurrency and rate of a limit key."""
    away = frozenset(none or ())
    per_second = None if rate is None else parse_rate(rate)
    _check(key, handler, away, {"max": most, "rate": per_second if rate is not None else burst, "backlog": backlog})
    check_rate(per_second, burst)
    for count, what in ((most, "--max"), (backlog, "--backlog")):
        if count is not None:
            check_count(count, what)
    async with session.api() as api:
        await LimitChange(key, handler, task_list, most, per_second, burst, backlog, away).apply(api.lists)
        await show_lists(session, api, await api.lists.list())


def _check(key: str | None, handler: str | None, away: frozenset[str], limits: dict[str, float | None]) -> None:
    """Reject contradictory options before anything is changed."""
    if (key is None) == (handler is None):
        raise InvalidInput("Give either --key KEY or --handler NAME.")
    if unknown := away.difference(_REMOVABLE):
        raise InvalidInput(f"--none takes {', '.join(_REMOVABLE)}, not {min(unknown)!r}.")
    wanted = away.union(name for name, value in limits.items() if value is not None)
    if not wanted:
        raise InvalidInput("Give --max N, --rate R, --backlog N, or --none max|rate|backlog.")
    if both := [name for name in sorted(away) if limits[name] is not None]:
        raise InvalidInput(f"Give either a {both[0]} or --none {both[0]}, not both.")
    if key is not None and "backlog" in wanted:
        raise InvalidInput("A key takes --max and --rate; a backlog belongs to a --handler in a --list.")


async def show_lists(session: CommandSession, api: Api, result: TaskLists | TaskListStatus) -> None:
    """Show task lists with their tasks by handler, and all limits of keys."""
    lists = [result] if isinstance(result, TaskListStatus) else result.lists
    limits = (await api.lists.limits()).limits
    now = (await api.system.time()).now
    session.show(
        {"lists": to_builtins(lists), "limits": to_builtins(limits)},
        lambda: together(*(details(LIST, status, now) for status in lists), *([table(LIMIT, limits, now)] if limits else [])),
    )


Ids = Annotated[list[str] | None, argument(metavar="[ID]...", help="These tasks, instead of a filter")]
Everything = Annotated[bool, option("--all", help="Confirm that all dead letters of the namespace are meant")]
DryRun = Annotated[bool, option("--dry-run", help="Change nothing; print the number")]
_LATEST = 10
"""Dead letters that are listed of one group."""


async def show(  # type: ignore[misc]  # its fingerprint is an argument, not an option
    session: CommandSession,
    fingerprint: Annotated[str | None, argument(metavar="[FINGERPRINT]", help="One group, with its last error")] = None,
    limit: Annotated[int, option(help="Maximum number of groups, up to 1000")] = 50,
    **conditions: Unpack[DeadLetterConditions],
) -> None:
    """Show dead letters grouped by cause, largest group first; or one group in full."""
    if fingerprint is not None:
        conditions["fingerprint"] = fingerprint
    async with session.api() as api:
        groups = (await api.dead_letters.groups(**conditions, limit=limit)).groups
        if fingerprint is not None and not groups:
            raise NotFound(
                f"No dead letter has the fingerprint {fingerprint}; `treadle dlq show` lists the fingerprints.",
                code="nothing_matches",
            )
        letters = [] if fingerprint is None else (await api.dead_letters.list(**conditions, limit=_LATEST)).letters
        now = (await api.system.time()).now
    if fingerprint is None:
        session.show({"groups": to_builtins(groups)}, lambda: table(GROUP, groups, now))
        return
    value = {"groups": to_builtins(groups), "letters": to_builtins(letters)}
    session.show(value, lambda: together(*(details(GROUP, group, now) for group in groups), "", table(LETTER, letters, now)))


async def retry(
    session: CommandSession,
    ids: Ids = None,
    payload: Annotated[str | None, option(metavar="JSON", help="A new payload for all of them: a JSON object, @file or -")] = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    **conditions: Unpack[DeadLetterConditions],
) -> None:
    """Retry dead letters, by id or by filter, in batches. For those of runs, everything that failed in the run is retried."""
    edited, batches = parse_payload(payload), _batches(ids, everything, dry_run, conditions)
    async with session.api() as api:
        await _change(session, "retried", partial(api.dead_letters.retry, payload=edited), batches)


async def discard(
    session: CommandSession,
    ids: Ids = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    **conditions: Unpack[DeadLetterConditions],
) -> None:
    """Discard dead letters, by id or by filter: they end as canceled and keep their error."""
    batches = _batches(ids, everything, dry_run, conditions)
    async with session.api() as api:
        await _change(session, "discarded", api.dead_letters.discard, batches)


def _batches(ids: list[str] | None, everything: bool, dry_run: bool, conditions: DeadLetterConditions) -> list[dict[str, Any]]:
    """The arguments of each API call; bad input is rejected before the store is opened."""
    if sum((bool(ids), bool(conditions), everything)) != 1:
        raise InvalidInput(
            "Select dead letters by id, by a filter (--name, --list, --code, --fingerprint, --older-than, --newer-than), or --all."
        )
    if ids:
        once = list(dict.fromkeys(ids))
        return [{"ids": once[at : at + BATCH], "dry_run": dry_run} for at in range(0, len(once), BATCH)]
    return [{**conditions, "everything": everything, "dry_run": dry_run}]


async def _change(
    session: CommandSession, word: str, call: Callable[..., Awaitable[DeadLettersChanged]], batches: Sequence[dict[str, Any]]
) -> None:
    """Call it for each batch until nothing is left, and show the totals."""

    def describe(total: DeadLettersChanged) -> str:
        return f"{total.done + total.passed_over} of {total.matched} {word}"

    parts = [await until_end(session, call, describe, **batch) for batch in batches]
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("done", "of_runs", "passed_over")}
    dry_run = parts[0].dry_run
    lines = [f"{sums['done']} {'would be ' if dry_run else ''}{word}"]
    if sums["of_runs"]:
        lines.append(f"{sums['of_runs']} of them with their runs")
    if sums["passed_over"]:
        lines.append(f"{sums['passed_over']} skipped: changed meanwhile, or of runs that cannot be retried so")
    value = {"matched": max(part.matched for part in parts), **sums, "dry_run": dry_run}
    session.show(value, lambda: plain("; ".join(lines)))
