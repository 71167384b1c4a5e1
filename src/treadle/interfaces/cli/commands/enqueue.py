"""`treadle enqueue`: enqueue a task and optionally wait for its result."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Annotated, Unpack

from click.exceptions import Exit

from treadle.api.facade import Api
from treadle.api.options import EnqueueOptions
from treadle.api.tasks import WAIT_LIMIT, TaskCreated, TaskResult
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.crash import arm_crash
from treadle.interfaces.cli.exits import FAILED, WaitTimedOut
from treadle.interfaces.cli.format import plain, pretty
from treadle.interfaces.cli.messages import tell_error, tell_warning
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.values import Params, Payload, wait_limit
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.kernel.queue.service import TaskSpec
from treadle.model.errors import Forbidden, TaskFailed
from treadle.model.states import TaskState


async def enqueue(
    session: Session,
    name: Annotated[str, argument(help="The handler's name, e.g. billing.Charge")],
    payload: Payload = None,
    parameters: Params = None,
    wait: Annotated[bool, option("--wait", help="Wait for the result and print it; exit 1 if the task failed")] = False,
    wait_for: Annotated[str | None, option(metavar="DURATION", help="Maximum time to wait; exit 6 after it")] = None,
    **options: Unpack[EnqueueOptions],
) -> None:
    """Enqueue a task; when this returns, it is durable.

    A DURATION is 90, 1.5s, 5m, 2h or 1d; a TIME is 2027-01-15T09:00 in UTC, or has its own offset.
    """
    arm_crash(session.settings.crash_at)
    value = parse_payload(payload, parameters or ())
    limit = wait_limit(wait_for)
    spec = TaskSpec(name=name, payload=value, **options)
    async with session.api(migrate=True, first=lambda engine: engine.kernel.queue.check([spec])) as api:
        made = await api.tasks.enqueue(name, value, **options)
        if wait or limit is not None:
            await _wait(session, api, made, limit)
        else:
            said = f"Enqueued {name} as {made.id}" if made.created else f"A task already has this key: {made.id}"
            session.show(made, lambda: plain(said))
            if made.created and not session.json:
                with suppress(Forbidden):  # a token may allow only enqueueing
                    await _warn(api, made)


async def _warn(api: Api, made: TaskCreated) -> None:
    """Warn if no live worker can take the task: its name may be misspelled."""
    reason = await api.tasks.why(made.id)
    if reason.code == "no_worker":
        tell_warning(f"task {made.id} waits: {reason.text}")


async def _wait(session: Session, api: Api, made: TaskCreated, limit: float | None) -> None:
    """Print only the result, so that it can be piped; errors and warnings go to stderr."""
    if not session.json:
        await _warn(api, made)
    try:
        ended = await _end_of(api, made, limit)
    except asyncio.CancelledError:
        tell_warning(f"task {made.id} continues; `treadle why {made.id}` shows its state")
        raise
    shown = {"id": made.id, "name": made.name, "created": made.created, "state": ended.state, "result": ended.result}
    if ended.state == TaskState.COMPLETED:
        session.show(shown, lambda: pretty(ended.result))
        return
    if session.json:
        session.show(shown | {"error": ended.error}, lambda: plain(""))
    tell_error(f"task_{ended.state}", _how(ended), as_json=session.json)
    raise Exit(FAILED)


async def _end_of(api: Api, made: TaskCreated, limit: float | None) -> TaskResult:
    """Wait for the task to end and return its result."""
    left = math.inf if limit is None else limit
    while True:
        part = min(left, WAIT_LIMIT)
        ended = await api.tasks.result(made.id, wait_for=part)
        left -= part
        if ended.finished:
            return ended
        if left <= 0:
            raise WaitTimedOut(
                f"Task {made.id} has not ended after {limit:g} s and continues. `treadle why {made.id}` shows its state."
            )


def _how(ended: TaskResult) -> str:
    """Describe the end of a task that did not complete."""
    message = (ended.error or {}).get("message", "")
    match ended.state:
        case TaskState.FAILED:
            return str(TaskFailed(ended.id, ended.error_code or "failed", message))
        case TaskState.CANCELED:
            return f"Task {ended.id} was canceled: {message}"
        case _:
            return f"Task {ended.id} ended as {ended.state}."
