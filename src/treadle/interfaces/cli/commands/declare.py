"""`treadle declare`: show and apply the limits and schedules that code declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.commands.worker import Handlers
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.format import grid, plain, state
from treadle.interfaces.cli.session import Session
from treadle.kernel.declarations.records import check_release
from treadle.kernel.declarations.service import Synced
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType


async def declare(
    session: Session,
    handlers: Handlers = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only show the differences")] = False,
    release: Annotated[str | None, option(metavar="N", help="Release of the program; default: that of its Engine")] = None,
    overwrite: Annotated[bool, option("--overwrite", help="Also replace values that were set by hand")] = False,
) -> None:
    """Show how limits and schedules declared in code differ from the store, and apply them, as a starting worker does.

    Without declarations, those that the program applied earlier are removed.
    """
    if not handlers:
        raise InvalidInput("Name the code with the declarations: `treadle declare --handlers MODULE`.")
    engines = load_engines(session, handlers)
    first = engines[0]
    synced: list[Synced] = []
    await first.open(migrate=not dry_run)
    try:
        for engine in engines:
            if release is not None:
                engine.declare.release = check_release(release)
            service = first.kernel.trigger_services.declarations
            synced.append(await service.sync(engine.declare, dry_run=dry_run, overwrite=overwrite))
    finally:
        await first.close()
    value: Json = {
        "applied": not dry_run,
        "programs": [
            {
                "program": each.program,
                "release": each.release,
                "changes": [
                    {
                        "item": change.item,
                        "verdict": change.verdict,
                        "declared": change.declared,
                        "found": change.found,
                        "text": change.text,
                    }
                    for change in each.changes
                ],
            }
            for each in synced
        ],
    }
    session.show(value, lambda: _table(synced))


def _table(synced: list[Synced]) -> RenderableType:
    table = grid("program", "release", "", "item")
    for each in synced:
        for change in each.changes:
            table.add_row(plain(each.program), plain(each.release), state(change.verdict), plain(change.text))
        if not each.changes:
            table.add_row(plain(each.program), plain(each.release), state("unchanged"), plain("nothing is declared"))
    return table
