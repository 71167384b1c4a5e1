"""Isolated handlers: each call runs in a process of its own, which can be killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from treadle.kernel.telemetry.events import current_attempt
from treadle.kernel.telemetry.log_format import lines_are_json, set_up_logging
from treadle.model.errors import InvalidInput, NonRetryable, TreadleError
from treadle.model.outcomes import AwaitingApproval, Failed, Outcome, Problem, Succeeded, Waiting
from treadle.model.tasks import LogLine, Task
from treadle.model.values import decode, encode
from treadle.workers.call import outcome_of, outcome_of_error
from treadle.workers.context import Context, RegisteredHandler
from treadle.workers.signatures import importable, unwrapped

_SPAWN = multiprocessing.get_context("spawn")


class ProcessDied(TreadleError, code="process_died"):
    """The process of an isolated handler ended without a result: it was killed, ran out of memory, or called exit."""


async def call_isolated(handler: RegisteredHandler, context: Context) -> Any:
    """Call the handler in a new process. A cancellation, or the end of this process, kills it and its child processes."""
    code = _pickled(handler)
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(
        target=_child,
        args=(theirs, code, handler.arguments, msgspec.msgpack.encode(context.task), lines_are_json()),
        daemon=True,
    )
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Outcome | None] = loop.create_future()
    outcome: Outcome | None = None
    reader = threading.Thread(target=_listen, args=(ours, context, loop, answered), name="treadle-process", daemon=True)
    try:
        process.start()
        theirs.close()
        reader.start()
        outcome = await answered
    finally:
        if process.pid is not None:
            if outcome is None:
                _kill_group(process.pid)
            process.kill()
            await asyncio.shield(asyncio.to_thread(_reap, process, reader))
        theirs.close()
        ours.close()
    if outcome is None:
        raise ProcessDied(f"The process of {handler.name} ended without a result (exit code {process.exitcode}).")
    return outcome


def _pickled(handler: RegisteredHandler) -> bytes:
    """Pickle the function by name; done here instead of in the process object, for a clear error message."""
    try:
        return pickle.dumps(importable(handler.call))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NonRetryable(
            f"The handler {handler.name} cannot run in a process: {error}. Define it at the top level of a module.",
            "not_importable",
        ) from None


def _plain(outcome: Outcome) -> Outcome:
    """Return the outcome with plain JSON values, which the parent can unpickle without the child's modules."""
    try:
        match outcome:
            case Succeeded(result):
                return Succeeded(_json(result, "result"))
            case Waiting(wait_for, checkpoint):
                return Waiting(wait_for, _json(checkpoint, "checkpoint"))
            case AwaitingApproval(request, checkpoint):
                return AwaitingApproval(request, _json(checkpoint, "checkpoint"))
    except InvalidInput as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))
    return outcome


def _json(value: Any, what: str) -> Any:
    return decode(encode(value, what, sys.maxsize))


def _kill_group(pid: int) -> None:
    """Kill the process and its children, except those that left its group; its pid is valid until it is reaped."""
    with suppress(ProcessLookupError, PermissionError):  # it has no group yet
        os.killpg(pid, signal.SIGKILL)


def _end_with_parent() -> None:
    """Lead a process group that ends with the worker, which alone renews the lease and enforces timeouts and cancellation."""
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="treadle-parent", daemon=True).start()


def _reap(process: BaseProcess, reader: threading.Thread) -> None:
    process.join()
    reader.join(1.0)  # it ends with the process, unless the process left children behind


def _listen(pipe: Connection, context: Context, loop: asyncio.AbstractEventLoop, answered: asyncio.Future[Outcome | None]) -> None:
    """Forward the child's messages until its outcome arrives or it ends."""
    outcome: Outcome | None = None
    try:
        while outcome is None:
            kind, value = pipe.recv()
            if kind == "progress":
                context.note_progress(value)
            elif kind == "tags":
                context.tags.update(value)
            elif kind == "stream":
                context.add_entry(*value)
            elif kind == "line":
                context.add_line(msgspec.msgpack.decode(value, type=LogLine))
            else:
                outcome = value
    except BaseException:  # the pipe is closed, or broke in the middle of a message: the child is gone
        outcome = None

    def resolve() -> None:
        if not answered.done():
            answered.set_result(outcome)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        return  # the loop is closed


def _child(pipe: Connection, code: bytes, arguments: int, task: bytes, json_lines: bool = False) -> None:
    """Call the handler in the child process, and send its outcome.

    The child sends outcomes instead of exceptions: they keep the traceback, and all of them can be pickled.
    """
    from treadle.kernel.store.process import SystemClock

    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the worker decides when to stop
    held = msgspec.msgpack.decode(task, type=Task)
    if json_lines:
        set_up_logging("INFO", "json")
        current_attempt.set((held.id, held.trace_id))
    context = Context(
        held,
        SystemClock().now,
        lambda line: pipe.send(("line", msgspec.msgpack.encode(line))),
        lambda text: pipe.send(("progress", text)),
    )
    context.on_stream = lambda name, text: pipe.send(("stream", (name, text)))
    context.on_tags = lambda tags: pipe.send(("tags", tags))  # immediately: the child may be killed
    try:
        call = unwrapped(pickle.loads(code))  # noqa: S301 - made by our own parent process
        returned = call(*(decode(held.payload), context)[:arguments])
        if asyncio.iscoroutine(returned):
            returned = asyncio.run(returned)
        message = pickle.dumps(("outcome", _plain(outcome_of(returned))))
    except BaseException as error:
        message = pickle.dumps(("outcome", outcome_of_error(error)))
    pipe.send_bytes(message)
