"""The read service behind every interface: CLI, HTTP, MCP and dashboard all show the results of these reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from treadle.api.lists import DesiredWorkers
from treadle.kernel.core import Core, Service
from treadle.kernel.queue.engine_tasks import find_pause
from treadle.kernel.queue.why import Reason, WaitContext, releases_of, serves, shown_server_state, shown_servers, why
from treadle.kernel.reads.demand import check_bounds, load_of, scaling
from treadle.kernel.store.lookups import CANDIDATES, LAST, check_limit, find_id, is_short
from treadle.kernel.store.queries import QueueDepth, TaskFilter
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import AmbiguousId, InvalidInput, not_found
from treadle.model.ids import Ref, parse_id
from treadle.model.lists import MAX_WORKERS, TARGET_LATENCY, WAIT, QueueRule
from treadle.model.names import DEFAULT_LIST, HANDLER, check_name
from treadle.model.states import FINAL_TASK_STATES, LIVE_TASK_STATES, TASK_ACTIVITIES, BlockReason, TaskState
from treadle.model.tasks import LogLine, Server, Task, Transition

_HOLDERS_SHOWN = 5
_TRANSITIONS_LIMIT, _ENDS_LIMIT = 1000, 200
"""Limits on the last transitions of the log, and on the finished tasks among them, used to measure service times."""
_SHOWN = frozenset([*LIVE_TASK_STATES, *FINAL_TASK_STATES, TaskState.RUNNING, TaskState.PAUSED])


class _DemandInputs(msgspec.Struct, frozen=True):
    """The inputs of the autoscaling signal."""

    rules: list[QueueRule]
    depths: list[QueueDepth]
    ends: list[Task]
    servers: list[Server]
    now: int

    def scaling(
        self,
        task_list: str,
        name: str | None,
        rules: list[QueueRule],
        target_for: int,
        concurrency: int | None = None,
        minimum: int = 0,
        maximum: int = MAX_WORKERS,
    ) -> DesiredWorkers:
        """The signal for these queues of the list."""
        queues = {rule.queue_id: rule for rule in rules}
        loads = [load_of(depth, queues[depth.queue_id], self.ends, self.now) for depth in self.depths if depth.queue_id in queues]
        live = [
            server
            for server in self.servers
            if shown_server_state(server, self.now) == "running"
            and task_list in server.task_lists
            and (not rules or any(serves(server, rule.queue) for rule in rules))
        ]
        slots = concurrency or max(round(sum(server.concurrency for server in live) / len(live)) if live else 1, 1)
        return scaling(
            task_list, name, loads, target_for=target_for, workers=len(live), concurrency=slots, minimum=minimum, maximum=maximum
        )


class Reads(Service):
    """Reads of one namespace; changes nothing."""

    def __init__(self, core: Core, why_awaiting: Callable[[Task], Awaitable[Reason | None]] | None = None) -> None:
        """`why_awaiting` explains a task that waits for a person or an external job."""
        super().__init__(core)
        self._why_awaiting = why_awaiting

    async def get_task(self, task_id: Ref) -> Task:
        """The task, or `TaskNotFound`."""
        return await self._get_task(task_id)

    async def list_tasks(
        self,
        *,
        states: tuple[str, ...] = (),
        name: str | None = None,
        task_list: str | None = None,
        kind: str | None = None,
        run_id: Ref | None = None,
        before_id: Ref | None = None,
        limit: int = 50,
    ) -> list[Task]:
        """A page of tasks, newest first; the last one's id is the `before_id` of the next page."""
        check_limit(limit)
        run_id = None if run_id is None else await find_id(self._store, self._namespace, "run", run_id)
        which = self.tasks_like(states=states, name=name, task_list=task_list, kind=kind, run_id=run_id, before_id=before_id)
        return await self._store.tasks.list_matching(which, limit)

    def tasks_like(
        self,
        *,
        states: tuple[str, ...] = (),
        name: str | None = None,
        task_list: str | None = None,
        kind: str | None = None,
        run_id: Ref | None = None,
        before_id: Ref | None = None,
    ) -> TaskFilter:
        """Build a task filter for this namespace."""
        if unknown := [state for state in states if state not in _SHOWN]:
            hint = f" Use the query `activity = {unknown[0]}`." if unknown[0] in TASK_ACTIVITIES else ""
            raise InvalidInput(f"Unknown state {unknown[0]!r}; states are {', '.join(sorted(_SHOWN))}.{hint}")
        return TaskFilter(
            states=tuple(states),
            namespace=self._namespace,
            kind=kind,
            task_list=task_list,
            name=name,
            run_id=None if run_id is None else parse_id(run_id, "run id"),
            before_id=None if before_id is None else parse_id(before_id, "cursor"),
        )

    async def list_transitions(self, task_id: Ref) -> list[Transition]:
        """The transitions of a task in order."""
        return await self._store.log.list_transitions((await self.get_task(task_id)).id)

    async def list_lines(self, task_id: Ref, limit: int = 100) -> list[LogLine]:
        """The task's log lines, oldest first."""
        return await self._store.log.list_lines((await self.get_task(task_id)).id, limit)

    async def list_servers(self) -> list[Server]:
        """The servers of the namespace, newest first, in the states as shown: `lost` is derived."""
        return shown_servers(await self._store.servers.list_all(self._namespace), await self._store.now())

    async def list_releases(self) -> dict[str | None, str]:
        """The releases of the workers that have one, by their ids."""
        return releases_of(await self._store.servers.list_all(self._namespace))

    async def get_server(self, server_id: str) -> Server:
        """The server, or `NotFound`."""
        servers = await self.list_servers()
        matches = [server for server in servers if server.id == server_id]
        if not matches and is_short(server_id):
            matches = servers[:1] if server_id == LAST else [server for server in servers if server.id.startswith(server_id)]
        if len(matches) > 1:
            raise AmbiguousId("server", server_id, [server.id for server in matches[:CANDIDATES]], more=len(matches) > CANDIDATES)
        if not matches:
            raise not_found("server", server_id)
        return matches[0]

    async def why(self, task_id: Ref) -> Reason:
        """The reason for the task's state."""
        return await self.explain(await self.get_task(task_id))

    async def explain(self, task: Task) -> Reason:
        """The reason for the state of a task already read."""
        servers = await self._store.servers.list_all(self._namespace)
        return why(task, servers, await self._store.now(), context=await self._wait_context(task))

    async def _wait_context(self, task: Task) -> WaitContext:
        """The settings of the task's queue, list and limit key, if they can be its reason to wait."""
        if task.blocked_by & BlockReason.TASK_PAUSED and not task.finished:
            return WaitContext(pause=await find_pause(self._store, task))
        awaiting = task.state in (TaskState.AWAITING_APPROVAL, TaskState.AWAITING_EXTERNAL) and task.owner_id is None
        if awaiting and self._why_awaiting is not None and (reason := await self._why_awaiting(task)) is not None:
            return WaitContext(waits_for=reason)
        if task.finished or task.owner_id is not None or task.wake_at is not None:
            return WaitContext()
        rule = next((rule for rule in await self._store.operators.list_queue_rules() if rule.queue_id == task.queue_id), None)
        policies = {
            (settings.namespace, settings.task_list): settings.no_handler for settings in await self._store.operators.list_lists()
        }
        policy = policies.get((task.namespace, task.task_list), WAIT)
        if not task.blocked_by & BlockReason.OVER_LIMIT or task.limit_key is None:
            return WaitContext(rule, policy)
        limit = next(
            (limit for limit in await self._store.operators.list_limits(task.namespace) if limit.key == task.limit_key), None
        )
        holder_ids = await self._store.operators.list_admitted(task.namespace, task.limit_key, _HOLDERS_SHOWN)
        return WaitContext(rule, policy, limit, await self._store.tasks.find_many(holder_ids) if holder_ids else ())

    async def list_depths(self) -> list[QueueDepth]:
        """Depth of every queue of the namespace."""
        return [depth for depth in await self._store.tasks.list_depths() if depth.queue.namespace == self._namespace]

    async def desired_workers(
        self,
        task_list: str = DEFAULT_LIST,
        *,
        name: str | None = None,
        target_latency: Duration = TARGET_LATENCY,
        concurrency: int | None = None,
        minimum: int = 0,
        maximum: int = MAX_WORKERS,
    ) -> DesiredWorkers:
        """The number of workers the list (or one name in it) could use, so that ready tasks start within `target_latency`.

        `concurrency` is that of one worker; by default that of the list's live workers, or 1. Service times come from the last
        finished tasks (up to 200, among the last 1000 transitions of the store); a name without any is unknown.
        """
        check_name(task_list, "task list")
        target_for = milliseconds(target_latency, "target_latency", positive=True)
        check_bounds(target_for, concurrency, minimum, maximum)
        inputs = await self._demand_inputs()
        rules = [rule for rule in inputs.rules if rule.queue.task_list == task_list and name in (None, rule.queue.name)]
        return inputs.scaling(task_list, name, rules, target_for, concurrency, minimum, maximum)

    async def desired_by_list(self) -> dict[str, DesiredWorkers]:
        """Like `desired_workers`, for every list that ever had a handler's task, from one set of reads."""
        inputs = await self._demand_inputs()
        rules: dict[str, list[QueueRule]] = {}
        for rule in inputs.rules:
            rules.setdefault(rule.queue.task_list, []).append(rule)
        target_for = milliseconds(TARGET_LATENCY)
        return {
            task_list: inputs.scaling(task_list, None, list_rules, target_for) for task_list, list_rules in sorted(rules.items())
        }

    async def _demand_inputs(self) -> _DemandInputs:
        rules = [
            rule
            for rule in await self._store.operators.list_queue_rules()
            if rule.queue.namespace == self._namespace and rule.queue.kind == HANDLER
        ]
        depths = await self._store.tasks.list_depths()
        ends = await self._list_last_ends()
        return _DemandInputs(rules, depths, ends, await self._store.servers.list_all(self._namespace), await self._store.now())

    async def _list_last_ends(self) -> list[Task]:
        """The last completed or failed tasks of the namespace; bounded regardless of backlog and history."""
        last_seq = await self._store.log.find_last_seq()
        events = await self._store.log.list_events(max(last_seq - _TRANSITIONS_LIMIT, 0), last_seq, _TRANSITIONS_LIMIT)
        ended = [
            event.transition.entity_id
            for event in events
            if event.namespace == self._namespace
            and event.transition.entity == "task"
            and event.transition.to_state in (TaskState.COMPLETED, TaskState.FAILED)
        ]
        return await self._store.tasks.find_many(ended[-_ENDS_LIMIT:], ended=True)
