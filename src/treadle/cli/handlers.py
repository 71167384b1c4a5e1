"""`treadle handlers ...`: which function handles the tasks of a facet, for runners that load it themselves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exits import tell_warning
from treadle.cli.inputs import payload as parse_payload
from treadle.cli.inputs import seconds
from treadle.cli.runner import Roots, with_roots
from treadle.cli.session import Session
from treadle.cli.words import ago, grid, plain, pretty
from treadle.model.clock import as_text
from treadle.model.errors import HandlerNotFound, InvalidInput
from treadle.model.handlers import HandlerRegistration
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

Facet = Annotated[str, typer.Argument(metavar="FACET", help="The event facet's qualified name, e.g. billing.ProcessPayment")]


async def list_handlers(session: Session) -> None:
    """List the registrations, and what of their requirements is missing here."""
    async with session.engine() as engine:
        found = await engine.store.list_handlers(engine.settings.namespace)
        now = await engine.store.now()
    session.show({"handlers": [_json(each) for each in found]}, lambda: _table(found, now))


async def register(
    session: Session,
    facet: Facet,
    module: Annotated[str, typer.Argument(metavar="MODULE", help="package.module, or file:///path/to/module.py")],
    entrypoint: Annotated[str, typer.Option(metavar="NAME", help="The function in it")] = "handle",
    version: Annotated[str, typer.Option(help="For people")] = "1.0.0",
    checksum: Annotated[str, typer.Option(help="Changing it makes runners load the module anew")] = "",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Longest time for one attempt")] = "30s",
    requirements: Annotated[
        list[str] | None, typer.Option("--requires", metavar="REQUIREMENT", help="As pip has it: 'requests>=2.31'; may be repeated")
    ] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="An object that the function is given")] = None,
    roots: Roots = None,
) -> None:
    """Register a handler, or replace the facet's; running runners see it with their next refresh."""
    from treadle.agents.modules import Modules, OutsideRoots
    from treadle.agents.records import check_registration
    from treadle.agents.requirements import missing_requirements

    registration = HandlerRegistration(
        facet,
        module,
        entrypoint,
        version,
        checksum,
        round((seconds(timeout, "--timeout") or 0) * 1000),
        list(requirements or ()),
        parse_payload(metadata) or {},
    )
    check_registration(registration)
    try:
        Modules(with_roots(session, roots).handler_roots).locate(module)
    except OutsideRoots:
        raise
    except InvalidInput as error:
        tell_warning(f"{error} It is looked for when a task comes.")
    for missing in missing_requirements(registration.requirements):
        tell_warning(f"the handler needs {missing}")
    async with session.engine(migrate=True) as engine:
        await engine.store.save_handler(engine.settings.namespace, registration)
    session.show(_json(registration), lambda: plain(f"{facet} is handled by {entrypoint} of {module}"))


async def remove(session: Session, facet: Facet) -> None:
    """Remove a registration; tasks of the facet wait until there is another."""
    async with session.engine() as engine:
        if not await engine.store.delete_handler(engine.settings.namespace, facet):
            raise HandlerNotFound(facet)
    session.show({"removed": facet}, lambda: plain(f"Removed the handler of {facet}"))


async def try_out(
    session: Session,
    facet: Facet,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object, @file, or - for stdin")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="One field of the payload; JSON, else text")
    ] = None,
    roots: Roots = None,
) -> None:
    """Load a registered handler here and call it with a payload; nothing is stored.

    Exit 1 and the code that a task would fail with: import_failed, entrypoint_missing, handler_error, or the handler's own.
    """
    import asyncio

    from treadle.agents.requirements import missing_requirements
    from treadle.agents.trying import try_handler

    given = parse_payload(payload, parameters or ()) or {}
    async with session.engine() as engine:
        found = {each.facet_name: each for each in await engine.store.list_handlers(engine.settings.namespace)}
        now = engine.clock.now
    if facet not in found:
        raise HandlerNotFound(facet)
    for missing in missing_requirements(found[facet].requirements):
        tell_warning(f"the handler needs {missing}")
    settings = with_roots(session, roots)
    result = await asyncio.to_thread(try_handler, found[facet], given, settings.handler_roots, now)
    session.show(result, lambda: plain(pretty(result)))


def _json(registration: HandlerRegistration) -> dict[str, Json]:
    from treadle.agents.requirements import missing_requirements

    said = asdict(registration)
    created, updated = said.pop("created"), said.pop("updated")
    times = {"created_at": as_text(created), "updated_at": as_text(updated)} if created else {}
    return {**said, "missing_requirements": missing_requirements(registration.requirements), **times}


def _table(found: list[HandlerRegistration], now: int) -> RenderableType:
    if not found:
        return plain("No handlers. `treadle handlers register FACET MODULE` adds one.")
    from treadle.agents.requirements import missing_requirements

    table = grid("facet", "module", "entry point", "version", ">timeout", "updated", "missing")
    for each in found:
        table.add_row(
            plain(each.facet_name),
            plain(each.module_uri),
            plain(each.entrypoint),
            plain(each.version),
            f"{each.timeout_ms / 1000:g} s",
            ago(each.updated, now),
            plain(", ".join(missing_requirements(each.requirements)) or "-"),
        )
    return table
