"""One task in full, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.format import facts, grid, line, ms, plain, pretty, state, when
from treadle.model.clock import as_text, span
from treadle.model.values import encode

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType
    from rich.text import Text

    from treadle.api.tasks import MoveMade, TaskDetail


def show_task(task: TaskDetail, now: datetime) -> RenderableType:
    """Facts, clocks, values, history."""
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
        ("created", when(task.created_at, now)),
    ]
    if task.finished_at is not None:
        rows.append(("finished", f"{when(task.finished_at, now)} by {task.actor or task.owner_id}"))
    elif task.owner_id is None:
        rows.append(("due", when(task.wake_at or task.due_at, now)))
    if task.claimed_at is not None:
        rows.append(("last claimed", when(task.claimed_at, now)))
    for name, value in (
        ("retry policy", _text(task.policy)),
        ("unique key", task.unique_key),
        ("limit key", task.limit_key),
        ("run", task.run_id),
        ("trace", task.trace_id),
        ("progress", _text(task.progress) if task.finished_at is None else None),
    ):
        if value:
            rows.append((name, value))
    return rows


def _clocks(task: TaskDetail, now: datetime) -> list[tuple[str, object]]:
    """Is the worker alive, is it getting anywhere, is it still worth doing."""
    held = task.owner_id is not None and task.finished_at is None
    lease = f"held by {task.owner_id} until {when(task.wake_at, now)}" if held else "not held"
    if task.progress_for is None:
        progress = "no deadline set on the task"
    else:
        last = f"; last sign {when(task.progress_at, now)}" if held else ""
        progress = f"a sign every {span(task.progress_for)}{last}"
    deadline = "none" if task.deadline_at is None else when(task.deadline_at, now)
    timeout = "what the handler says" if task.timeout_for is None else f"{span(task.timeout_for)} per attempt"
    return [("lease", lease), ("progress", progress), ("deadline", deadline), ("timeout", timeout)]


def _error(task: TaskDetail) -> list[RenderableType]:
    error = task.error or {}
    parts: list[RenderableType] = [plain(f"{error.get('code', task.error_code)}: {error.get('message', '')}", "red")]
    if error.get("traceback"):
        parts.append(plain(str(error["traceback"]).rstrip(), "dim"))
    return parts


def _moves(moves: list[MoveMade]) -> RenderableType:
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


def _brief(move: MoveMade) -> str:
    data = move.data
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    return "; ".join(f"{name} {value}" for name, value in data.items() if name != "traceback")
