"""An engine on its own event loop, for code without one: the base of the blocking agent classes.

The loop's thread starts when the connection opens and ends when it closes; no other call starts a thread.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from treadle.agents.entities import without_kept
from treadle.engine import Engine
from treadle.engine.sync import BlockingEngine
from treadle.kernel.claims import take
from treadle.kernel.queue.decide import decide, refusal
from treadle.kernel.queue.waker import Waker
from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Park, Seen, Settlement, Unit, Verdict
from treadle.model.clock import milliseconds
from treadle.model.errors import Contended, InvalidInput, TreadleError
from treadle.model.ids import Ids
from treadle.model.names import (
    ADVANCE,
    APPROVAL,
    DEFAULT_NAMESPACE,
    ENGINE_LIST,
    HANDLER,
    LOCK,
    SCRIPT,
    Lane,
    check_key,
    short_name,
)
from treadle.model.outcomes import Failed, Outcome, Released
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, LogLine, NewTask, Task
from treadle.model.values import Json, decode, encode
from treadle.settings import Settings
from treadle.workers.builtins import builtin_handlers
from treadle.workers.call import call
from treadle.workers.context import Context
from treadle.workers.scripts import ScriptRunner


@dataclass(frozen=True, slots=True)
class Held:
    """A claimed task; `until` is the end of its lease on the monotonic clock."""

    task: Task
    until: float

    @property
    def claim(self) -> Claim:
        return self.task.claim


class Claims:
    """Claims by task and by step; thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._steps: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, held: Held) -> None:
        """Add a claim; a later claim on the same task replaces the earlier one."""
        with self._lock:
            self._held[held.task.id] = held
            if held.task.step_id is not None:
                self._steps[held.task.step_id] = held.task.id

    def find(self, task_id: str) -> Held | None:
        """Return the claim on the task."""
        with self._lock:
            return self._held.get(task_id)

    def take(self, task_id: str) -> Held | None:
        """Remove and return the claim on the task, which is about to be settled."""
        with self._lock:
            held = self._held.pop(task_id, None)
            if held is not None and held.task.step_id is not None:
                self._steps.pop(held.task.step_id, None)
            return held

    def take_of_step(self, step_id: str) -> Held | None:
        """Remove and return the claim on the step's task."""
        with self._lock:
            task_id = self._steps.get(step_id)
        return None if task_id is None else self.take(task_id)

    def __len__(self) -> int:
        return len(self._held)


_TRIES = 5
_PREFIX = "lock:"


@dataclass(frozen=True, slots=True)
class Lock:
    """A held lock; its guard is known to the holder only."""

    key: str
    seen: Seen


class Locks:
    """The locks of one namespace."""

    def __init__(self, store: Store, committer: Committer, ids: Ids, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._committer = committer
        self._ids = ids
        self._namespace = namespace

    async def acquire(self, key: str, duration_ms: int, meta: dict[str, Json] | None = None) -> Lock | None:
        """Take the lock for the duration if it is free or expired; otherwise return None without waiting."""
        unique_key = _PREFIX + check_key(key, "lock key")
        hold_for = milliseconds(duration_ms, "duration", positive=True, unit=1)

        async def attempt() -> Lock | None:
            task = NewTask(
                id=self._ids.new_id(),
                lane=Lane(self._namespace, LOCK, ENGINE_LIST, LOCK),
                payload=encode({"key": key, "meta": meta or {}}, "lock"),
                delay=hold_for,
                unique_key=unique_key,
            )
            answer = await self._committer.submit(Unit(tasks=(task,)))
            holder = answer.existing.get(unique_key)
            if holder is None:
                return Lock(key, Seen(task.id, 0, 0))
            found = await self._store.tasks.find(holder)
            if found is None or found.finished:
                raise Stale  # released between the commit and this read
            if not self._free(found, await self._store.now()):
                return None
            if (taken := await self._move(key, Seen.of(found), _kept(found, hold_for))) is None:
                raise Stale
            return taken

        try:
            return await self._committer.transact(attempt, f"acquire the lock {key}", tries=_TRIES)
        except Contended:
            return None  # others acquired and released it meanwhile

    async def extend(self, lock: Lock, duration_ms: int) -> Lock | None:
        """Extend the lock to the duration from now; None if no longer held."""
        found = await self._store.tasks.find(lock.seen.task_id)
        if found is None or found.finished or Seen.of(found) != lock.seen or self._free(found, await self._store.now()):
            return None
        return await self._move(lock.key, lock.seen, _kept(found, milliseconds(duration_ms, "duration", positive=True, unit=1)))

    async def release(self, lock: Lock) -> bool:
        """Release the lock; False if no longer held."""
        finish = Finish("succeed", TaskState.COMPLETED, actor="lock")
        return (await self._committer.submit(Unit(lock.seen, finish))).verdict is Verdict.DONE

    async def find(self, key: str) -> tuple[int, int, dict[str, Any]] | None:
        """Return when the lock was taken, when it expires, and its holder's metadata; None if it is free."""
        now = await self._store.now()
        which = TaskFilter(states=(TaskState.PENDING,), namespace=self._namespace, kind=LOCK)
        for task in await self._store.tasks.list_matching(which, 1000):
            if task.unique_key == _PREFIX + key and not self._free(task, now):
                return task.created_at, task.wake_at or now, decode(task.payload)["meta"]
        return None

    async def tidy(self, older_for: int = 3_600_000, limit: int = 1000) -> int:
        """End the tasks of up to `limit` locks that expired at least `older_for` milliseconds ago; returns their number."""
        now = await self._store.now()
        which = TaskFilter(states=(TaskState.PENDING,), namespace=self._namespace, kind=LOCK)
        tasks = [task for task in await self._store.tasks.list_matching(which, limit) if self._free(task, now - older_for)]
        old = [task for task in tasks if task.due_at <= now - older_for]
        return sum([await self.release(Lock("", Seen.of(task))) for task in old])

    @staticmethod
    def _free(task: Task, now: int) -> bool:
        """Whether the lock has expired, woken or not."""
        return task.wake_at is None or task.wake_at <= now

    async def _move(self, key: str, seen: Seen, settlement: Settlement) -> Lock | None:
        answer = await self._committer.submit(Unit(seen, settlement))
        if answer.verdict is not Verdict.DONE:
            return None
        return Lock(key, Seen(seen.task_id, seen.version + 1, seen.claim_version))


def _kept(task: Task, hold_for: int) -> Park:
    return Park("wait", TaskState.PENDING, task.attempt, task.failures, task.takeovers, delay=hold_for, actor="lock")


C = TypeVar("C", bound="Connection")
P = ParamSpec("P")
T = TypeVar("T")

LEASE_FOR = 120_000
"""Milliseconds that a claim is valid without renewal (D52)."""
PROMPT_FOR = 600_000
"""Milliseconds that a prompt may take, and that its unrenewed claim is valid."""


class WrongThread(TreadleError):
    """A blocking call would block the event loop that must answer it."""

    code = "wrong_thread"


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
        self.claims = Claims()
        self._blocking = BlockingEngine(self.engine)
        self._blocking.__enter__()
        self._thread = self._loop_thread()
        self._waker = Waker(self.kernel.store, self.kernel.clock, LEASE_FOR, self.kernel.committer.notify, self.kernel.emit)
        self._scripts: ScriptRunner | None = None
        self.locks = Locks(self.kernel.store, self.kernel.committer, self.kernel.ids, namespace=self.kernel.settings.namespace)
        self._held_locks: dict[str, Lock] = {}
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

    async def claim(self, names: Iterable[str], task_list: str, limit: int, lease_for: int = LEASE_FOR) -> list[Held]:
        """Claim up to `limit` handler tasks of those names (short names match too), and remember the claims."""
        wanted = set(names)
        return await self.claim_where(
            lambda kind, name: kind == HANDLER and (name in wanted or short_name(name) in wanted), task_list, limit, lease_for
        )

    async def claim_where(
        self, matches: Callable[[str, str], bool], task_list: str | None, limit: int, lease_for: int = LEASE_FOR
    ) -> list[Held]:
        """Claim up to `limit` tasks whose (kind, name) matches, oldest first, and remember the claims.

        If none is ready, wake the due ones first: there may be no worker to do it.
        """
        store, namespace = self.kernel.store, self.kernel.settings.namespace
        tasks: list[Task] = []
        sent_at = self.kernel.clock.monotonic()
        for woken in (False, True):
            lane_ids = [
                lane_id
                for lane_id, lane in (await store.tasks.list_lanes()).items()
                if lane.namespace == namespace and task_list in (None, lane.task_list) and matches(lane.kind, lane.name)
            ]
            sent_at = self.kernel.clock.monotonic()
            if lane_ids:
                claim = partial(store.tasks.claim, lane_ids, self.owner_id, lease_for)
                tasks = await take(claim, self.kernel.approvals.tend, limit)
            if tasks or woken:
                break
            await self._waker.tick()
        claimed = [Held(task, sent_at + lease_for / 1000) for task in tasks]
        for held in claimed:
            self.claims.add(held)
        return claimed

    async def payload_of(self, task: Task) -> dict[str, Json]:
        """Return the payload of the task, as a new object."""
        return without_kept(await self.whole_payload_of(task))

    async def whole_payload_of(self, task: Task) -> dict[str, Json]:
        """Return the payload of the task with the fields that `save_task` kept in it."""
        text = await self.kernel.value_store.open_text(task.payload) if task.payload.startswith("@") else task.payload
        found: dict[str, Json] = decode(text)
        return found

    async def settle(self, held: Held, outcome: Outcome, policy: RetryPolicy = NO_RETRY) -> bool:
        """Commit the outcome of an attempt under its claim, with the consequences for its run; False if the claim was lost.

        A result that cannot be stored raises `InvalidPayload` or `PayloadTooLarge`; the claim is still held then.
        """
        try:
            decided = decide(held.task, outcome, policy, self.kernel.ids.random, self.kernel.settings.payload_limit)
        except InvalidInput:
            self.claims.add(held)
            raise
        answer = await self.kernel.run_services.settler.settle(held.task, held.claim, decided)
        return answer.verdict is Verdict.DONE

    async def release(self, held: Held, reason: str) -> None:
        """Release the task immediately."""
        self.claims.take(held.task.id)
        await self.settle(held, Released(reason))

    async def work_own_kinds(self, limit: int = 16) -> int:
        """Do the engine's own tasks, so that runs proceed with agents alone; return their number."""
        if self._scripts is None:
            self._scripts = ScriptRunner()
        handlers = builtin_handlers(self._scripts, self.kernel.retention)
        held = await self.claim_where(lambda kind, _: kind in (ADVANCE, APPROVAL, SCRIPT), None, limit)
        for each in held:
            self.claims.take(each.task.id)
            problem = refusal(each.task, 2**31 if each.task.kind == ADVANCE else 5)
            if problem is not None:
                await self.settle(each, Failed(problem))
                continue
            each.task.payload = await self.kernel.value_store.open_text(each.task.payload)
            context = Context(each.task, self.kernel.clock.now, lambda _: None)
            handler = handlers[each.task.kind]
            await self.settle(each, await call(handler, context, _NoExecutor()), handler.retry)
        return len(held)

    async def claim_prompt(self, task_list: str, served: Callable[[str], bool]) -> Held | None:
        """Claim one task of a prompt, if this engine serves prompts; none of a name that is `served` by a handler."""
        fallback, namespace = self.kernel.registry.fallback, self.kernel.settings.namespace
        if fallback is None:
            return None
        lanes = [lane for lane in (await self.kernel.store.tasks.list_lanes()).values() if lane.namespace == namespace]
        await fallback.prepare(sorted({lane.name for lane in lanes if lane.kind == HANDLER and not served(lane.name)}))

        def is_prompt(kind: str, name: str) -> bool:
            return kind == HANDLER and not served(name) and fallback.find(name) is not None

        return next(iter(await self.claim_where(is_prompt, task_list, 1, PROMPT_FOR)), None)

    async def ask_prompt(self, held: Held, context: Context) -> Outcome | None:
        """Let the engine's fallback handle the task; None if it no longer serves it."""
        handler = None if self.kernel.registry.fallback is None else self.kernel.registry.fallback.find(held.task.name)
        if handler is None:
            return None
        held.task.payload = await self.kernel.value_store.open_text(held.task.payload)
        bounded = handler if handler.timeout_for is not None else msgspec.structs.replace(handler, timeout_for=PROMPT_FOR)
        return await call(bounded, context, _NoExecutor())

    async def append_lines(self, lines: list[LogLine]) -> None:
        """Store log lines of handlers."""
        await self.kernel.store.log.append_lines(lines)


class _NoExecutor:
    """An executor that is never used: the engine's own handlers are async."""

    def in_thread(self, handler: Any, arguments: Any) -> Any:
        raise NotImplementedError

    def in_process(self, handler: Any, context: Any) -> Any:
        raise NotImplementedError

    def abandoned(self, names: Iterable[str]) -> int:
        return 0


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
        if (left := seen()) is not None:
            left.close()

    atexit.register(close)
    weakref.finalize(connection, atexit.unregister, close).atexit = False
