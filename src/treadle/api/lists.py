"""Task lists: their handlers, and everything that holds work back: pausing, draining, policies, limits, rates and caps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import TaskCounts
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.lists import MAX_WORKERS, TARGET_LATENCY, Bucket

ListName = Annotated[str, Doc("The task list's name", "default")]
HandlerName = Annotated[str, Doc("The handler's name", "billing.Charge")]


class QueueStatus(TaskCounts, frozen=True):
    """The tasks of one kind and name in a list: counts and settings."""

    kind: str
    name: str
    rate: float | None
    """Maximum tasks started per second."""
    burst: int | None
    """Maximum burst size."""
    backlog_limit: int | None
    """New tasks are refused while this many are ready."""
    limit_key: str | None


class TaskListStatus(ApiRecord, frozen=True):
    """A task list, its settings and its tasks by handler."""

    task_list: str
    namespace: str
    paused: bool
    """Workers take no tasks from it; running tasks continue."""
    accepting: bool
    """False while it drains: it accepts no new tasks."""
    no_handler: str
    """Policy for tasks that no live worker has a handler for: they `wait`, or `ignore` ends them as ignored."""
    queues: list[QueueStatus]


class KeyLimit(ApiRecord, frozen=True):
    """A limit of a key (concurrency, rate or both), and its usage."""

    key: str
    """A key that begins with `handler:` limits a handler's tasks that have no key of their own."""
    max_running: int | None
    """Maximum concurrently running tasks; null: only the rate limits them."""
    by_operator: bool
    """Whether an operator set the maximum; then callers of `enqueue` cannot change it."""
    admitted: int
    waiting: int
    """Ready tasks that the limit holds back."""
    rate: float | None = None
    """Maximum tasks and function steps started per second."""
    burst: int | None = None
    """Maximum burst size."""
    next_start_at: Instant | None = None
    """When the next task may start; null: now, or when a running one ends."""
    handlers: list[str] = msgspec.field(default_factory=list)
    """Handlers whose tasks have this key unless they have their own."""
    program: str | None = None
    """The program that declares it."""


class TaskLists(ApiRecord, frozen=True):
    """All task lists."""

    lists: list[TaskListStatus]


class KeyLimits(ApiRecord, frozen=True):
    """All limits of keys."""

    limits: list[KeyLimit]


class DesiredWorkers(ApiRecord, frozen=True):
    """The recommended number of workers of a list, and its basis; durations are milliseconds."""

    task_list: str
    name: str | None
    desired: int
    workers: int
    """Live workers that serve it."""
    concurrency: int
    """Concurrency of one worker."""
    ready: int
    running: int
    oldest_for: int
    service_for: float | None
    """Average duration of a task; null: none has ended recently."""
    target_for: int
    text: str
    """The reason, in one line."""


def describe_list(status: TaskListStatus) -> str:
    """The state of a list, in a few words."""
    notes = ["paused" if status.paused else "", "" if status.accepting else "draining"]
    notes.append("ignores unknown names" if status.no_handler == "ignore" else "")
    return ", ".join(note for note in notes if note) or "open"


def _rules(queue: QueueStatus) -> str:
    rate = Bucket(rate=queue.rate, burst=queue.burst).rate_text if queue.rate is not None else ""
    backlog = f"at most {queue.backlog_limit} ready" if queue.backlog_limit is not None else ""
    return "; ".join(part for part in (rate, backlog, f"limit {queue.limit_key}" if queue.limit_key else "") if part)


QUEUE = View(
    QueueStatus,
    columns=("name", "ready", "running", "waiting", "blocked", Column("oldest", "oldest_due_at"), Column("rules", _rules)),
)
LIST = View(
    TaskListStatus,
    title="{task_list}",
    facts=(Column("state", describe_list), Column("queues", rows=QUEUE)),
    brief=("task_list", Column("state", describe_list)),
)
LIMIT = View(
    KeyLimit,
    columns=(
        Column("limit key", "key"),
        Column("max", "max_running"),
        Column("rate", lambda limit: None if limit.rate is None else Bucket(rate=limit.rate, burst=limit.burst).rate_text),
        "admitted",
        "waiting",
        Column("next start", lambda limit: limit.next_start_at if limit.waiting else None, "instant"),
        Column("set by", lambda limit: "operator" if limit.by_operator or limit.max_running is None else "enqueue"),
        "handlers",
        Column("declared by", "program", spare=True),
    ),
)


class ListsApi(Protocol):
    """Task lists and everything that holds their work back."""

    @contract.get("/lists", lists=True)
    async def list(self) -> TaskLists:
        """All task lists with their tasks by handler; only the allowed ones for a token that is restricted to task lists."""

    @contract.get("/lists/{task_list}", lists=True)
    async def get(self, task_list: ListName) -> TaskListStatus:
        """One task list with its tasks by handler."""

    @contract.post("/lists/{task_list}/pause", Scope.OPERATE, lists=True)
    async def pause(self, task_list: ListName) -> TaskListStatus:
        """Stop taking tasks from a list; running tasks continue."""

    @contract.post("/lists/{task_list}/resume", Scope.OPERATE, lists=True)
    async def resume(self, task_list: ListName) -> TaskListStatus:
        """Resume a paused list, and make a draining list accept new tasks again."""

    @contract.post("/lists/{task_list}/drain", Scope.OPERATE, lists=True)
    async def drain(self, task_list: ListName) -> TaskListStatus:
        """Drain a list: it accepts no new tasks; existing ones continue."""

    @contract.put("/lists/{task_list}/policy", Scope.OPERATE, lists=True)
    async def set_policy(
        self, task_list: ListName, no_handler: Annotated[str, Doc("`wait`, or `ignore`, which ends them as ignored", "ignore")]
    ) -> TaskListStatus:
        """Set the policy for tasks that no live worker has a handler for."""

    @contract.put("/lists/{task_list}/rates/{name}", Scope.OPERATE, lists=True)
    async def limit_rate(
        self,
        task_list: ListName,
        name: HandlerName,
        rate: Annotated[
            float | None, Doc("Tasks per second, from one per day to a million per second; null removes the limit", 2.5)
        ],
        *,
        burst: Annotated[int | None, Doc("Maximum burst size; null: one second's worth of the rate")] = None,
    ) -> TaskListStatus:
        """Limit the number of tasks of a handler that start per second in a list."""

    @contract.put("/lists/{task_list}/backlogs/{name}", Scope.OPERATE, lists=True)
    async def limit_backlog(
        self,
        task_list: ListName,
        name: HandlerName,
        backlog_limit: Annotated[int | None, Doc("Maximum number of ready tasks, at least 1; null removes the cap", 10_000)],
    ) -> TaskListStatus:
        """Refuse new tasks of a handler in a list while this many are ready."""

    @contract.get("/lists/{task_list}/desired", lists=True)
    async def desired(
        self,
        task_list: ListName,
        *,
        name: Annotated[str | None, Doc("Only this handler")] = None,
        target: Annotated[float, Doc("Seconds within which a ready task should start", 30)] = TARGET_LATENCY,
        concurrency: Annotated[int | None, Doc("Concurrency of one worker; null: that of the live workers")] = None,
        least: Annotated[int, Doc("Minimum number of workers")] = 0,
        most: Annotated[int, Doc("Maximum number of workers")] = MAX_WORKERS,
    ) -> DesiredWorkers:
        """The number of workers that a list could use, from its depth, its age and the duration of its tasks."""

    @contract.get("/limits", lists=True)
    async def limits(self) -> KeyLimits:
        """All limits of keys, with the number of admitted and waiting tasks.

        They apply across task lists: a token that is restricted to task lists sees none.
        """

    @contract.put("/limits/key", Scope.OPERATE)
    async def limit_key(
        self,
        key: Annotated[str, Doc("The limit key", "customer:42")],
        max_running: Annotated[int | None, Doc("Maximum concurrently running tasks, at least 1; null removes the limit", 3)],
    ) -> KeyLimits:
        """Limit the concurrently running tasks with a key; overrides the limit given to `enqueue`."""

    @contract.put("/limits/rate", Scope.OPERATE)
    async def limit_key_rate(
        self,
        key: Annotated[str, Doc("The limit key", "stripe")],
        rate: Annotated[
            float | None, Doc("Starts per second, from one per day to a million per second; null removes the rate", 2.5)
        ],
        *,
        burst: Annotated[int | None, Doc("Maximum burst size; null: one second's worth of the rate")] = None,
    ) -> KeyLimits:
        """Limit the number of tasks and function steps with a key that start per second, across handlers, lists and workers."""

    @contract.put("/limits/handler", Scope.OPERATE)
    async def limit_handler(
        self,
        name: HandlerName,
        max_running: Annotated[int | None, Doc("Maximum concurrently running tasks, at least 1; null removes the limit", 3)],
    ) -> KeyLimits:
        """Limit the concurrently running tasks of a handler, across all processes and lists."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Limits of a key or a handler to set or to remove, in one request of an operator."""

    key: str | None
    handler: str | None
    task_list: str
    max_running: int | None
    rate: float | None
    burst: int | None
    backlog: int | None
    remove: frozenset[str]
    """Of `max`, `rate` and `backlog`."""

    async def apply(self, lists: ListsApi) -> None:
        """Set and remove them; refuses an unknown task list first."""
        await lists.get(self.task_list)
        running = self.max_running is not None or "max" in self.remove
        rated = self.rate is not None or "rate" in self.remove
        if self.key is not None:
            if running:
                await lists.limit_key(self.key, self.max_running)
            if rated:
                await lists.limit_key_rate(self.key, self.rate, burst=self.burst)
        if self.handler is not None:
            if running:
                await lists.limit_handler(self.handler, self.max_running)
            if rated or self.burst is not None:
                await lists.limit_rate(self.task_list, self.handler, self.rate, burst=self.burst)
            if self.backlog is not None or "backlog" in self.remove:
                await lists.limit_backlog(self.task_list, self.handler, self.backlog)
