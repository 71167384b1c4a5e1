"""`treadle runs usage`: what a run spent on language models, request by request, against its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from treadle.cli.command import argument
from treadle.cli.format import facts, grid, ms, plain
from treadle.cli.session import Session
from treadle.model.clock import as_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.runs import RunUsage


async def usage(session: Session, run_id: Annotated[str, argument(metavar="RUN", help="The run's id")]) -> None:
    """Show what a run spent on models: requests, tokens, cost, and its budget."""
    async with session.api() as api:
        found = await api.runs.usage(run_id)
    session.show(found, lambda: _shown(found))


def _shown(found: RunUsage) -> RenderableType:
    from rich.console import Group

    if not found.requests:
        return plain("No requests to models.")
    table = grid("at", "step", "model", "state", ">in", ">out", ">cost")
    for row in found.requests:
        cells = [as_text(ms(row.at)) or "", row.path or "", row.model, row.state]
        numbers = [f"{row.input_tokens:,}", f"{row.output_tokens:,}", _dollars(row.cost_micros)]
        table.add_row(*(plain(cell) for cell in [*cells, *numbers]))
    spent = found.total
    limit = "none" if found.budget_micros is None else _dollars(found.budget_micros)
    tokens = f"{spent.input_tokens:,} in, {spent.output_tokens:,} out"
    sums = [("requests", spent.requests), ("tokens", tokens), ("cost", _dollars(spent.cost_micros)), ("budget", limit)]
    return Group(table, facts([*sums]))


def _dollars(micros: int) -> str:
    return f"${micros / 1_000_000:,.4f}"
