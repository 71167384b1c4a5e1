"""`treadle handlers ...`: registered handlers of event facets, which runners load."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treadle.api.tasks import WAIT_LIMIT
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.commands.runner import Roots, with_roots
from treadle.interfaces.cli.input.values import Params, Payload, seconds
from treadle.interfaces.cli.input.values import payload as parse_payload
from treadle.interfaces.cli.output.format import ago, grid, ms, plain, pretty
from treadle.interfaces.cli.output.messages import tell_warning
from treadle.interfaces.cli.session import Session
from treadle.model.clock import as_text, span
from treadle.model.errors import InvalidInput, NonRetryable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.handlers import Handler, HandlerRates

Facet = Annotated[str, argument(metavar="FACET", help="The event facet's qualified name, e.g. billing.ProcessPayment")]


async def list_handlers(session: Session) -> None:
    """List registered handlers and their missing requirements, on this machine or on the server."""
    async with _rooted(session, None).api() as api:
        found = await api.handlers.list()
        now = (await api.system.time()).now
    session.show(found, lambda: _table(found.handlers, now))


async def rates(session: Session) -> None:
    """Show tasks started, finished and failed in the last hour, and durations of attempts, by handler and function."""
    async with session.api() as api:
        found = await api.handlers.rates()
    session.show(found, lambda: _rates(found))


async def register(
    session: Session,
    facet: Facet,
    module: Annotated[str, argument(metavar="MODULE", help="package.module, or file:///path/to/module.py")],
    entrypoint: Annotated[str, option(metavar="NAME", help="Name of the function in it")] = "handle",
    version: Annotated[str, option(help="Version shown to people")] = "1.0.0",
    checksum: Annotated[str, option(help="Runners reload the module when this changes")] = "",
    timeout: Annotated[str, option(metavar="DURATION", help="Longest time for one attempt")] = "30s",
    requirements: Annotated[
        list[str] | None,
        option("--requires", metavar="REQUIREMENT", help="A requirement as pip takes it: 'requests>=2.31'; repeatable"),
    ] = None,
    metadata: Annotated[str | None, option(metavar="JSON", help="An object passed to the function")] = None,
    roots: Roots = None,
) -> None:
    """Register a handler for a facet, replacing any other; running runners load it at their next refresh."""
    limit, given = seconds(timeout, "--timeout") or 0, parse_payload(metadata)
    async with _rooted(session, roots).api(migrate=True) as api:
        made = await api.handlers.register(
            facet,
            module,
            entrypoint=entrypoint,
            version=version,
            checksum=checksum,
            timeout=limit,
            requirements=requirements or (),
            metadata=given,
        )
    if made.missing_module is not None:
        tell_warning(f"{made.missing_module} Runners look for it when a task arrives.")
    for missing in made.missing_requirements:
        tell_warning(f"the handler needs {missing}")
    session.show(made, lambda: plain(f"{facet} is handled by {entrypoint} of {module}"))


async def remove(session: Session, facet: Facet) -> None:
    """Remove a handler; tasks of the facet wait until there is another."""
    async with session.api() as api:
        gone = await api.handlers.remove(facet)
    session.show(gone, lambda: plain(f"Removed the handler of {facet}"))


async def try_out(
    session: Session,
    facet: Facet,
    payload: Payload = None,
    parameters: Params = None,
    roots: Roots = None,
) -> None:
    """Load a registered handler on this machine, or on the server, and call it with a payload; stores nothing.

    Exits 1 with the code that a task would fail with: import_failed, entrypoint_missing, handler_error, or the handler's own.
    """
    given = parse_payload(payload, parameters or ()) or {}
    async with _rooted(session, roots).api() as api:
        trial = await api.handlers.test(facet, given, wait_for=WAIT_LIMIT)
    for missing in trial.missing_requirements:
        tell_warning(f"the handler needs {missing}")
    sys.stderr.write(trial.output)
    if trial.error_code is not None:
        raise NonRetryable(trial.error or "", trial.error_code)
    result = trial.result or {}
    session.show(result, lambda: pretty(result))


def _rooted(session: Session, roots: list[Path] | None) -> Session:
    """The same session with these folders as handler roots."""
    if roots and session.chosen.remote:
        raise InvalidInput("--root applies to this machine; a server has TREADLE_HANDLER_ROOTS.")
    return replace(session, settings=with_roots(session, roots))


def _table(found: list[Handler], now: datetime) -> RenderableType:
    if not found:
        return plain("No handlers. `treadle handlers register FACET MODULE` adds one.")
    table = grid("facet", "module", "entry point", "version", ">timeout", "updated", "missing")
    for each in found:
        missing = (
            ["(unreadable)"]
            if each.unreadable
            else [*([each.module_uri] if each.missing_module else []), *each.missing_requirements]
        )
        table.add_row(
            plain(each.facet_name),
            plain(each.module_uri),
            plain(each.entrypoint),
            plain(each.version),
            f"{each.timeout_ms / 1000:g} s",
            ago(each.updated_at, now),
            plain(", ".join(missing) or "-"),
        )
    return table


def _rates(found: HandlerRates) -> RenderableType:
    from rich.console import Group

    table = grid("name", "?kind", ">started", ">finished", ">failed", "?>running", ">median", ">p95")
    for each in found.rates:
        durations = [plain("-" if took is None else span(took)) for took in (each.median_for, each.p95_for)]
        counts = [str(number) for number in (each.started, each.finished, each.failed, each.running)]
        table.add_row(plain(each.name), plain(each.kind), *counts, *durations)
    return Group(plain(f"since {as_text(ms(found.since_at))}"), table if found.rates else plain("No task has run in this time."))
