"""A test of a registered handler in a separate process, isolated from crashes, blocking calls and output.

The child is a fresh interpreter that loads the module (only from the allowed roots), calls the entry point once and writes the
outcome; the end of its other output is kept. After the time limit it is killed with all its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from treadle.agents.invoke import call_tool, payload_for
from treadle.agents.modules import Modules, missing_requirements
from treadle.api.handlers import HandlerTest
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.outcomes import Failed, Problem, Retry, Succeeded
from treadle.model.records import HandlerRegistration
from treadle.model.tasks import Task
from treadle.model.values import Json, encode
from treadle.settings import child_environment
from treadle.workers.call import outcome_of
from treadle.workers.context import Context

_NO_ID = "00000000-0000-7000-8000-000000000000"


def try_handler(
    registration: HandlerRegistration, payload: dict[str, Json], roots: Sequence[str], now: Callable[[], int]
) -> dict[str, Json]:
    """Return the handler's result for the payload; raise `NonRetryable` with the code that a task would fail with."""
    function = Modules(roots).find(registration)
    task = Task(id=_NO_ID, queue_id=0, name=registration.facet_name)
    context = Context(task, now, lambda _: None)
    try:
        returned = call_tool(function, payload_for(payload, context, None, registration.metadata), registration.timeout_ms)
    except NonRetryable:
        raise
    except BaseException as error:
        raise NonRetryable(f"The handler failed: {type(error).__name__}: {error}", "handler_error") from error
    outcome = outcome_of(returned)
    if not isinstance(outcome, Succeeded):
        problem = (
            outcome.problem if isinstance(outcome, Failed | Retry) else Problem("failed", f"The handler returned {outcome!r}.")
        )
        raise NonRetryable(problem.message, problem.code)
    try:
        encode(outcome.result, "result")
    except InvalidInput as error:
        raise NonRetryable(str(error), error.code) from error
    return outcome.result


OUTPUT_LIMIT = 16 * 1024
"""Bytes of output that are kept, from the end."""

ANSWER_LIMIT = 8 * 1024 * 1024


async def try_outside(
    registration: HandlerRegistration, payload: dict[str, Json], roots: Sequence[str], within: float
) -> HandlerTest:
    """Call the handler once in a separate process, for at most `within` seconds."""
    request = {"registration": asdict(registration), "payload": payload, "roots": list(roots)}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=child_environment(), start_new_session=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    late = False
    reading = asyncio.gather(_tail(child.stdout, ANSWER_LIMIT), _tail(child.stderr, OUTPUT_LIMIT), child.wait())
    try:
        child.stdin.write(msgspec.json.encode(request))
        child.stdin.close()
        async with asyncio.timeout(within):
            await asyncio.shield(reading)
    except TimeoutError:
        late = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # it leads a process group, so that its children are killed with it
    answer, written, code = await reading
    output = written.decode(errors="replace")
    missing = missing_requirements(registration.requirements)
    if late:
        return HandlerTest(None, "timeout", f"The handler did not return within {within:g} s and was stopped.", output, missing)
    try:
        outcome = msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.DecodeError:
        return HandlerTest(
            None, "handler_error", f"The process of the handler ended with {code} before it returned.", output, missing
        )
    return HandlerTest(outcome.get("result"), outcome.get("error_code"), outcome.get("error"), output, missing)


async def _tail(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Read everything, and return the last `limit` bytes."""
    tail = b""
    while part := await stream.read(65536):
        tail = (tail + part)[-limit:]
    return tail


def main() -> None:
    """Run the child: read the request, call the handler, write the outcome to a private stream."""
    from treadle.agents.handler_check import try_handler
    from treadle.kernel.store.process import SystemClock
    from treadle.model.errors import NonRetryable

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, Any])
    answer = os.dup(1)
    os.set_inheritable(answer, False)
    os.dup2(2, 1)  # the handler's prints are output, not the outcome
    try:
        result = try_handler(
            HandlerRegistration(**request["registration"]), request["payload"], request["roots"], SystemClock().now
        )
        outcome: dict[str, Any] = {"result": result}
    except NonRetryable as error:
        outcome = {"error_code": error.error_code, "error": str(error)}
    with os.fdopen(answer, "wb") as out:
        out.write(msgspec.json.encode(outcome))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # do not wait for threads that the handler started


if __name__ == "__main__":
    main()
