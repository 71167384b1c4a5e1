"""`treadle functions ...` and `treadle signal`: durable functions from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.cli.command import argument, option
from treadle.cli.commands.run import end_of, failure_of, tell_failed
from treadle.cli.exits import FAILED
from treadle.cli.input.values import any_json, wait_limit
from treadle.cli.input.values import payload as parse_payload
from treadle.cli.output.format import grid, plain, pretty
from treadle.cli.output.messages import tell_note, tell_warning
from treadle.cli.session import Session
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.functions import FunctionList

RunId = Annotated[str, argument(metavar="RUN", help="The run's id")]


async def list_functions(session: Session) -> None:
    """List the functions that are known, by version: how many live servers have them, and how many of their runs go on."""
    async with session.api() as api:
        found = await api.functions.list()
    session.show(found, lambda: _table(found))


def _table(found: FunctionList) -> RenderableType:
    if not found.functions:
        return plain("No functions. A worker that has one makes it known: `treadle worker --handlers MODULE`.")
    table = grid("name", ">version", ">servers", ">runs", "lists")
    for each in found.functions:
        servers = plain(str(each.servers), "" if each.servers or not each.runs else "red")
        table.add_row(plain(each.name), str(each.version), servers, str(each.runs), plain(", ".join(each.task_lists)))
    return table


async def start(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="The function's name")],
    payload: Annotated[str | None, option(metavar="JSON", help="A JSON object, @file to read one, - to read it from stdin")] = None,
    parameters: Annotated[
        list[str] | None, option("--param", "-p", metavar="KEY=VALUE", help="One field of the payload; JSON, else text")
    ] = None,
    version: Annotated[int | None, option(help="That version; default: the newest that is known")] = None,
    idempotency_key: Annotated[str | None, option(metavar="KEY", help="Stands for the run that it is first given with")] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="The task list that workers choose")] = DEFAULT_LIST,
    priority: Annotated[int, option(help="Smaller runs first")] = 0,
    wait: Annotated[bool, option("--wait", help="Wait for what it returns and print it; exit 1 if it failed")] = False,
    wait_for: Annotated[str | None, option(metavar="DURATION", help="Wait at most that long; exit 6 after it")] = None,
) -> None:
    """Start a durable function; when this returns, its run is durable."""
    value = parse_payload(payload, parameters or ())
    limit = wait_limit(wait_for)
    async with session.api(migrate=True) as api:
        started = await api.functions.start(
            name, value, version=version, idempotency_key=idempotency_key, task_list=task_list, priority=priority
        )
        shown: dict[str, Json] = {"id": started.id, "created": started.created}
        if not wait and limit is None:
            said = f"Started {name} as {started.id}" if started.created else f"The key stands for the run {started.id}"
            session.show(shown, lambda: plain(said))
            return
        ended = await end_of(api, started.id, limit)
    if (failed := failure_of(ended)) is not None:
        tell_failed(session, started.id, failed)
        raise Exit(FAILED)
    result = (ended.outputs or {}).get("result")
    session.show(shown | {"result": result}, lambda: pretty(result))


async def adopt(
    session: Session,
    run_id: RunId,
    version: Annotated[int, option(help="The version that is to go on with it")],
) -> None:
    """Let another version of its function go on with a run: you say that its code fits what the run has recorded."""
    async with session.api() as api:
        run = await api.functions.adopt(run_id, version)
    if not run.servers:
        tell_warning(f"no live worker has {run.workflow}@{version}; the run waits until one does.")
    session.show(run, lambda: plain(f"Version {version} of {run.workflow} goes on with {run.id}"))


async def signal(
    session: Session,
    run_id: RunId,
    name: Annotated[str, argument(metavar="NAME", help="The signal's name, as `ctx.wait_for` has it")],
    payload: Annotated[str | None, option(metavar="JSON", help="Any JSON, @file to read it, - to read it from stdin")] = None,
    idempotency_key: Annotated[str | None, option(metavar="KEY", help="The same signal with the same key is told once")] = None,
) -> None:
    """Tell a run of a durable function something; it is kept until the function waits for it."""
    value = any_json(payload, "payload")
    async with session.api() as api:
        told = await api.runs.signal(run_id, name, value, idempotency_key=idempotency_key)
    if told.told and not told.awaited and not session.json:
        waits = f"it waits for {', '.join(told.awaited_signals)}" if told.awaited_signals else "it waits for no signal"
        tell_note(f"Nothing waits for {name} now ({waits}); it is kept until the function does.")
    said = f"Told {run_id} {name}" if told.told else f"{run_id} was told {name} with that key before"
    session.show(told, lambda: plain(said))
