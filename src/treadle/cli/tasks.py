"""`treadle tasks ...` and `treadle why`: look at tasks, and do what operators do with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.inputs import payload as parse_payload
from treadle.cli.session import Session
from treadle.cli.shapes import line_json, move_json, task_json
from treadle.cli.show_task import show_task
from treadle.cli.words import ago, grid, plain, short, state
from treadle.model.errors import RunNotFound, TaskNotFound
from treadle.model.names import HANDLER
from treadle.model.states import OBJECTIVE
from treadle.model.tasks import Task
from treadle.model.values import decode
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import RenderableType

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id")]

_SHOWN_LINES = 100
_PAGE = 50


async def list_tasks(
    session: Session,
    states: Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="Only these; may be repeated")] = None,
    name: Annotated[str | None, typer.Option(help="Only of this handler name")] = None,
    task_list: Annotated[str | None, typer.Option("--list", metavar="LIST", help="Only of this task list")] = None,
    every: Annotated[bool, typer.Option("--all", help="The engine's own too: scripts, advances of runs, pruning")] = False,
    limit: Annotated[int, typer.Option(help="At most that many, up to 1000")] = _PAGE,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only tasks older than this one")] = None,
) -> None:
    """List tasks of handlers, newest first."""
    kind = None if every or name or task_list else HANDLER
    async with session.engine() as engine:
        found = await engine.reads.list_tasks(
            states=tuple(states or ()), name=name, task_list=task_list, kind=kind, before_id=before, limit=limit
        )
        now = await engine.store.now()
    more = found[-1].id if len(found) == limit else None
    given = {"state": states, "name": name, "list": task_list, "all": every, "limit": None if limit == _PAGE else limit}
    hint = session.again("tasks list", **given, before=more)
    value = {"tasks": [task_json(task) for task in found], "next_before": more}
    session.show(value, lambda: _table(found, now, hint if more else None))


def _table(found: list[Task], now: int, more: str | None) -> RenderableType:
    from rich.console import Group

    if not found:
        return plain("No tasks.")
    table = grid("id", "name", "state", ">attempt", "created", "note")
    for task in found:
        table.add_row(
            task.id,
            plain(task.name),
            state(task.shown_state),
            str(task.attempt),
            ago(task.created_at, now),
            plain(_note(task, now)),
        )
    return Group(table, plain(f"More: {more}", "dim")) if more else table


def _note(task: Task, now: int) -> str:
    """What matters most about the task, in a few words."""
    error, progress = decode(task.error) or {}, decode(task.progress) or {}
    if task.finished:
        return short(error["message"]) if error.get("message") else f"finished {ago(task.finished_at, now)}"
    if task.owner_id is not None and progress:
        fraction = f"{progress['fraction']:.0%} " if "fraction" in progress else ""
        return short(f"{fraction}{progress.get('message', '')}")
    waits = f"due {ago(task.wake_at, now)}" if task.owner_id is None and task.wake_at is not None else ""
    return short("; ".join(part for part in (waits, error.get("message", "")) if part))


async def show(session: Session, task_id: TaskId) -> None:
    """Everything about one task: facts, its three clocks, moves, lines, payload, result."""
    async with session.engine() as engine:
        task = await engine.open_values(await engine.get_task(task_id))
        moves = await engine.reads.list_moves(task.id)
        lines = await engine.reads.list_lines(task.id, _SHOWN_LINES)
        reason = await engine.why(task.id)
        now = await engine.store.now()
    value = task_json(task) | {
        "payload": decode(task.payload),
        "result": decode(task.result),
        "checkpoint": decode(task.checkpoint),
        "why": {"code": reason.code, "text": reason.text},
        "moves": [move_json(move) for move in moves],
        "lines": [line_json(line) for line in lines],
    }
    session.show(value, lambda: show_task(task, moves, lines, reason, now))


async def why(
    session: Session,
    any_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a task, a run, an objective, an approval or an outside job")
    ],
) -> None:
    """Why a task, a run or an objective is where it is, in one line; of an approval or an outside job: its task."""
    async with session.engine() as engine:
        try:
            task = await engine.get_task(any_id)
        except TaskNotFound:
            await _why_run(session, engine, any_id)
            return
        await _why_task(session, engine, task)


async def _why_task(session: Session, engine: Engine, task: Task) -> None:
    reason = await engine.why(task.id)
    value = {"id": task.id, "name": task.name, "state": task.shown_state, "code": reason.code, "text": reason.text}
    session.show(value, lambda: plain(f"{task.name} {task.shown_state}: {reason.text}"))


async def _why_run(session: Session, engine: Engine, run_id: str) -> None:
    try:
        run = await engine.run_reads.get_run(run_id)
    except RunNotFound:
        await _why_record(session, engine, run_id)
        return
    reason = await engine.run_reads.why(run.id)
    value = {"id": run.id, "name": run.workflow, "state": run.state, "code": reason.code, "text": reason.text}
    session.show(value, lambda: plain(f"{run.workflow} {run.state}: {reason.text}"))


async def _why_record(session: Session, engine: Engine, record_id: str) -> None:
    record = await engine.store.find_record(record_id)
    known = record is not None and record.namespace == engine.settings.namespace
    if record is not None and known and record.entity != OBJECTIVE.entity and record.task_id is not None:
        await _why_task(session, engine, await engine.get_task(record.task_id))
        return
    if record is None or not known or record.entity != OBJECTIVE.entity:
        raise TaskNotFound(record_id, "task or run")
    trail = await engine.objectives.show(record.id)
    objective = trail.objective
    value = {"id": record.id, "name": objective.title, "state": objective.status, "code": "objective", "text": trail.why}
    session.show(value, lambda: plain(f"{objective.title} {objective.status}: {trail.why}"))


async def cancel(
    session: Session,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the task")] = None,
) -> None:
    """End a task now, whoever holds it; canceling twice is no error."""
    async with session.engine() as engine:
        await engine.cancel(task_id, actor=session.actor, reason=reason)
        _done(session, await engine.get_task(task_id))


async def retry(
    session: Session,
    task_id: TaskId,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="A new payload: JSON object, @file or -")] = None,
) -> None:
    """Make a failed, canceled or ignored task live again, with new counters."""
    value = parse_payload(payload)
    async with session.engine() as engine:
        await engine.retry(task_id, actor=session.actor, payload=value)
        _done(session, await engine.get_task(task_id))


async def pause(session: Session, task_id: TaskId) -> None:
    """Hold a task that is not running, until it is resumed."""
    async with session.engine() as engine:
        await engine.pause(task_id, actor=session.actor)
        _done(session, await engine.get_task(task_id))


async def resume(session: Session, task_id: TaskId) -> None:
    """Let a paused task go on."""
    async with session.engine() as engine:
        await engine.resume(task_id, actor=session.actor)
        _done(session, await engine.get_task(task_id))


def _done(session: Session, task: Task) -> None:
    session.show(task_json(task), lambda: plain(f"{task.name} {task.id} is {task.shown_state} now"))
