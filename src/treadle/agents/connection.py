"""An engine on its own event loop, for code without one: the base of the blocking agent classes.

The loop's thread starts when the connection opens and ends when it closes; no other call starts a thread.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from treadle.agents.entities import without_kept
from treadle.agents.locks import Locks
from treadle.engine import Engine
from treadle.engine.sync import BlockingEngine
from treadle.evaluator import StepRow
from treadle.kernel.claims import take
from treadle.kernel.queue.decide import decide, refusal
from treadle.kernel.queue.waker import Waker
from treadle.kernel.runs.decide import load_step
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Seen, Verdict
from treadle.model.errors import InvalidInput, StoreError, TreadleError
from treadle.model.ids import parse_id
from treadle.model.names import (
    ADVANCE,
    APPROVAL,
    HANDLER,
    SCRIPT,
)
from treadle.model.outcomes import Failed, Outcome, Released
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.tasks import Task
from treadle.model.values import Json, decode
from treadle.settings import Settings
from treadle.workers.builtins import run_handlers
from treadle.workers.call import call
from treadle.workers.context import Context
from treadle.workers.scripts import ScriptRunner

C = TypeVar("C", bound="Connection")
P = ParamSpec("P")
T = TypeVar("T")

LEASE_FOR = 120_000
"""Milliseconds that a claim is valid without renewal (D52)."""
PROMPT_FOR = 600_000
"""Milliseconds that a prompt may take, and that its unrenewed claim is valid."""
_no_executor: Any = None
"""The engine's own handlers are async, and run on the loop."""


class WrongThread(TreadleError, code="wrong_thread"):
    """A blocking call would block the event loop that must answer it."""


def on_loop(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[C, P], T]:
    """Make an async method block: it runs on the engine's loop, and the caller waits."""

    @wraps(method)
    def call(self: C, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self.run(method(self, *arguments, **options))

    return call


class Connection:
    """Opens the store when created; close it with `close`, a `with` block, or the end of the process."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(url, settings=settings)
        self.kernel = self.engine.kernel
        self.owner_id = self.kernel.ids.new_id()
        self.claims: dict[str, Task] = {}
        """The tasks that are claimed here, by id."""
        self._blocking = BlockingEngine(self.engine)
        self._blocking.__enter__()
        self._thread = self._loop_thread()
        self._waker = Waker(self.kernel.store, self.kernel.clock, LEASE_FOR, self.kernel.committer.notify, self.kernel.emit)
        self._scripts: ScriptRunner | None = None
        self.locks = Locks(self.kernel.store, self.kernel.committer, self.kernel.ids, namespace=self.kernel.settings.namespace)
        self._held_locks: dict[str, Seen] = {}
        self._closed = False
        _close_at_exit(self)

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self.kernel.store.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the engine; idempotent. Unsettled claims expire with their lease."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._scripts is not None:
                self._blocking.run(self._scripts.close())
        finally:
            self._blocking.__exit__()

    def _loop_thread(self) -> threading.Thread:
        """Return the thread of the engine's loop."""

        async def here() -> threading.Thread:
            return threading.current_thread()

        return self._blocking.run(here())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop and wait for it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise WrongThread("This call would wait for itself: use it in threads, or the async `Engine` on the event loop.")
        return self._blocking.run(coroutine)

    # claim and settle, on the engine's loop

    async def claim_where(
        self, matches: Callable[[str, str], bool], task_list: str | None, limit: int, lease_for: int = LEASE_FOR
    ) -> list[Task]:
        """Claim up to `limit` tasks whose (kind, name) matches, oldest first, and remember the claims.

        If none is ready, wake the due ones first: there may be no worker to do it.
        """
        store, namespace = self.kernel.store, self.kernel.settings.namespace
        tasks: list[Task] = []
        for woken in (False, True):
            queue_ids = [
                queue_id
                for queue_id, queue in (await store.tasks.list_queues()).items()
                if queue.namespace == namespace and task_list in (None, queue.task_list) and matches(queue.kind, queue.name)
            ]
            if queue_ids:
                claim = partial(store.tasks.claim, queue_ids, self.owner_id, lease_for)
                tasks = await take(claim, self.kernel.approvals.process_due, limit)
            if tasks or woken:
                break
            await self._waker.tick()
        for task in tasks:
            self.claims[task.id] = task
        return tasks

    @contextmanager
    def renewed(self, tasks: Sequence[Task], lease_for: int) -> Iterator[None]:
        """Renew the claims on these tasks while they are held here, on the engine's loop, until the block ends."""

        async def start() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(self._renew(tasks, lease_for))

        async def end() -> None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

        renewing = self.run(start())
        try:
            yield
        finally:
            self.run(end())

    async def _renew(self, tasks: Sequence[Task], lease_for: int) -> None:
        while True:
            await self.kernel.clock.sleep(lease_for / 3000)
            held = [Renewal(task.claim) for task in tasks if self.claims.get(task.id) is task]
            with suppress(StoreError):  # retried at the next renewal; otherwise other agents take over
                await self.kernel.store.tasks.extend(held, lease_for)

    async def payload_of(self, task: Task) -> dict[str, Json]:
        """Return the payload of the task, as a new object."""
        return without_kept(await self.whole_payload_of(task))

    async def whole_payload_of(self, task: Task) -> dict[str, Json]:
        """Return the payload of the task with the fields that `save_task` kept in it."""
        text = await self.kernel.value_store.unpack_text(task.payload) if task.payload.startswith("@") else task.payload
        payload: dict[str, Json] = decode(text)
        return payload

    async def settle(self, task: Task, outcome: Outcome, policy: RetryPolicy = NO_RETRY) -> bool:
        """Commit the outcome of an attempt under its claim, with the consequences for its run; False if the claim was lost.

        A result that cannot be stored raises `InvalidPayload` or `PayloadTooLarge`; the claim is still held then.
        """
        try:
            decided = decide(task, outcome, policy, self.kernel.ids.random, self.kernel.settings.payload_limit)
        except InvalidInput:
            self.claims[task.id] = task
            raise
        answer = await self.kernel.run_services.settler.settle(task, task.claim, decided)
        return answer.verdict is Verdict.DONE

    async def release(self, task: Task, released: Released) -> None:
        """Release the task."""
        self.claims.pop(task.id, None)
        await self.settle(task, released)

    async def work_own_kinds(self, limit: int = 16) -> int:
        """Do the engine's own tasks, so that runs proceed with agents alone; return their number."""
        if self._scripts is None:
            self._scripts = ScriptRunner()
        handlers = run_handlers(self._scripts)
        tasks = await self.claim_where(lambda kind, _: kind in (ADVANCE, APPROVAL, SCRIPT), None, limit)
        for task in tasks:
            self.claims.pop(task.id, None)
            problem = refusal(task, 2**31 if task.kind == ADVANCE else 5)
            if problem is not None:
                await self.settle(task, Failed(problem))
                continue
            task.payload = await self.kernel.value_store.unpack_text(task.payload)
            context = Context(task, self.kernel.clock.now, lambda _: None)
            handler = handlers[task.kind]
            await self.settle(task, await call(handler, context, _no_executor), handler.retry)
        return len(tasks)

    async def claim_prompt(self, task_list: str, served: Callable[[str], bool]) -> Task | None:
        """Claim one task of a prompt, if this engine serves prompts; none of a name that is `served` by a handler."""
        fallback, namespace = self.kernel.registry.fallback, self.kernel.settings.namespace
        if fallback is None:
            return None
        queues = [queue for queue in (await self.kernel.store.tasks.list_queues()).values() if queue.namespace == namespace]
        await fallback.prepare(sorted({queue.name for queue in queues if queue.kind == HANDLER and not served(queue.name)}))

        def is_prompt(kind: str, name: str) -> bool:
            return kind == HANDLER and not served(name) and fallback.find(name) is not None

        return next(iter(await self.claim_where(is_prompt, task_list, 1, PROMPT_FOR)), None)

    async def ask_prompt(self, task: Task, context: Context) -> Outcome | None:
        """Let the engine's fallback handle the task; None if it no longer serves it."""
        handler = None if self.kernel.registry.fallback is None else self.kernel.registry.fallback.find(task.name)
        if handler is None:
            return None
        task.payload = await self.kernel.value_store.unpack_text(task.payload)
        bounded = handler if handler.timeout_for is not None else msgspec.structs.replace(handler, timeout_for=PROMPT_FOR)
        return await call(bounded, context, _no_executor)

    async def find_step_row(self, step_id: str) -> StepRow | None:
        """Return the step as the evaluator knows it; None for any other text."""
        try:
            step = await self.kernel.store.runs.find_step(parse_id(step_id, "step id"))
        except InvalidInput:
            return None
        return None if step is None else load_step(step, self.kernel.value_store)


def forbid_event_loop(what: str) -> None:
    """Raise `WrongThread` inside a running event loop, which the call would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrongThread(f"{what} blocks, and this thread runs an event loop: call it with `await asyncio.to_thread(...)`.")


def _close_at_exit(connection: Connection) -> None:
    """Close the connection at the end of the process, if it still exists."""
    seen = weakref.ref(connection)

    def close() -> None:
        if (connection := seen()) is not None:
            connection.close()

    atexit.register(close)
    weakref.finalize(connection, atexit.unregister, close).atexit = False
