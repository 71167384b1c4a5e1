"""One task in full, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.words import facts, grid, line, plain, pretty, span, state, when
from treadle.kernel.why import Reason
from treadle.model.clock import as_text
from treadle.model.tasks import LogLine, Move, Task
from treadle.model.values import decode

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def show_task(task: Task, moves: list[Move], lines: list[LogLine], reason: Reason, now: int) -> RenderableType:
    """Facts, clocks, values, history."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(plain(task.name, "bold"), "  ", state(task.shown_state), "  ", plain(task.id, "dim"))
    parts: list[RenderableType] = [
        head,
        plain(f"  {reason.text}"),
        "",
        facts(_facts(task, now)),
        _title("Clocks"),
        facts(_clocks(task, now)),
    ]
    parts += [_title("Payload"), pretty(decode(task.payload))]
    if task.result is not None:
        parts += [_title("Result"), pretty(decode(task.result))]
    if task.checkpoint is not None:
        parts += [_title("Checkpoint"), pretty(decode(task.checkpoint))]
    if task.error is not None:
        parts += [_title("Error"), *_error(task)]
    if moves:
        parts += [_title("Moves"), _moves(moves)]
    if lines:
        parts += [_title("Lines"), *(line(each) for each in lines)]
    return Group(*parts)


def _title(text: str) -> Text:
    return plain(f"\n{text}", "bold")


def _facts(task: Task, now: int) -> list[tuple[str, object]]:
    counted = f"{task.attempt} ({task.failures} failures, {task.takeovers} takeovers)"
    rows: list[tuple[str, object]] = [
        ("list", f"{task.task_list} (namespace {task.namespace}, priority {task.priority})"),
        ("attempt", counted),
        ("created", when(task.created_at, now)),
    ]
    if task.finished:
        rows.append(("finished", f"{when(task.finished_at, now)} by {task.actor or task.owner_id}"))
    elif task.owner_id is None:
        rows.append(("due", when(task.wake_at or task.due_at, now)))
    if task.claimed_at is not None:
        rows.append(("last claimed", when(task.claimed_at, now)))
    for name, value in (
        ("retry policy", task.policy),
        ("unique key", task.unique_key),
        ("limit key", task.limit_key),
        ("run", task.run_id),
        ("trace", task.trace_id),
        ("progress", task.progress if not task.finished else None),
    ):
        if value:
            rows.append((name, value))
    return rows


def _clocks(task: Task, now: int) -> list[tuple[str, object]]:
    """Is the worker alive, is it getting anywhere, is it still worth doing."""
    held = task.owner_id is not None and not task.finished
    lease = f"held by {task.owner_id} until {when(task.wake_at, now)}" if held else "not held"
    if task.progress_for is None:
        progress = "no deadline set on the task"
    else:
        last = f"; last sign {when(task.progress_at, now)}" if held else ""
        progress = f"a sign every {span(task.progress_for)}{last}"
    deadline = "none" if task.deadline_at is None else when(task.deadline_at, now)
    timeout = "what the handler says" if task.timeout_for is None else f"{span(task.timeout_for)} per attempt"
    return [("lease", lease), ("progress", progress), ("deadline", deadline), ("timeout", timeout)]


def _error(task: Task) -> list[RenderableType]:
    error = decode(task.error) or {}
    parts: list[RenderableType] = [plain(f"{error.get('code', task.error_code)}: {error.get('message', '')}", "red")]
    if error.get("traceback"):
        parts.append(plain(str(error["traceback"]).rstrip(), "dim"))
    return parts


def _moves(moves: list[Move]) -> RenderableType:
    table = grid(">", "at", "move", "from", "to", "by", "data")
    for move in moves:
        by = move.actor or ""
        table.add_row(
            str(move.version),
            as_text(move.at),
            plain(move.move),
            state(move.from_state),
            state(move.to_state),
            plain(by),
            plain(_brief(move)),
        )
    return table


def _brief(move: Move) -> str:
    data = decode(move.data)
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    return "; ".join(f"{name} {value}" for name, value in data.items() if name != "traceback")
