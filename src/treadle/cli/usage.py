"""`treadle runs usage`: what a run spent on language models, request by request, against its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from treadle.cli.session import Session
from treadle.cli.words import facts, grid, plain
from treadle.model.clock import as_text
from treadle.model.usage import Budget, Usage, total

if TYPE_CHECKING:
    from rich.console import RenderableType


async def usage(session: Session, run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id")]) -> None:
    """Show what a run spent on models: requests, tokens, cost, and its budget."""
    async with session.engine() as engine:
        run = await engine.run_reads.get_run(run_id)
        rows, budget = await engine.run_reads.usage(run.id)
        paths = {shown.row.id: shown.row.path for shown in await engine.run_reads.list_steps(run.id)} if rows else {}
    value = {
        "run_id": run.id,
        "budget_micros": budget.limit_micros if budget else None,
        "total": msgspec.to_builtins(total(rows)),
        "requests": [msgspec.to_builtins(row) | {"at": as_text(row.at), "path": paths.get(row.step_id or "")} for row in rows],
    }
    session.show(value, lambda: _shown(rows, budget, paths))


def _shown(rows: list[Usage], budget: Budget | None, paths: dict[str, str]) -> RenderableType:
    from rich.console import Group

    if not rows:
        return plain("No requests to models.")
    table = grid("at", "step", "model", "state", ">in", ">out", ">cost")
    for row in rows:
        cells = [as_text(row.at) or "", paths.get(row.step_id or "", ""), row.model, row.state]
        numbers = [f"{row.input_tokens:,}", f"{row.output_tokens:,}", _dollars(row.cost_micros)]
        table.add_row(*(plain(cell) for cell in [*cells, *numbers]))
    spent = total(rows)
    limit = "none" if budget is None or budget.limit_micros is None else _dollars(budget.limit_micros)
    tokens = f"{spent.input_tokens:,} in, {spent.output_tokens:,} out"
    sums = [("requests", spent.requests), ("tokens", tokens), ("cost", _dollars(spent.cost_micros)), ("budget", limit)]
    return Group(table, facts([*sums]))


def _dollars(micros: int) -> str:
    return f"${micros / 1_000_000:,.4f}"
