"""`treadle handlers ...`: registered handlers of event facets, which runners load."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treadle.api.tasks import WAIT_LIMIT
from treadle.interfaces.cli.calls import show
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.commands.runner import Roots, with_roots
from treadle.interfaces.cli.format import plain, pretty
from treadle.interfaces.cli.messages import tell_warning
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.values import Params, Payload, seconds
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.model.errors import InvalidInput, NonRetryable

if TYPE_CHECKING:
    pass

Facet = Annotated[str, argument(metavar="FACET", help="The event facet's qualified name, e.g. billing.ProcessPayment")]


async def list_handlers(session: Session) -> None:
    """List registered handlers and their missing requirements, on this machine or on the server."""
    async with _rooted(session, None).api() as api:
        found = await api.handlers.list()
        now = (await api.system.time()).now
    show(session, found, now)


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
