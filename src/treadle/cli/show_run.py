"""One run in full, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.cli.format import facts, grid, ms, plain, pretty, short, state, when
from treadle.model.clock import span

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType
    from rich.text import Text

    from treadle.api.facade import Api
    from treadle.api.runs import RunDetail
    from treadle.api.steps import Step
    from treadle.api.tasks import Task

_SCRIPTS = ("state.facet.scripts.Begin", "state.block.execution.Begin")
_PAGE = 1000


async def list_steps(api: Api, run_id: str, most: int = 10_000, *, values: bool = True) -> list[Step]:
    """Up to so many steps and blocks of a run, each below what it belongs to, in the order of the program."""
    from treadle.api.steps import in_order

    found: list[Step] = []
    after: str | None = None
    while len(found) < most:
        limit = min(most - len(found), _PAGE)
        page = await api.steps.list(run_id, order="stored", values=values, limit=limit, after=after)
        found += page.steps
        after = page.next_after
        if after is None:
            break
    return list(in_order(found))


async def live_tasks(api: Api, run_id: str, most: int = 500) -> dict[str, Task]:
    """Tasks of the run that have not ended, by step."""
    return {task.step_id or "": task for task in (await api.runs.tasks(run_id, limit=most)).tasks}


def is_shown(step: Step) -> bool:
    """Steps are shown; blocks only when something happens in them and not in a step: a script, or an error of their own."""
    return step.is_step or step.task_id is not None or (step.error is not None and step.error.step_id == step.id)


def doing(step: Step, task: Task | None) -> str:
    """What matters most about a step, in a few words."""
    if step.error is not None:
        return short(f"{'caught: ' if step.state == 'completed' else ''}{step.error.cause}", 80)
    if task is not None:
        said = task.progress or {}
        what = "script" if step.language_state in _SCRIPTS else "handler"
        again = f", attempt {task.attempt}" if task.attempt > 1 else ""
        if task.owner_id is not None:
            return short(f"{what} works{again}{': ' + said['message'] if said.get('message') else ''}", 80)
        failed = (task.error or {}).get("message")
        return short(f"{what} waits{f', failed: {failed}' if failed else ''}", 80)
    return ""


def steps_table(steps: Sequence[Step], tasks: Mapping[str, Task], *, with_ids: bool = True) -> RenderableType:
    """Steps with their states, one per line: with ids and whole paths, or for people as a tree."""
    paths: list[str] = []
    columns = ["step", "facet", "state", ">took", "note"]
    table = grid(*(["id", *columns] if with_ids else columns))
    for step in steps:
        note = plain(doing(step, tasks.get(step.id)), "red" if step.state == "failed" else "")
        cells = [
            plain(step.path if with_ids else _branch(step, paths)),
            plain(step.facet or step.kind),
            state(step.state),
            plain("" if step.took_for is None else span(step.took_for)),
            note,
        ]
        table.add_row(*([plain(step.id, "dim"), *cells] if with_ids else cells))
    return table


def _branch(step: Step, above: list[str]) -> str:
    """The path from the step above it, indented; `above` are the paths from the root to the step before."""
    while above and not step.path.startswith((f"{above[-1]}.", f"{above[-1]}[")) and (step.is_step or step.path != above[-1]):
        above.pop()
    inside = step.path[len(above[-1]) :].lstrip(".") if above else step.path
    indent = "  " * len(above)
    if step.is_step:
        above.append(step.path)
    return f"{indent}{inside or step.name}"


def show_run(run: RunDetail, steps: Sequence[Step], tasks: Mapping[str, Task], now: datetime) -> RenderableType:
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
        took = span(ms(run.finished_at) - ms(run.created_at))
        rows.insert(1, ("finished", f"{when(run.finished_at, now)}, after {took}"))
    signals = ", ".join(run.awaited_signals)
    for name, value in (("idempotency key", run.idempotency_key), ("made from", run.parent_id), ("awaits signals", signals)):
        if value:
            rows.append((name, value))
    parts: list[RenderableType] = [head, plain(f"  {run.why.text}"), "", facts(rows), _title("Inputs"), pretty(run.inputs)]
    if run.outputs is not None:
        parts += [_title("Outputs"), pretty(run.outputs)]
    if run.error is not None and run.state != "completed":
        parts += [_title("Error"), plain(run.error.get("message", ""), "red")]
    parts += [_title("Steps"), steps_table([step for step in steps if is_shown(step)], tasks, with_ids=False)]
    if run.steps > len(steps):
        parts.append(
            plain(f"Of {run.steps} steps and blocks {len(steps)} were looked at; `treadle runs steps --limit N` shows more.")
        )
    return Group(*parts)


def _title(text: str) -> Text:
    return plain(f"\n{text}", "bold")
