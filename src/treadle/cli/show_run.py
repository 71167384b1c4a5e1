"""One run in full, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.cli.words import facts, grid, plain, pretty, short, span, state, when
from treadle.kernel.why import Reason
from treadle.model.runs import Run
from treadle.model.tasks import Task
from treadle.model.values import Json, decode

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from treadle.evaluator import StepRow
    from treadle.kernel.run_reads import ShownStep


def is_shown(row: StepRow) -> bool:
    """Steps are shown; blocks only when something happens in them and not in a step: a script, or an error of their own."""
    return row.is_step or row.task_id is not None or (row.error is not None and row.error.step_id == row.id)


def doing(shown: ShownStep, task: Task | None) -> str:
    """What matters most about a step, in a few words."""
    from treadle.evaluator.states import State

    row = shown.row
    if row.error is not None:
        return short(f"{'caught: ' if row.status == 'completed' else ''}{row.error.message}", 80)
    if task is not None:
        said = decode(task.progress) or {}
        what = "script" if row.state in (State.FACET_SCRIPTS_BEGIN, State.BLOCK_EXECUTION_BEGIN) else "handler"
        again = f", attempt {task.attempt}" if task.attempt > 1 else ""
        if task.owner_id is not None:
            return short(f"{what} works{again}{': ' + said['message'] if said.get('message') else ''}", 80)
        failed = (decode(task.error) or {}).get("message")
        return short(f"{what} waits{f', failed: {failed}' if failed else ''}", 80)
    return ""


def steps_table(steps: Sequence[ShownStep], tasks: Mapping[str, Task], *, with_ids: bool = True) -> RenderableType:
    """Steps with their states, one per line: with ids and whole paths, or for people as a tree."""
    paths: list[str] = []
    columns = ["step", "facet", "state", ">took", "note"]
    table = grid(*(["id", *columns] if with_ids else columns))
    for shown in steps:
        row = shown.row
        took = _took(shown)
        note = plain(doing(shown, tasks.get(row.id)), "red" if row.status == "failed" else "")
        cells = [
            plain(row.path if with_ids else _branch(row, paths)),
            plain(row.facet or row.kind),
            state(row.status),
            plain(took),
            note,
        ]
        table.add_row(*([plain(row.id, "dim"), *cells] if with_ids else cells))
    return table


def _took(shown: ShownStep) -> str:
    """How long the step took; nothing for a function's step that is stored only when it has ended, as nobody knows that."""
    from treadle.kernel.function_reads import FunctionStepRow

    known = shown.updated_at > shown.created_at or not isinstance(shown.row, FunctionStepRow)
    return span(shown.updated_at - shown.created_at) if shown.row.is_terminal and known else ""


def _branch(row: StepRow, above: list[str]) -> str:
    """The path from the step above it, indented; `above` are the paths from the root to the step before."""
    while above and not row.path.startswith((f"{above[-1]}.", f"{above[-1]}[")) and (row.is_step or row.path != above[-1]):
        above.pop()
    inside = row.path[len(above[-1]) :].lstrip(".") if above else row.path
    indent = "  " * len(above)
    if row.is_step:
        above.append(row.path)
    return f"{indent}{inside or row.name}"


def show_run(
    run: Run,
    inputs: dict[str, Json],
    outputs: dict[str, Json] | None,
    steps: Sequence[ShownStep],
    tasks: Mapping[str, Task],
    reason: Reason,
    now: int,
) -> RenderableType:
    """Facts, values, steps."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(plain(run.workflow, "bold"), "  ", state(run.state), "  ", plain(run.id, "dim"))
    rows: list[tuple[str, object]] = [
        ("created", when(run.created_at, now)),
        ("flow", run.flow_id[:12]),
        ("list", f"{run.task_list} (namespace {run.namespace}, priority {run.priority})"),
        ("steps", run.steps),
    ]
    if run.finished_at is not None:
        rows.insert(1, ("finished", f"{when(run.finished_at, now)}, after {span(run.finished_at - run.created_at)}"))
    for name, value in (("idempotency key", run.idempotency_key), ("made from", run.parent_id)):
        if value:
            rows.append((name, value))
    parts: list[RenderableType] = [head, plain(f"  {reason.text}"), "", facts(rows), _title("Inputs"), pretty(inputs)]
    if outputs is not None:
        parts += [_title("Outputs"), pretty(outputs)]
    if run.error is not None and run.state != "completed":
        parts += [_title("Error"), plain((decode(run.error) or {}).get("message", ""), "red")]
    shown = [step for step in steps if is_shown(step.row)]
    parts += [_title("Steps"), steps_table(shown, tasks, with_ids=False)]
    if run.steps > len(steps):
        parts.append(
            plain(f"Of {run.steps} steps and blocks {len(steps)} were looked at; `treadle runs steps --limit N` shows more.")
        )
    return Group(*parts)


def _title(text: str) -> Text:
    return plain(f"\n{text}", "bold")
