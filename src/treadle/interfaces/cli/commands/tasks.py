"""`treadle tasks ...` and `treadle why`: show and operate tasks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from treadle.api.view import short
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.input.values import Where
from treadle.interfaces.cli.input.values import payload as parse_payload
from treadle.interfaces.cli.output.format import ago, facts, grid, line, ms, plain, pretty, state, tag_line, when
from treadle.interfaces.cli.session import Session
from treadle.model.clock import as_text, span
from treadle.model.values import encode

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType
    from rich.text import Text

    from treadle.api.tasks import MoveRecord, Task, TaskDetail

TaskId = Annotated[str, argument(metavar="ID", help="The task's id")]

_PAGE = 50


async def list_tasks(
    session: Session,
    states: Annotated[list[str] | None, option("--state", metavar="STATE", help="Only these states; repeatable")] = None,
    name: Annotated[str | None, option(help="Only of this handler")] = None,
    task_list: Annotated[str | None, option("--list", metavar="LIST", help="Only of this task list")] = None,
    every: Annotated[bool, option("--all", help="Also list internal tasks: scripts, run advances, pruning")] = False,
    where: Where = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="Next page: only tasks older than this one")] = None,
) -> None:
    """List tasks of handlers, newest first."""
    async with session.api() as api:
        page = await api.tasks.list(
            state=states or (), name=name, task_list=task_list, every=every, where=where, limit=limit, before=before
        )
        now = (await api.system.time()).now
    empty = "No tasks."
    if page.searched is not None:
        empty = "No tasks match." if page.next_before is None else f"None of the {page.searched:,} tasks searched so far match."
    session.show_page(page, page.tasks, empty, lambda: _table(page.tasks, now), before=page.next_before)


def _table(tasks: list[Task], now: datetime) -> RenderableType:
    tagged = any(task.tags for task in tasks)
    table = grid("id", "name", "state", "?>attempt", "created", *(["?tags"] if tagged else []), "?note")
    for task in tasks:
        table.add_row(
            task.id,
            plain(task.name),
            state(task.state),
            str(task.attempt),
            ago(task.created_at, now),
            *([plain(short(tag_line(task.tags), 40))] if tagged else []),
            plain(_note(task, now)),
        )
    return table


def _note(task: Task, now: datetime) -> str:
    """The most important fact about the task, in a few words."""
    error, progress = task.error or {}, task.progress or {}
    if task.finished_at is not None:
        return short(error["message"]) if error.get("message") else f"finished {ago(task.finished_at, now)}"
    if task.owner_id is not None and progress:
        fraction = f"{progress['fraction']:.0%} " if "fraction" in progress else ""
        return short(f"{fraction}{progress.get('message', '')}")
    due = task.owner_id is None and task.wake_at is not None and task.state != "awaiting_approval"
    waits = f"due {ago(task.wake_at, now)}" if due else ""
    return short("; ".join(part for part in (waits, error.get("message", "")) if part))


async def show(session: Session, task_id: TaskId) -> None:
    """Show one task: facts, its three clocks, history, log lines, payload, result."""
    async with session.api() as api:
        task = await api.tasks.get(task_id)
        now = (await api.system.time()).now
    session.show(task, lambda: show_task(task, now))


async def why(
    session: Session,
    any_id: Annotated[
        str,
        argument(
            metavar="ID", help="The id of a task, run, objective, approval or external job, or the name of a schedule or watcher"
        ),
    ],
) -> None:
    """Explain the state of a task, a run or an objective in one line; for an approval or an external job, that of its task."""
    async with session.api() as api:
        found = await api.system.why(any_id)
    session.show(found, lambda: plain(f"{found.name} {found.state}: {found.text}"))


async def cancel(
    session: Session,
    task_id: TaskId,
    reason: Annotated[str | None, option(help="Reason, stored with the task")] = None,
) -> None:
    """Cancel a task, even if a worker holds it; repeating this is not an error."""
    async with session.api() as api:
        _done(session, await api.tasks.cancel(task_id, reason=reason))


async def retry(
    session: Session,
    task_id: TaskId,
    payload: Annotated[str | None, option(metavar="JSON", help="A new payload: a JSON object, @file or -")] = None,
) -> None:
    """Retry a failed, canceled or ignored task, with its counters reset."""
    value = parse_payload(payload)
    async with session.api() as api:
        _done(session, await api.tasks.retry(task_id, payload=value))


async def pause(
    session: Session,
    task_id: TaskId,
    reason: Annotated[str | None, option(help="Shown by `treadle why`")] = None,
    interrupt: Annotated[
        bool, option("--interrupt", help="Stop an attempt in progress at its next safe point; it is repeated after the resume")
    ] = False,
) -> None:
    """Pause a task. An attempt in progress ends normally, unless --interrupt is given."""
    async with session.api() as api:
        _done(session, await api.tasks.pause(task_id, reason=reason, interrupt=interrupt))


async def resume(session: Session, task_id: TaskId) -> None:
    """Resume a paused task."""
    async with session.api() as api:
        _done(session, await api.tasks.resume(task_id))


def _done(session: Session, task: Task) -> None:
    session.show(task, lambda: plain(f"{task.name} {task.id} is {task.state} now"))


def show_task(task: TaskDetail, now: datetime) -> RenderableType:
    """One task in full: facts, clocks, values, history."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(plain(task.name, "bold"), "  ", state(task.state), "  ", plain(task.id, "dim"))
    parts: list[RenderableType] = [
        head,
        plain(f"  {task.why.text}"),
        "",
        facts(_facts(task, now)),
        _title("Clocks"),
        facts(_clocks(task, now)),
    ]
    parts += [_title("Payload"), pretty(task.payload)]
    if task.result is not None:
        parts += [_title("Result"), pretty(task.result)]
    if task.checkpoint is not None:
        parts += [_title("Checkpoint"), pretty(task.checkpoint)]
    if task.error is not None:
        parts += [_title("Error"), *_error(task)]
    if task.moves:
        parts += [_title("Moves"), _moves(task.moves)]
    if task.lines:
        parts += [_title("Lines"), *(line(each) for each in task.lines)]
    return Group(*parts)


def _title(text: str) -> Text:
    return plain(f"\n{text}", "bold")


def _facts(task: TaskDetail, now: datetime) -> list[tuple[str, object]]:
    counted = f"{task.attempt} ({task.failures} failures, {task.takeovers} takeovers)"
    rows: list[tuple[str, object]] = [
        ("list", f"{task.task_list} (namespace {task.namespace}, priority {task.priority})"),
        ("attempt", counted),
        ("created", when(task.created_at, now) + (f" by {task.created_by}" if task.created_by else "")),
    ]
    if task.finished_at is not None:
        rows.append(("finished", f"{when(task.finished_at, now)} by {task.actor or task.owner_id}"))
    elif task.owner_id is None and task.why.code != "approval" and (task.wake_at or task.why.code != "suspended"):
        rows.append(("due", when(task.wake_at or task.due_at, now)))
    if task.claimed_at is not None:
        rows.append(("last claimed", when(task.claimed_at, now)))
    for name, value in (
        ("retry policy", _text(task.policy)),
        ("unique key", task.unique_key),
        ("limit key", task.limit_key),
        ("fairness key", task.fairness_key),
        ("run", task.run_id),
        ("tags", tag_line(task.tags)),
        ("trace", task.trace_id),
        ("progress", _text(task.progress) if task.finished_at is None else None),
    ):
        if value:
            rows.append((name, value))
    return rows


def _clocks(task: TaskDetail, now: datetime) -> list[tuple[str, object]]:
    """The clocks of a task: its lease, its progress, its deadline."""
    held = task.owner_id is not None and task.finished_at is None
    lease = f"held by {task.owner_id} until {when(task.wake_at, now)}" if held else "none"
    if task.progress_for is None:
        progress = "no progress deadline"
    else:
        last = f"; last report {when(task.progress_at, now)}" if held else ""
        progress = f"a report every {span(task.progress_for)}{last}"
    deadline = "none" if task.deadline_at is None else when(task.deadline_at, now)
    timeout = "set by the handler" if task.timeout_for is None else f"{span(task.timeout_for)} per attempt"
    return [("lease", lease), ("progress", progress), ("deadline", deadline), ("timeout", timeout)]


def _error(task: TaskDetail) -> list[RenderableType]:
    error = task.error or {}
    parts: list[RenderableType] = [plain(f"{error.get('code', task.error_code)}: {error.get('message', '')}", "red")]
    if error.get("traceback"):
        parts.append(plain(str(error["traceback"]).rstrip(), "dim"))
    return parts


def _moves(moves: list[MoveRecord]) -> RenderableType:
    table = grid(">", "at", "move", "from", "to", "by", "data")
    for move in moves:
        by = move.actor or ""
        table.add_row(
            str(move.version),
            as_text(ms(move.at)),
            plain(move.move),
            state(move.from_state or ""),
            state(move.to_state or ""),
            plain(by),
            plain(_brief(move)),
        )
    return table


def _text(value: object) -> str | None:
    return None if value is None else encode(value)


def _brief(move: MoveRecord) -> str:
    data = move.data
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    return "; ".join(f"{name} {value}" for name, value in data.items() if name != "traceback")
