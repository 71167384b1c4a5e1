"""Task lists, rates and limits: the operator's settings and the current depths."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

from treadle.api.lists import DesiredWorkers, KeyLimit, KeyLimits, QueueStatus, TaskLists, TaskListStatus
from treadle.api.wire import Instant, record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.operations import operation_entry
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.lookups import find_owners
from treadle.kernel.store.ports import LATER
from treadle.kernel.store.units import Row
from treadle.kernel.telemetry.events import Operated
from treadle.model.access import Access
from treadle.model.declarations import MAX, RATE
from treadle.model.errors import InvalidPolicy, NotFound
from treadle.model.lists import (
    MAX_WORKERS,
    NO_HANDLER_POLICIES,
    TARGET_LATENCY,
    Bucket,
    Limit,
    TaskList,
    check_count,
    check_rate,
    handler_key,
    parse_rate,
)
from treadle.model.names import DEFAULT_LIST, HANDLER, QueueKey, check_key, check_name

_EMPTY = SimpleNamespace(ready=0, running=0, waiting=0, blocked=0, oldest_due_at=None)
"""The depth of a queue without live tasks."""


class Lists(Service):
    """Operate the task lists of one namespace. A refused change has no effect."""

    def __init__(self, core: Core, reads: Reads) -> None:
        super().__init__(core)
        self._reads = reads

    # reads

    async def list(self, *, access: Access | None = None) -> TaskLists:
        """Return all task lists with their tasks by handler; only the allowed ones for restricted callers."""
        settings = await self._settings()
        names = [name for name in sorted(settings) if access is None or access.may_use(name)]
        return TaskLists(await self._status([settings[name] for name in names]))

    async def get(self, task_list: str) -> TaskListStatus:
        """Return one task list with its tasks by handler, or raise `NotFound`."""
        (status,) = await self._status([await self._find(task_list)])
        return status

    async def _status(self, lists: builtins.list[TaskList]) -> builtins.list[TaskListStatus]:
        depths = {depth.queue_id: depth for depth in await self._store.tasks.list_depths()}
        queues: dict[str, builtins.list[QueueStatus]] = {settings.task_list: [] for settings in lists}
        for rule in sorted(await self._store.operators.list_queue_rules(), key=lambda rule: rule.queue):
            if rule.queue.namespace == self._namespace and rule.queue.task_list in queues:
                depth = depths.get(rule.queue_id) or _EMPTY
                queues[rule.queue.task_list].append(record_of(QueueStatus, depth, rule, rule.queue))
        return [record_of(TaskListStatus, settings, queues=queues[settings.task_list]) for settings in lists]

    async def _find(self, task_list: str) -> TaskList:
        check_name(task_list, "task list")
        settings = await self._settings()
        if task_list not in settings:
            raise NotFound(
                f"There is no task list {task_list}; the existing ones are: {', '.join(sorted(settings))}.", code="list_not_found"
            )
        return settings[task_list]

    async def limits(self, *, access: Access | None = None) -> KeyLimits:
        """Return all limits on keys, with the numbers of admitted and waiting tasks; none for restricted callers."""
        if access is not None and access.task_lists:
            return KeyLimits([])
        now, handlers = await self._store.now(), dict[str, builtins.list[str]]()
        for name, key in (await self.handler_keys()).items():
            handlers.setdefault(key, []).append(name)
        owners = await find_owners(self._store, self._namespace)
        return KeyLimits(
            [
                _limit(
                    limit, handlers.get(limit.key, []), now, owners.get(f"{MAX} {limit.key}") or owners.get(f"{RATE} {limit.key}")
                )
                for limit in await self._store.operators.list_limits(self._namespace)
            ]
        )

    async def desired(
        self,
        task_list: str,
        *,
        name: str | None = None,
        target: float = TARGET_LATENCY,
        concurrency: int | None = None,
        least: int = 0,
        most: int = MAX_WORKERS,
    ) -> DesiredWorkers:
        """Return the number of workers that a list could use, and its basis."""
        await self._find(task_list)
        return await self._reads.desired_workers(
            task_list, name=name, target_latency=target, concurrency=concurrency, minimum=least, maximum=most
        )

    # lists

    async def pause(self, task_list: str, *, actor: str = "operator") -> TaskListStatus:
        """Stop claims from the list; running tasks continue. Other lists with the same limit keys may use their slots."""
        return await self._set("pause", task_list, f"task list {task_list} paused", actor, paused=True)

    async def resume(self, task_list: str, *, actor: str = "operator") -> TaskListStatus:
        """Resume a paused list, and let a draining one accept new work again."""
        return await self._set("resume", task_list, f"task list {task_list} resumed", actor, paused=False, accepting=True)

    async def drain(self, task_list: str, *, actor: str = "operator") -> TaskListStatus:
        """Accept no more work in the list: enqueueing raises `ListDraining`. Existing tasks continue."""
        return await self._set("drain", task_list, f"task list {task_list} draining", actor, accepting=False)

    async def set_policy(self, task_list: str, no_handler: str, *, actor: str = "operator") -> TaskListStatus:
        """Set the policy for tasks without a live handler: `wait`, or `ignore`, which ends them as ignored."""
        if no_handler not in NO_HANDLER_POLICIES:
            raise InvalidPolicy(
                f"Unknown policy {no_handler!r} for tasks without a handler; use {' or '.join(NO_HANDLER_POLICIES)}."
            )
        return await self._set(
            "set_policy", task_list, f"task list {task_list}, names without a handler: {no_handler}", actor, no_handler=no_handler
        )

    # limits

    async def limit_key(self, key: str, max_running: int | None, *, actor: str = "operator") -> KeyLimits:
        """Run at most `max_running` tasks with the limit key concurrently; None removes the limit. Overrides the limit given to
        `enqueue`.
        """
        check_key(key, "limit key")
        if max_running is not None:
            check_count(max_running, "A limit")
        entry = operation_entry(
            self._core, "lists.limit_key", key, actor, await self._limit_of(key, "max_running"), {"max_running": max_running}
        )
        queues = await self._store.operators.set_limit(self._namespace, key, max_running, entry)
        self._done(f"limit of {key}: {'none' if max_running is None else max_running}", actor, queues)
        return await self.limits()

    async def limit_key_rate(
        self, key: str, rate: float | str | None, burst: int | None = None, *, actor: str = "operator"
    ) -> KeyLimits:
        """Start tasks with the limit key at `rate` (per second, or a text such as `10/min`), with bursts of up to `burst`.

        The rate applies to all handlers, lists, workers and function steps that use the key; None removes it. `burst` defaults
        to one second's worth, at least 1. Waiting work obeys a change immediately.
        """
        check_key(key, "limit key")
        rate = None if rate is None else parse_rate(rate)
        burst = check_rate(rate, burst)
        per_second = None if rate is None else float(rate)
        after = {"rate": per_second, "burst": burst}
        before = await self._limit_of(key, *after)
        entry = operation_entry(self._core, "lists.limit_key_rate", key, actor, before, after, whole=True)
        queues = await self._store.operators.set_key_rate(self._namespace, key, per_second, burst, entry)
        self._done(f"rate of key {key}: {Bucket(rate=rate, burst=burst).rate_text}", actor, queues)
        await self._store.notify((LATER,))  # a waker that sleeps for long learns of the next start
        return await self.limits()

    async def handler_keys(self) -> dict[str, str]:
        """The limit keys of handlers, by name."""
        return await self._store.operators.list_handler_keys(self._namespace)

    async def set_handler_key(self, name: str, key: str | None, *, actor: str = "operator") -> None:
        """Count the handler's tasks that have no limit key of their own under this one; None removes it."""
        before, after = (
            {"limit_key": (await self.handler_keys()).get(check_name(name))},
            {"limit_key": key and check_key(key, "limit key")},
        )
        entry = operation_entry(self._core, "lists.set_handler_key", name, actor, before, after)
        queues = await self._store.operators.set_handler_key(self._namespace, name, key, entry)
        self._done(f"limit key of handler {name}: {key or 'none'}", actor, queues)

    async def limit_handler(self, name: str, max_running: int | None, *, actor: str = "operator") -> KeyLimits:
        """Run at most `max_running` tasks of the handler concurrently, across all processes and lists; None removes the limit.

        Tasks with a limit key of their own count under that key, not here.
        """
        if max_running is not None and (key := (await self.handler_keys()).get(check_name(name))) is not None:
            raise InvalidPolicy(
                f"The tasks of {name} count under the limit key {key}: limit that key (`treadle lists limit --key {key} --max "
                f"{max_running}`)."
            )
        return await self.limit_key(handler_key(check_name(name)), max_running, actor=actor)

    async def limit_rate(
        self, task_list: str, name: str, rate: float | str | None, burst: int | None = None, *, actor: str = "operator"
    ) -> TaskListStatus:
        """Claim at most `rate` tasks of this name per second from the list, with bursts of up to `burst`; None removes the
        rate.

        `burst` defaults to one second's worth, at least 1.
        """
        rate = None if rate is None else parse_rate(rate)
        burst = check_rate(rate, burst)
        queue_id = await self._queue_id(task_list, name)
        per_second = None if rate is None else float(rate)
        after = {"rate": per_second, "burst": burst}
        entry = await self._queue_entry("lists.limit_rate", queue_id, actor, after)
        await self._store.operators.set_rate(queue_id, per_second, burst, entry)
        self._done(f"rate of {name} in list {task_list}: {Bucket(rate=rate, burst=burst).rate_text}", actor, (queue_id,))
        await self._store.notify(())  # workers claim from rate-limited queues differently: let them read the queues again
        return await self.get(task_list)

    async def limit_backlog(
        self, task_list: str, name: str, backlog_limit: int | None, *, actor: str = "operator"
    ) -> TaskListStatus:
        """Refuse new tasks of this name in the list (`BacklogFull`) beyond that many ready ones; None removes the limit."""
        if backlog_limit is not None:
            check_count(backlog_limit, "A backlog cap")
        queue_id = await self._queue_id(task_list, name)
        entry = await self._queue_entry("lists.limit_backlog", queue_id, actor, {"backlog_limit": backlog_limit})
        await self._store.operators.set_backlog_limit(queue_id, backlog_limit, entry)
        self._done(f"backlog of {name} in list {task_list}: {'any' if backlog_limit is None else backlog_limit}", actor, ())
        return await self.get(task_list)

    async def _set(self, operation: str, task_list: str, act: str, actor: str, **changes: Any) -> TaskListStatus:
        settings = await self._find(task_list)
        before = {name: getattr(settings, name) for name in changes}
        entry = operation_entry(self._core, f"lists.{operation}", task_list, actor, before, changes)
        queues = await self._store.operators.set_list(self._namespace, task_list, **changes, entry=entry)
        self._done(act, actor, queues)
        return await self.get(task_list)

    async def _limit_of(self, key: str, *names: str) -> dict[str, Any]:
        """Return the limits of a key, for the log."""
        limits = {limit.key: limit for limit in await self._store.operators.list_limits(self._namespace)}
        return {name: getattr(limits.get(key), name, None) for name in names}

    async def _queue_entry(self, operation: str, queue_id: int, actor: str, after: dict[str, Any]) -> tuple[Row, ...]:
        """Return the entry of the log about new settings of a queue."""
        (rule,) = [rule for rule in await self._store.operators.list_queue_rules() if rule.queue_id == queue_id]
        before = {name: getattr(rule, name) for name in after}
        return operation_entry(self._core, operation, f"{rule.queue.task_list}/{rule.queue.name}", actor, before, after, whole=True)

    def _done(self, act: str, actor: str, queue_ids: tuple[int, ...]) -> None:
        self._emit(Operated(act, actor))
        if queue_ids:
            self._committer.notify(queue_ids)

    async def _queue_id(self, task_list: str, name: str) -> int:
        queue = QueueKey(self._namespace, HANDLER, task_list, check_name(name))
        await self._find(task_list)
        return (await self._store.tasks.queue_ids([queue]))[queue]

    async def _settings(self) -> dict[str, TaskList]:
        """All lists with tasks, servers or settings, and the default one."""
        names = {DEFAULT_LIST}
        names.update(
            queue.task_list for queue in (await self._store.tasks.list_queues()).values() if queue.namespace == self._namespace
        )
        for server in await self._store.servers.list_all(self._namespace):
            names.update(server.task_lists)
        stored = {
            settings.task_list: settings
            for settings in await self._store.operators.list_lists()
            if settings.namespace == self._namespace
        }
        return {name: TaskList(namespace=self._namespace, task_list=name) for name in names} | stored


def _limit(limit: Limit, handlers: list[str], now: int, program: str | None) -> KeyLimit:
    next_for = limit.next_start_for(now)
    return record_of(
        KeyLimit, limit, handlers=handlers, program=program, next_start_at=Instant.of(now + next_for) if next_for else None
    )
