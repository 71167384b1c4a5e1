"""`treadle import ...`: records of other systems."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import grid, plain
from treadle.interfaces.cli.messages import end_progress, tell_progress
from treadle.interfaces.cli.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType


async def mongodump(
    session: Session,
    folder: Annotated[Path, argument(metavar="DIR", help="The folder that mongodump wrote")],
    dry_run: Annotated[bool, option("--dry-run", help="Read and check everything, and import nothing")] = False,
) -> None:
    """Import flows, handler registrations and finished runs of the AFL reference implementation; safe to repeat."""
    from treadle.agents.mongodump import Mongodump

    counts, skipped = Counter[tuple[str, str]](), list[dict[str, str]]()
    async with session.engine(migrate=True) as engine:
        async for what, name, outcome, reason in Mongodump(folder, engine, dry_run=dry_run).load():
            counts[what, outcome] += 1
            skipped += [{"what": what, "name": name, "reason": reason}] if outcome == "skipped" else []
            tell_progress(session, f"{counts.total()} records read")
    end_progress(session)
    outcomes = ("imported", "unchanged", "skipped")
    by_kind = {f"{what}s": {each: counts[what, each] for each in outcomes} for what in ("flow", "handler", "run")}

    def shown() -> RenderableType:
        from rich.console import Group

        table = grid("", ">would import" if dry_run else ">imported", ">unchanged", ">skipped")
        for what, by in by_kind.items():
            table.add_row(what, *map(str, by.values()))
        return Group(table, *(plain(f"skipped {each['what']} {each['name']}: {each['reason']}", "yellow") for each in skipped))

    session.show({"dry_run": dry_run, **by_kind, "problems": skipped}, shown)
