"""`treadle tasks ...` and `treadle why`: look at tasks, and do what operators do with them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from treadle.cli.command import argument, option
from treadle.cli.format import ago, grid, plain, short, state
from treadle.cli.inputs import payload as parse_payload
from treadle.cli.session import Session
from treadle.cli.show_task import show_task

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.tasks import Task, TaskPage

TaskId = Annotated[str, argument(metavar="ID", help="The task's id")]

_PAGE = 50


async def list_tasks(
    session: Session,
    states: Annotated[list[str] | None, option("--state", metavar="STATE", help="Only these; may be repeated")] = None,
    name: Annotated[str | None, option(help="Only of this handler name")] = None,
    task_list: Annotated[str | None, option("--list", metavar="LIST", help="Only of this task list")] = None,
    every: Annotated[bool, option("--all", help="The engine's own too: scripts, advances of runs, pruning")] = False,
    limit: Annotated[int, option(help="At most that many, up to 1000")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="The next page: only tasks older than this one")] = None,
) -> None:
    """List tasks of handlers, newest first."""
    async with session.api() as api:
        page = await api.tasks.list(state=states or (), name=name, task_list=task_list, every=every, limit=limit, before=before)
        now = (await api.system.time()).now
    given = {"state": states, "name": name, "list": task_list, "all": every, "limit": None if limit == _PAGE else limit}
    session.show(page, lambda: _table(page, now, session.again("tasks list", **given, before=page.next_before)))


def _table(page: TaskPage, now: datetime, more: str) -> RenderableType:
    from rich.console import Group

    if not page.tasks:
        return plain("No tasks.")
    table = grid("id", "name", "state", ">attempt", "created", "note")
    for task in page.tasks:
        table.add_row(
            task.id,
            plain(task.name),
            state(task.state),
            str(task.attempt),
            ago(task.created_at, now),
            plain(_note(task, now)),
        )
    return Group(table, plain(f"More: {more}", "dim")) if page.next_before else table


def _note(task: Task, now: datetime) -> str:
    """What matters most about the task, in a few words."""
    error, progress = task.error or {}, task.progress or {}
    if task.finished_at is not None:
        return short(error["message"]) if error.get("message") else f"finished {ago(task.finished_at, now)}"
    if task.owner_id is not None and progress:
        fraction = f"{progress['fraction']:.0%} " if "fraction" in progress else ""
        return short(f"{fraction}{progress.get('message', '')}")
    waits = f"due {ago(task.wake_at, now)}" if task.owner_id is None and task.wake_at is not None else ""
    return short("; ".join(part for part in (waits, error.get("message", "")) if part))


async def show(session: Session, task_id: TaskId) -> None:
    """Everything about one task: facts, its three clocks, moves, lines, payload, result."""
    async with session.api() as api:
        task = await api.tasks.get(task_id)
        now = (await api.system.time()).now
    session.show(task, lambda: show_task(task, now))


async def why(
    session: Session,
    any_id: Annotated[str, argument(metavar="ID", help="The id of a task, a run, an objective, an approval or an outside job")],
) -> None:
    """Why a task, a run or an objective is where it is, in one line; of an approval or an outside job: its task."""
    async with session.api() as api:
        found = await api.system.why(any_id)
    session.show(found, lambda: plain(f"{found.name} {found.state}: {found.text}"))


async def cancel(
    session: Session,
    task_id: TaskId,
    reason: Annotated[str | None, option(help="Why; kept with the task")] = None,
) -> None:
    """End a task now, whoever holds it; canceling twice is no error."""
    async with session.api() as api:
        _done(session, await api.tasks.cancel(task_id, reason=reason))


async def retry(
    session: Session,
    task_id: TaskId,
    payload: Annotated[str | None, option(metavar="JSON", help="A new payload: JSON object, @file or -")] = None,
) -> None:
    """Make a failed, canceled or ignored task live again, with new counters."""
    value = parse_payload(payload)
    async with session.api() as api:
        _done(session, await api.tasks.retry(task_id, payload=value))


async def pause(session: Session, task_id: TaskId) -> None:
    """Hold a task that is not running, until it is resumed."""
    async with session.api() as api:
        _done(session, await api.tasks.pause(task_id))


async def resume(session: Session, task_id: TaskId) -> None:
    """Let a paused task go on."""
    async with session.api() as api:
        _done(session, await api.tasks.resume(task_id))


def _done(session: Session, task: Task) -> None:
    session.show(task, lambda: plain(f"{task.name} {task.id} is {task.state} now"))
