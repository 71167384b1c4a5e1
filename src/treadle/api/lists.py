"""Task lists: what is in their lanes, and what holds work back: pausing, draining, policies, limits, rates and caps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.lists import MOST_WORKERS, TARGET_LATENCY

ListName = Annotated[str, Doc("The task list's name", "default")]
HandlerName = Annotated[str, Doc("The handler's name", "billing.Charge")]


@dataclass(frozen=True, slots=True)
class LaneShown(ApiRecord):
    """The tasks of one kind and name in a list: how many there are, and what was said about them."""

    kind: str
    name: str
    ready: int
    running: int
    waiting: int
    """Those that sleep: a delay, a backoff, a poll, an approval."""
    held: int
    """Those that a pause or a limit holds back."""
    oldest_due_at: Instant | None
    """Since when the longest ready one is due."""
    rate: float | None
    """Tasks that may be taken in a second."""
    burst: int | None
    """Tasks that may be taken at once after a quiet time."""
    backlog_limit: int | None
    """New tasks are refused over so many ready ones."""
    limit_key: str | None


@dataclass(frozen=True, slots=True)
class TaskListShown(ApiRecord):
    """A task list, what was said about it, and its lanes."""

    task_list: str
    namespace: str
    paused: bool
    """Nothing of it is taken; what runs goes on."""
    accepting: bool
    """False while it drains: it takes no new work."""
    no_handler: str
    """What becomes of tasks of a name that no live server serves: they `wait`, or `ignore` ends them as ignored."""
    lanes: list[LaneShown]


@dataclass(frozen=True, slots=True)
class KeyLimit(ApiRecord):
    """A limit on a key, and how it stands."""

    key: str
    """One that begins with `handler:` is that of a handler's tasks without a key of their own."""
    max_running: int
    by_operator: bool
    """Then what callers of `enqueue` say does not change it."""
    admitted: int
    waiting: int
    """Tasks that would be ready but for the limit."""


@dataclass(frozen=True, slots=True)
class TaskLists(ApiRecord):
    """All task lists."""

    lists: list[TaskListShown]


@dataclass(frozen=True, slots=True)
class KeyLimits(ApiRecord):
    """All limits on keys."""

    limits: list[KeyLimit]


@dataclass(frozen=True, slots=True)
class DesiredWorkers(ApiRecord):
    """How many workers a list could use, and what that was made from; durations are milliseconds."""

    task_list: str
    name: str | None
    desired: int
    workers: int
    """Live servers that serve it now."""
    concurrency: int
    """Slots of one worker."""
    ready: int
    running: int
    oldest_for: int
    service_for: float | None
    """How long a task takes; null: none has ended lately."""
    target_for: int
    text: str
    """The reason, in one line."""


class ListsApi(Protocol):
    """Task lists, and what holds their work back."""

    @contract.get("/lists", lists=True)
    async def list(self) -> TaskLists:
        """All task lists with their lanes; with a token that is restricted to some, those."""

    @contract.get("/lists/{task_list}", lists=True)
    async def get(self, task_list: ListName) -> TaskListShown:
        """One task list with its lanes."""

    @contract.post("/lists/{task_list}/pause", Scope.OPERATE, lists=True)
    async def pause(self, task_list: ListName) -> TaskListShown:
        """Take nothing more from a list; what runs goes on."""

    @contract.post("/lists/{task_list}/resume", Scope.OPERATE, lists=True)
    async def resume(self, task_list: ListName) -> TaskListShown:
        """Let a paused list go on, and a draining one take new work again."""

    @contract.post("/lists/{task_list}/drain", Scope.OPERATE, lists=True)
    async def drain(self, task_list: ListName) -> TaskListShown:
        """Let a list take no new work; what is there goes on."""

    @contract.put("/lists/{task_list}/policy", Scope.OPERATE, lists=True)
    async def set_policy(
        self, task_list: ListName, no_handler: Annotated[str, Doc("`wait`, or `ignore`, which ends them as ignored", "ignore")]
    ) -> TaskListShown:
        """Say what becomes of tasks that no live server has a handler for."""

    @contract.put("/lists/{task_list}/rates/{name}", Scope.OPERATE, lists=True)
    async def limit_rate(
        self,
        task_list: ListName,
        name: HandlerName,
        rate: Annotated[float | None, Doc("Tasks a second, from one a day to a million a second; null takes it away", 2.5)],
        *,
        burst: Annotated[int | None, Doc("So many at once after a quiet time; null: what comes in a second")] = None,
    ) -> TaskListShown:
        """Take at most so many tasks of a handler a second from a list."""

    @contract.put("/lists/{task_list}/backlogs/{name}", Scope.OPERATE, lists=True)
    async def limit_backlog(
        self,
        task_list: ListName,
        name: HandlerName,
        backlog_limit: Annotated[int | None, Doc("At most so many ready ones, from 1; null takes the cap away", 10_000)],
    ) -> TaskListShown:
        """Refuse new tasks of a handler in a list over so many ready ones."""

    @contract.get("/lists/{task_list}/desired", lists=True)
    async def desired(
        self,
        task_list: ListName,
        *,
        name: Annotated[str | None, Doc("Only tasks of this handler")] = None,
        target: Annotated[float, Doc("Seconds within which a ready task should start", 30)] = TARGET_LATENCY,
        concurrency: Annotated[int | None, Doc("Tasks that one worker runs at once; null: as those that are there")] = None,
        least: Annotated[int, Doc("Never fewer")] = 0,
        most: Annotated[int, Doc("Never more")] = MOST_WORKERS,
    ) -> DesiredWorkers:
        """How many workers a list could use, from its depth, its age and how long its tasks take."""

    @contract.get("/limits", lists=True)
    async def limits(self) -> KeyLimits:
        """All limits on keys, with how many tasks are admitted and wait.

        They hold across task lists: a token that is restricted to some is shown none.
        """

    @contract.put("/limits/key", Scope.OPERATE)
    async def limit_key(
        self,
        key: Annotated[str, Doc("The limit key", "customer:42")],
        max_running: Annotated[int | None, Doc("At most so many run at once, from 1; null takes the limit away", 3)],
    ) -> KeyLimits:
        """Limit how many tasks with the key run at once; wins over what `enqueue` says."""

    @contract.put("/limits/handler", Scope.OPERATE)
    async def limit_handler(
        self,
        name: HandlerName,
        max_running: Annotated[int | None, Doc("At most so many run at once, from 1; null takes the limit away", 3)],
    ) -> KeyLimits:
        """Limit how many tasks of a handler run at once, in all processes and lists together."""
