"""`treadle enqueue`: put a task into the store, and wait for its result if asked to."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from treadle.cli.crash import arm_crash
from treadle.cli.exits import FAILED, WaitTimedOut, tell_error, tell_warning
from treadle.cli.inputs import payload as parse_payload
from treadle.cli.inputs import seconds
from treadle.cli.session import Session
from treadle.cli.words import plain, pretty
from treadle.kernel.queue import Enqueued, TaskSpec
from treadle.model.errors import InvalidInput, TaskCanceled, TaskFailed, TaskIgnored
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json, decode
from treadle.wiring.engine import Engine


async def enqueue(
    session: Session,
    name: Annotated[str, typer.Argument(help="The handler's name, e.g. billing.Charge")],
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="A JSON object, @file to read one, - to read it from stdin")
    ] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="One field of the payload; JSON, else text")
    ] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Not before that: 90, 1.5s, 5m, 2h, 1d")] = None,
    priority: Annotated[int, typer.Option(help="Smaller runs first")] = 0,
    task_list: Annotated[str, typer.Option("--list", metavar="LIST", help="The task list that workers choose")] = DEFAULT_LIST,
    unique_key: Annotated[str | None, typer.Option(metavar="KEY", help="While a task with it is live, that one is meant")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="For a week it stands for this task, also when that has ended")
    ] = None,
    limit_key: Annotated[str | None, typer.Option(metavar="KEY", help="Counts against the limit of this key")] = None,
    key_limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="At most so many with the key run at once, unless an operator said")
    ] = None,
    retry: Annotated[int | None, typer.Option(metavar="N", help="Retries after a failure; default: what the handler says")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Longest time for one attempt")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="DURATION", help="Not worth doing after that")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it; exit 1 if it failed")] = False,
    wait_for: Annotated[str | None, typer.Option(metavar="DURATION", help="Wait at most that long; exit 6 after it")] = None,
) -> None:
    """Put a task into the store; when this returns, it is durable."""
    arm_crash(session.settings.crash_at)
    value = parse_payload(payload, parameters or ())
    limit = seconds(wait_for, "--wait-for")
    if limit is not None and limit < 0:
        raise InvalidInput("--wait-for must be zero or more.")
    spec = TaskSpec(
        name=name,
        payload=value,
        delay=seconds(delay, "--delay"),
        priority=priority,
        task_list=task_list,
        unique_key=unique_key,
        idempotency_key=idempotency_key,
        limit_key=limit_key,
        limit=key_limit,
        retry=retry,
        timeout=seconds(timeout, "--timeout"),
        deadline=seconds(deadline, "--deadline"),
    )
    async with session.engine(migrate=True, first=lambda engine: engine.queue.check([spec])) as engine:
        (task,) = await engine.enqueue_many([spec])
        if wait or limit is not None:
            await _wait(session, engine, task, name, limit)
        else:
            said = f"Enqueued {name} as {task.id}" if task.created else f"A task has that key already: {task.id}"
            session.show({"id": task.id, "name": name, "created": task.created}, lambda: plain(said))


async def _wait(session: Session, engine: Engine, task: Enqueued, name: str, limit: float | None) -> None:
    """Show the result alone, so that it can be piped; how it failed, and what it waits for, goes to stderr."""
    reason = await engine.why(task)
    if reason.code == "no_worker" and not session.json:
        tell_warning(f"task {task.id} waits: {reason.text}")
    failed: TaskFailed | TaskCanceled | TaskIgnored | None = None
    try:
        await engine.result(task, timeout=limit)
    except TimeoutError:
        raise WaitTimedOut(
            f"Task {task.id} has not ended after {limit:g} s; it goes on. `treadle why {task.id}` says more."
        ) from None
    except (TaskFailed, TaskCanceled, TaskIgnored) as error:
        failed = error
    except asyncio.CancelledError:
        tell_warning(f"task {task.id} goes on; `treadle why {task.id}` says more")
        raise
    ended = await engine.open_values(await engine.get_task(task))
    result = decode(ended.result)
    shown: dict[str, Json] = {"id": task.id, "name": name, "created": task.created, "state": ended.state, "result": result}
    if failed is None:
        session.show(shown, lambda: pretty(result))
        return
    if session.json:
        session.show(shown | {"error": decode(ended.error)}, lambda: plain(""))
    tell_error(failed.code, str(failed), as_json=session.json)
    raise typer.Exit(FAILED)
