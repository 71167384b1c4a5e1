"""Where handlers run that must not run on the event loop: threads, and processes that can be killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from treadle.model.errors import NonRetryable, TreadleError
from treadle.model.tasks import LogLine, Task
from treadle.model.values import decode, encode
from treadle.workers.context import Context
from treadle.workers.handlers import Handler


class ProcessDied(TreadleError):
    """The process of an isolated handler ended without an answer: it was killed, ran out of memory, or called exit."""

    code = "process_died"


class SystemExecutor:
    """Real threads and real processes."""

    def __init__(self, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="treadle-handler")
        self._abandoned: Counter[str] = Counter()
        self._spawn = multiprocessing.get_context("spawn")

    async def in_thread(self, handler: Handler, arguments: tuple[Any, ...]) -> Any:
        """Call it in a thread; when canceled, its thread stays taken until the handler returns."""
        call = self._threads.submit(handler.call, *arguments)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if call.running():
                self._abandoned[handler.name] += 1
                call.add_done_callback(lambda _: self._abandoned.subtract([handler.name]))
            raise

    def abandoned(self, names: Iterable[str]) -> int:
        """Threads of those handlers that were given up and still run."""
        return sum(self._abandoned[name] for name in names) if self._abandoned else 0

    async def in_process(self, handler: Handler, context: Context) -> Any:
        """Call it in a new process; when canceled, the process is killed."""
        ours, theirs = self._spawn.Pipe()
        try:
            # Pickled here and not by the process object, so that a handler that cannot be found again is said so clearly.
            code = pickle.dumps(handler.call)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise NonRetryable(
                f"The handler {handler.name} cannot run in a process: {error}. Define it at the top level of a module.",
                "not_importable",
            ) from None
        process = self._spawn.Process(
            target=_child, args=(theirs, code, handler.arguments, msgspec.msgpack.encode(context.task)), daemon=True
        )
        process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[tuple[str, Any]] = loop.create_future()
        reader = threading.Thread(target=_listen, args=(ours, context, loop, answered), name="treadle-process", daemon=True)
        reader.start()
        try:
            kind, value = await answered
        finally:
            if process.is_alive():
                process.kill()
            await asyncio.to_thread(process.join)
            ours.close()
        if kind == "returned":
            return value
        if kind == "raised":
            raise value
        raise ProcessDied(f"The process of {handler.name} ended without an answer (exit code {process.exitcode}).")

    def close(self) -> None:
        """Take no more; threads that still run are left to finish."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _listen(pipe: Connection, context: Context, loop: asyncio.AbstractEventLoop, answered: asyncio.Future[tuple[str, Any]]) -> None:
    """Pass on what the child says until it has answered or is gone."""
    answer: tuple[str, Any] = ("died", None)
    try:
        while True:
            kind, value = pipe.recv()
            if kind == "progress":
                context.progress_text, context.progressed = value, True
            elif kind == "line":
                context._on_line(msgspec.msgpack.decode(value, type=LogLine))
            else:
                answer = (kind, value)
                break
    except (EOFError, OSError, pickle.UnpicklingError):
        pass

    def tell() -> None:
        if not answered.done():
            answered.set_result(answer)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        return  # the loop is closed: nobody waits


def _child(pipe: Connection, code: bytes, arguments: int, task: bytes) -> None:
    """What runs in the process: call the handler, send back what it came to."""
    from treadle.kernel.system import SystemClock

    held = msgspec.msgpack.decode(task, type=Task)
    context = Context(
        held,
        SystemClock().now,
        lambda line: pipe.send(("line", msgspec.msgpack.encode(line))),
        lambda text: pipe.send(("progress", text)),
    )
    try:
        call = pickle.loads(code)  # noqa: S301 - made by our own parent process
        returned = call(*(decode(held.payload), context)[:arguments])
        if asyncio.iscoroutine(returned):
            returned = asyncio.run(returned)
        if isinstance(returned, dict):
            encode(returned, "result")
        pipe.send(("returned", returned))
    except BaseException as error:
        try:
            pipe.send(("raised", error))
        except Exception:
            pipe.send(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
