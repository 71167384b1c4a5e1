"""`treadle functions ...`, `treadle signal`, `treadle query` and `treadle update`: durable functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from click.exceptions import Exit

from treadle.api.options import FunctionOptions
from treadle.api.tasks import WAIT_LIMIT
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.commands.run import end_of, failure_of, print_failure
from treadle.interfaces.cli.format import plain, pretty
from treadle.interfaces.cli.messages import FAILED, TIME_RAN_OUT, print_note, print_warning
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import (
    Params,
    Payload,
    any_json,
    wait_limit,
)
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.interfaces.typed_inputs import check_inputs
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.api.conversation import PublishedValue
    from treadle.api.facade import Api

RunId = Annotated[str, argument(metavar="RUN", help="The run's id")]


async def start(
    session: CommandSession,
    name: Annotated[str, argument(metavar="NAME", help="The function's name")],
    payload: Payload = None,
    parameters: Params = None,
    wait: Annotated[bool, option("--wait", help="Wait for the result and print it; exit 1 if the run failed")] = False,
    wait_for: Annotated[str | None, option(metavar="DURATION", help="Maximum time to wait; exit 6 after it")] = None,
    **options: Unpack[FunctionOptions],
) -> None:
    """Start a durable function; when this returns, its run is durable."""
    value = parse_payload(payload, parameters or ())
    limit = wait_limit(wait_for)
    async with session.api(migrate=True) as api:
        await check_inputs(api, "functions.start", {"name": name, "payload": value, **options})
        started = await api.functions.start(name, value, **options)
        summary: dict[str, Json] = {"id": started.id, "created": started.created}
        if not wait and limit is None:
            message = f"Started {name} as {started.id}" if started.created else f"A run already has this key: {started.id}"
            session.show(summary, lambda: plain(message))
            return
        ended = await end_of(api, started.id, limit)
    if (failed := failure_of(ended)) is not None:
        print_failure(session, started.id, failed, ended)
        raise Exit(FAILED)
    result = (ended.outputs or {}).get("result")
    session.show(summary | {"result": result}, lambda: pretty(result))


async def adopt(
    session: CommandSession,
    run_id: RunId,
    version: Annotated[int, option(help="Version that continues the run")],
) -> None:
    """Continue a run with another version of its function. You confirm that its code matches the recorded steps."""
    async with session.api() as api:
        run = await api.functions.adopt(run_id, version)
    if not run.servers:
        print_warning(f"no live worker has {run.workflow}@{version}; the run waits until one does.")
    session.show(run, lambda: plain(f"Version {version} of {run.workflow} continues {run.id}"))


async def show_value(session: CommandSession, _: Api, value: PublishedValue) -> None:
    """Print a published value."""
    session.show(value, lambda: pretty(value.value))


async def signal(
    session: CommandSession,
    run_id: RunId,
    name: Annotated[str, argument(metavar="NAME", help="The signal's name, as in `ctx.wait_for`")],
    payload: Annotated[str | None, option(metavar="JSON", help="Any JSON, @file, or - for stdin")] = None,
    idempotency_key: Annotated[str | None, option(metavar="KEY", help="A repeated signal with this key is delivered once")] = None,
) -> None:
    """Send a signal to a run of a durable function; it is kept until the function waits for it."""
    value = any_json(payload, "payload")
    async with session.api() as api:
        delivery = await api.runs.signal(run_id, name, value, idempotency_key=idempotency_key)
    if delivery.accepted and not delivery.awaited and not session.json:
        waits = f"it waits for {', '.join(delivery.awaited_signals)}" if delivery.awaited_signals else "it waits for no signal"
        print_note(f"Nothing waits for {name} now ({waits}); the signal is kept until the function does.")
    message = f"Sent {name} to {run_id}" if delivery.accepted else f"{name} was already sent to {run_id} with that key"
    session.show(delivery, lambda: plain(message))


async def update(
    session: CommandSession,
    run_id: RunId,
    name: Annotated[str, argument(metavar="NAME", help="The update's name, as in `ctx.update`")],
    payload: Annotated[str | None, option(metavar="JSON", help="Any JSON, @file, or - for stdin")] = None,
    wait_for: Annotated[float, option("--wait", metavar="SECONDS", help="Time to wait for the answer, up to 60")] = 10.0,
    idempotency_key: Annotated[str | None, option(metavar="KEY", help="A repeated update with this key is delivered once")] = None,
) -> None:
    """Send an update to a durable function and print its answer; exit 1 if it rejects the update, 6 if no answer comes in time."""
    if not 0 <= wait_for <= WAIT_LIMIT:
        raise InvalidInput(f"--wait must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
    value = any_json(payload, "payload")
    async with session.api() as api:
        reply = await api.runs.update(run_id, name, value, wait_for=wait_for, idempotency_key=idempotency_key)
    if reply.answered:
        session.show(reply, lambda: pretty(reply.value))
        return
    again = f"treadle update {run_id} {name} --idempotency-key {reply.idempotency_key}"
    message = (
        f"No answer after {wait_for:g} s; the update stays until the function asks for {name} (`treadle why {run_id}` shows what "
    )
    session.show(reply, lambda: plain(f"{message}it waits for). Wait for the answer with `{again}`."))
    raise Exit(TIME_RAN_OUT)


async def record(
    session: CommandSession,
    run: RunId,
    output: Annotated[str | None, option("--output", "-o", metavar="FILE", help="Write to this file, which must not exist")] = None,
) -> None:
    """Print the history of a function's run as JSON, for `treadle.testing.replay` in a test; its values are not encrypted."""
    from treadle.testing.recordings import record as record_run

    async with session.engine() as engine:
        recording = await record_run(engine, run)
    if output is None:
        session.console.file.write(recording.text() + "\n")
        return
    _write_new(Path(output), recording.text())
    summary: Json = {"run_id": recording.run_id, "path": output, "steps": len(recording.steps)}
    session.show(
        summary, lambda: plain(f"{recording.function}@{recording.version}: {len(recording.steps)} steps written to {output}")
    )


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text + "\n")
