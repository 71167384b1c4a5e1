"""The one loop for every kind of work: woken, it claims as many tasks as it has room for, runs them, and settles them.

Claims, handlers and commits overlap; nothing here waits for one task. What a handler comes to is decided by
`kernel.queue.decide` and committed under the task's claim by the committer; an answer `claim_lost` drops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from treadle.kernel.approvals.service import Tend
from treadle.kernel.external.decide import unregistered_text
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.decide import TAKEOVER_LIMIT, decide, failure, ignored, refusal, settlement, turned_away
from treadle.kernel.queue.why import serves, shown_server_state
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Answer, Finish, Park, Unit, Verdict
from treadle.kernel.telemetry.events import (
    Emit,
    LeaseLost,
    LoopError,
    ResultDropped,
    StoreBack,
    StoreTrouble,
    TaskSettled,
    TaskTaken,
    current_attempt,
)
from treadle.kernel.telemetry.observer import AttemptEnded, SettleAnswered, Spans, TasksClaimed, Telemetry, telemetry_of, timed
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, StoreError, TreadleError
from treadle.model.external import UNREGISTERED
from treadle.model.ids import Ids
from treadle.model.lists import IGNORE
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, ENGINE_LIST, EXTERNAL_CANCEL, FUNCTION, HANDLER, Lane
from treadle.model.outcomes import Outcome, Problem, Released
from treadle.model.retry import RetryPolicy
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, LogLine, Task
from treadle.model.values import PAYLOAD_LIMIT
from treadle.workers.call import Executor, attempt
from treadle.workers.context import Context
from treadle.workers.effects import EffectKernel
from treadle.workers.functions.warm import FunctionRunner
from treadle.workers.handlers import Fallback, Handler, Isolation, Registry, Settled
from treadle.workers.lease_renewer import LeaseRenewer

CLAIM_LIMIT = 250
"""Tasks that one claim takes at most, or a quarter of the concurrency if that is more: with more, claims, handlers and commits
would take turns instead of going on side by side, and others would wait behind this worker's room."""

POLL_EVERY = 5.0
"""Seconds after which a worker looks by itself, whatever signals it heard or missed."""

LAST_WAIT = 10.0
"""Seconds that a stopping worker gives its last commits, once its handlers were stopped; then leases are left to run out."""

_NO_HANDLER_FOR = 30_000
"""Milliseconds after which a task that was taken without a handler may be looked at again."""

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 2.0
"""Seconds between attempts to settle while the store cannot be reached."""

Settle = Callable[[Task, Claim, Finish | Park], Awaitable[Answer]]
"""Commits what an attempt came to, and whatever follows from it."""

Alone = Callable[[Task, Claim, Finish | Park], Unit | None]
"""The unit of an attempt from which nothing follows; None where `Settle` has to see to it."""


@dataclass(slots=True)
class WorkerOptions:
    """How a worker works."""

    concurrency: int = 100
    """Tasks in progress at once in this process."""
    threads: int = 16
    """Of these, sync handlers at once."""
    processes: int = 4
    """Of these, handlers with isolation='process' at once."""
    task_lists: tuple[str, ...] = (DEFAULT_LIST,)
    lease_for: int = 60_000
    poll_every: float = POLL_EVERY
    takeover_limit: int = TAKEOVER_LIMIT
    result_limit: int = PAYLOAD_LIMIT
    grace: float = 30.0
    """Seconds that running work gets to finish when the worker stops; then it is released for others."""

    def __post_init__(self) -> None:
        if min(self.concurrency, self.threads, self.processes) < 1:
            raise InvalidInput("concurrency, threads and processes must be 1 or more.")
        if not self.task_lists:
            raise InvalidInput("A worker serves at least one task list.")


@dataclass(slots=True)
class _Group:
    """Lanes that share a bound: the claims for them ask for no more than it leaves.

    Groups of one isolation share a pool as well: their threads, or their processes.
    """

    limit: int
    isolation: Isolation
    running: int = 0
    lane_ids: list[int] = field(default_factory=list)
    handlers: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Execution:
    """A task in progress here; `runner` is None only before its first moment."""

    task: Task
    context: Context
    group: _Group
    handler: Handler | None
    runner: asyncio.Task[None] | None = None
    lost: bool = False
    started: bool = False
    settling: bool = False
    """Its settlement is on its way: nothing may interrupt that."""
    answering: bool = False
    """The committer will tell the answer: its runner has nothing left to do, and need not wait for it."""
    leave: Callable[[], None] | None = None
    """Ends its span, where there are spans."""

    def interrupt(self) -> None:
        """Stop the handler, if it still runs."""
        self.context.cancel()
        if self.runner is not None and self.started and not self.settling:  # canceled before its first moment, it would not end
            self.runner.cancel()


class Worker:
    """Runs the handlers of a registry for one namespace. `run` until `stop`; `heard` when something may be ready."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        registry: Registry,
        executor: Executor,
        clock: Clock,
        ids: Ids,
        emit: Emit,
        *,
        owner_id: str,
        namespace: str = DEFAULT_NAMESPACE,
        options: WorkerOptions | None = None,
        on_line: Callable[[LogLine], None] = lambda _: None,
        settle: Settle | None = None,
        alone: Alone | None = None,
        open_payload: Callable[[str], Awaitable[str]] | None = None,
        builtins: Mapping[str, Handler] | None = None,
        fallback: Fallback | None = None,
        functions: FunctionRunner | None = None,
        effects: EffectKernel | None = None,
        tend: Tend | None = None,
        roles: Callable[[str, str], Handler | None] = lambda kind, name: None,
        external_jobs: ExternalJobs | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._store = store
        self._committer = committer
        self._registry = registry
        self._executor = executor
        self._clock = clock
        self._ids = ids
        self._emit = emit
        self._telemetry = telemetry or telemetry_of(emit)
        self._owner_id = owner_id
        self._namespace = namespace
        self._options = options or WorkerOptions()
        self._on_line = on_line
        self._commit = settle or self._settle_alone
        self._alone = alone
        self._open_payload = open_payload
        self._builtins = dict(builtins or {})
        self._fallback = fallback
        self._functions = functions
        self._effects = effects
        self._tend = tend
        self._roles = roles
        self._external_jobs = external_jobs
        self.keeper: LeaseRenewer | None = None
        self._groups: dict[str, _Group] = {}
        self._lanes: dict[int, Lane] = {}
        self._executions: dict[str, _Execution] = {}
        self._superseded: list[_Execution] = []
        """Lost executions that have not ended, of tasks that this worker has taken again."""
        self._turn = 0
        self._heard: set[int] = set()
        self._orphans: set[int] = set()
        """Lanes that no live server serves, of lists that ignore such tasks."""
        self._orphans_at = self._looked_up_at = float("-inf")
        self._signal = asyncio.Event()
        self._at_rest = asyncio.Event()
        """Nothing is in progress."""
        self._at_rest.set()
        self._refresh = True
        self._stopping = False
        self.handled = 0
        self.failed = 0
        self.released = 0

    # what others tell the worker

    def heard(self, lane_ids: tuple[int, ...]) -> None:
        """Something may be ready in those lanes (empty: anywhere). A lane never seen before is looked up."""
        if not lane_ids or any(lane_id not in self._lanes for lane_id in lane_ids):
            self._refresh = True
        elif not any(lane_id in group.lane_ids for group in self._groups.values() for lane_id in lane_ids):
            if self._fallback is None:
                return
            self._refresh = True
        self._heard.update(lane_ids)
        self._signal.set()

    def lose(self, claim: Claim, reason: str) -> None:
        """The claim is gone: stop the handler and drop whatever it comes to."""
        execution = self._executions.get(claim.task_id)
        if execution is not None and execution.context.token == claim:
            self._lose(execution, reason)

    def fenced(self, task_ids: Iterable[str]) -> None:
        """An operator in this process took these tasks from their holders: those that run here are stopped at once."""
        for task_id in task_ids:
            if (execution := self._executions.get(task_id)) is not None:
                self._lose(execution, "it was canceled")

    def _lose(self, execution: _Execution, reason: str) -> None:
        if not execution.lost and not execution.settling:  # a settlement on its way is answered by the store itself
            execution.lost = True
            self._emit(LeaseLost(execution.task.id, execution.task.name, reason, execution.task.trace_id))
            execution.interrupt()

    @property
    def running(self) -> int:
        """Tasks in progress."""
        return len(self._executions) + len(self._superseded)

    # the loop

    async def once(self) -> int:
        """One look: take what there is room for, run it and wait for it; how many tasks that were."""
        await self._look_up_lanes()
        before = set(self._all())
        started: set[_Execution] = set()
        while await self._claim_round():
            started |= set(self._all()) - before
        if started:
            await asyncio.wait([execution.runner for execution in started if execution.runner is not None])
        while not started.isdisjoint(self._all()):  # until the store has answered for all of them
            self._signal.clear()
            await self._signal.wait()
        return len(started)

    async def run(self) -> None:
        """Claim and run until `stop`; store trouble is told and survived."""
        if self._effects is not None:
            self._effects.loop = asyncio.get_running_loop()
        trouble = False
        while not self._stopping:
            try:
                self._signal.clear()  # before looking: what is heard meanwhile is looked at again
                if self._refresh:
                    await self._look_up_lanes()
                took = await self._claim_round()
                if trouble:
                    trouble = False
                    self._emit(StoreBack("claiming"))
                if not took and not self._stopping:
                    await self._wait()
            except StoreError as error:
                self._refresh = True
                if not trouble:
                    self._emit(StoreTrouble("claiming", str(error), 1.0))
                trouble = True
                await self._clock.sleep(1.0)
            except Exception as error:
                self._emit(LoopError("worker", repr(error)))
                await self._clock.sleep(10.0)

    def stop_claiming(self) -> None:
        """No new claims; `run` returns after the one in flight."""
        self._stopping = True
        self._signal.set()

    async def stop(self) -> None:
        """No new claims; running work gets the grace period, then is stopped and released for others.

        A handler that will not stop loses its task all the same. When even the store does not answer, leases are left to
        run out: a worker that is told to stop does stop.
        """
        self.stop_claiming()
        await self._rest(self._options.grace)
        for execution in self._all():
            execution.interrupt()
        await self._rest(LAST_WAIT / 2)
        stubborn = [execution for execution in self._all() if not execution.lost and not execution.settling]
        for execution in stubborn:
            self._emit(LoopError("worker", f"task {execution.task.id} ({execution.task.name}): its handler does not stop"))
            execution.lost = True
        releases = [asyncio.ensure_future(self._release(execution, self._clock.monotonic())) for execution in stubborn]
        if any(execution.answering for execution in self._all()):
            await self._rest(LAST_WAIT / 2)
        elif waiting := releases + [execution.runner for execution in self._all() if execution.settling and execution.runner]:
            await asyncio.wait(waiting, timeout=LAST_WAIT / 2)
        left = [*releases, *self._runners()]
        for runner in left:
            runner.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)

    async def _rest(self, seconds: float) -> None:
        """Until nothing is in progress, or so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._at_rest.wait()
        except TimeoutError:
            pass

    def _all(self) -> list[_Execution]:
        return [*self._executions.values(), *self._superseded]

    def _runners(self) -> list[asyncio.Task[None]]:
        return [execution.runner for execution in self._all() if execution.runner is not None]

    async def _wait(self) -> None:
        """Until something is heard, a lane with a rate has a token, or it is time to look anyway."""
        lane_ids = [lane_id for group in self._groups.values() if self._room(group) > 0 for lane_id in group.lane_ids]
        token_for = await self._store.next_token_for(lane_ids) if lane_ids else None
        pause = self._options.poll_every if token_for is None else min(self._options.poll_every, max(token_for / 1000, 0.005))
        try:
            async with asyncio.timeout(pause):
                await self._signal.wait()
        except TimeoutError:
            late = self._clock.monotonic() - self._looked_up_at >= self._options.poll_every
            self._refresh = self._refresh or late or pause == self._options.poll_every

    async def _look_up_lanes(self) -> None:
        """Sort the lanes that this worker serves into groups by the bounds of their handlers."""
        self._refresh = False
        self._looked_up_at = self._clock.monotonic()
        lanes = await self._store.list_lanes()
        if self._fallback is not None:
            names = {lane.name for lane in lanes.values() if lane.kind == HANDLER and lane.namespace == self._namespace}
            await self._fallback.look(sorted(name for name in names if self._registry.find(name) is None))
        for group in self._groups.values():
            group.lane_ids = []
        for lane_id, lane in lanes.items():
            own = lane.kind != HANDLER and lane.task_list == ENGINE_LIST
            if lane.namespace != self._namespace or not (own or lane.task_list in self._options.task_lists):
                continue
            handler = self._find(lane.kind, lane.name)
            if handler is not None:
                group = self._group(handler)
                group.lane_ids.append(lane_id)
                group.handlers.add(handler.name)
        self._lanes = lanes
        await self._look_for_orphans()

    async def _look_for_orphans(self) -> None:
        """Find lanes to take tasks from only to end them as ignored; now and then, as lists and servers change slowly."""
        now = self._clock.monotonic()
        if now - self._orphans_at >= self._options.poll_every:
            self._orphans_at = now
            unserved = await self._list_unserved()
            lists = {
                each.task_list
                for each in (await self._store.list_lists() if unserved else ())
                if each.namespace == self._namespace and each.no_handler == IGNORE
            }
            self._orphans = {
                lane_id for lane_id in unserved if self._lanes[lane_id].task_list in lists.intersection(self._options.task_lists)
            }
            if unserved and self._external_jobs is not None:
                await self._external_jobs.give_up(unserved)
        if self._orphans or "orphans" in self._groups:
            self._groups.setdefault("orphans", _Group(self._options.concurrency, "loop")).lane_ids = list(self._orphans)

    async def _list_unserved(self) -> list[int]:
        """Lanes of handlers that no live server serves."""
        unserved = {
            lane_id: lane
            for lane_id, lane in self._lanes.items()
            if lane.namespace == self._namespace and lane.kind == HANDLER and self._find(HANDLER, lane.name) is None
        }
        if not unserved:
            return []
        now = await self._store.now()
        live = [server for server in await self._store.list_servers() if shown_server_state(server, now) in ("starting", "running")]
        return [lane_id for lane_id, lane in unserved.items() if not any(serves(server, lane) for server in live)]

    def _find(self, kind: str, name: str) -> Handler | None:
        """The handler of a lane: a user's by name, or the engine's own by kind."""
        if kind == EXTERNAL_CANCEL:
            specialist = self._registry.find(name)
            return None if specialist is None else specialist.cancels
        if kind == HANDLER:
            return self._registry.find(name) or (self._fallback.find(name) if self._fallback is not None else None)
        if kind == FUNCTION:
            return None if self._functions is None else self._functions.find(name)
        return self._builtins.get(kind) or self._roles(kind, name)

    def _group(self, handler: Handler) -> _Group:
        pools = {"thread": self._options.threads, "process": self._options.processes}
        limit = pools.get(handler.isolation, self._options.concurrency)
        key: str = handler.isolation
        if handler.concurrency is not None:
            key, limit = f"handler {handler.name}", min(handler.concurrency, limit)
        return self._groups.setdefault(key, _Group(limit, handler.isolation))

    def _room(self, group: _Group) -> int:
        """How many more of the group's tasks may be taken: no more than can start now, so that others get the rest."""
        most = max(CLAIM_LIMIT, self._options.concurrency // 4)
        room = min(group.limit - group.running, self._options.concurrency - self.running, most)
        if group.isolation == "loop":
            return room
        stuck = self._executor.abandoned(group.handlers)
        kin = [other for other in self._groups.values() if other.isolation == group.isolation]
        taken = sum(other.running for other in kin) + sum(self._executor.abandoned(other.handlers) for other in kin)
        pool = self._options.threads if group.isolation == "thread" else self._options.processes
        return min(room - stuck, pool - taken)

    async def _claim_round(self) -> bool:
        """One claim per group that has room; whether anything was taken, or there is no room to wait for."""
        took = False
        groups = list(self._groups.values())
        self._turn += 1  # another one is first each time, so that none takes all the room there is
        groups = [groups[(self._turn + number) % len(groups)] for number in range(len(groups))]
        heard, self._heard = self._heard, set()
        if heard:  # but those first that something was heard of
            groups.sort(key=lambda group: heard.isdisjoint(group.lane_ids))
        for group in groups:
            room = self._room(group)
            if room < 1 or not group.lane_ids or self._stopping:
                continue
            sent_at = self._clock.monotonic()
            tasks = await self._claim(group.lane_ids, room)
            reach("claim.after")
            for task in tasks:
                self._start(task, group, sent_at)
            took = took or bool(tasks)
        return took

    async def _claim(self, lane_ids: list[int], limit: int) -> list[Task]:
        observe = self._telemetry.observe
        call = self._store.claim(lane_ids, self._owner_id, self._options.lease_for, limit)
        if observe is None:
            return await call
        tasks = await timed(observe, self._clock, "claim", call, len)
        if tasks:
            observe(TasksClaimed(tasks))
        return tasks

    def _start(self, task: Task, group: _Group, sent_at: float) -> None:
        context = Context(task, self._clock.now, self._on_line, effects=self._effects, external_jobs=self._external_jobs)
        handler = self._find(task.kind, task.name)
        execution = _Execution(task, context, group, handler)
        if (older := self._executions.get(task.id)) is not None:
            self._lose(older, "this worker has taken it again")
            self._superseded.append(older)
        self._executions[task.id] = execution
        self._at_rest.clear()
        group.running += 1
        if self.keeper is not None:
            self.keeper.hold(context, sent_at, handler.progress_for if handler is not None else None)
        spans = self._telemetry.spans
        running = self._execute(execution) if spans is None else self._execute_in(spans, execution)
        execution.runner = asyncio.get_running_loop().create_task(running)

    async def _execute_in(self, spans: Spans, execution: _Execution) -> None:
        with spans.executing(execution.task) as execution.leave:
            await self._execute(execution)

    async def _execute(self, execution: _Execution) -> None:
        """From the claim to the committed settlement of one attempt."""
        task = execution.task
        started = self._clock.monotonic()
        execution.started = True
        current_attempt.set((task.id, task.trace_id))
        try:
            if execution.context.cancelled:
                raise asyncio.CancelledError
            if self._hears_all:
                self._emit(TaskTaken(task.id, task.name, task.attempt, task.trace_id))
            if task.state == TaskState.AWAITING_APPROVAL and self._tend is not None:
                await self._do_what_is_due(execution, self._tend, started)
                return
            decided = await self._attempt(execution, started)
            if decided is None or execution.lost:
                return
            if self._alone is not None and (unit := self._alone(task, execution.context.token, decided)) is not None:
                self._settle_soon(execution, unit, decided, started)
            else:
                await self._settle(execution, decided, started)
        except asyncio.CancelledError:
            if not execution.lost:
                await self._release(execution, started)
        except Exception as error:
            self._emit(_unsettled(task, error))
        finally:
            if not execution.answering:
                self._end(execution)

    def _end(self, execution: _Execution) -> None:
        """Nothing more comes of it: there is room for another."""
        task_id = execution.task.id
        if self.keeper is not None:
            self.keeper.drop(execution.context.token)
        if self._executions.get(task_id) is execution:
            del self._executions[task_id]
        else:
            self._superseded.remove(execution)
        execution.group.running -= 1
        if not self._executions and not self._superseded:
            self._at_rest.set()
        self._signal.set()
        if execution.leave is not None:
            execution.leave()

    async def _do_what_is_due(self, execution: _Execution, tend: Tend, started: float) -> None:
        """The task waits for a person, and was taken because a reminder, an escalation or its expiry is due."""
        task = execution.task
        execution.settling = True
        try:
            answer, decided = await tend(task, execution.context.token)
        except StoreError as error:
            released = self._decide(task, execution.handler, Released(f"its approval could not be read: {error}"))
            await self._settle(execution, released, started)
        else:
            self._settled(execution, answer, decided.move, decided.error, started)

    async def _attempt(self, execution: _Execution, started: float) -> Finish | Park | None:
        """What becomes of the task; None where its handler has settled it."""
        task, handler = execution.task, execution.handler
        if (problem := refusal(task, self._options.takeover_limit)) is not None:
            if isinstance(away := turned_away(task, problem), Park):
                self._emit(LoopError("worker", f"task {task.id} ({task.name}) rests: {problem.message}"))
            return away
        if task.state == TaskState.AWAITING_EXTERNAL and (handler is None or handler.executes is None):
            return await self._without_specialist(task)
        if handler is None:
            return self._without_handler(task)
        if task.kind == FUNCTION and self._functions is not None:
            return await self._drive(execution, self._functions, started)
        if self._open_payload is not None and task.payload.startswith("@"):
            try:
                task.payload = await self._open_payload(task.payload)
            except StoreError as error:
                return self._decide(task, handler, Released(f"its payload could not be read: {error}"))
            except TreadleError as error:
                return failure(Problem(error.code, str(error), type(error).__name__))
        reach("handler.before")
        called_at = self._measured_at()
        try:
            outcome = await attempt(handler, execution.context, self._executor)
        except asyncio.CancelledError:
            self._ended(task, None, called_at)
            raise
        reach("handler.after")
        if isinstance(outcome, Settled):
            self._ended(task, "succeed", called_at)
            self._settled(execution, outcome.answer, "succeed", None, started)
            return None
        decided = self._decide(task, handler, outcome)
        self._ended(task, decided.move, called_at)
        return decided

    @property
    def _hears_all(self) -> bool:
        """Whether anybody wants to know of each task that goes well."""
        return self._emit is not self._telemetry or self._telemetry.hears_all

    def _measured_at(self) -> float | None:
        """The time, if anybody measures."""
        return None if self._telemetry.observe is None else self._clock.monotonic()

    def _ended(self, task: Task, move: str | None, called_at: float | None) -> None:
        """Tell those who measure how long the handler took."""
        if (observe := self._telemetry.observe) is not None and called_at is not None:
            observe(AttemptEnded(task, move, self._clock.monotonic() - called_at))

    async def _without_specialist(self, task: Task) -> Finish | Park:
        """What awaits an outside job is polled by its specialist alone, not by a handler that has the same name here."""
        if self._external_jobs is not None and not await self._external_jobs.is_offered(task):
            return failure(Problem(UNREGISTERED, unregistered_text(task.name, task.scope)))
        released = self._decide(task, None, Released("its specialist is not here"))
        return msgspec.structs.replace(released, wake_for=_NO_HANDLER_FOR) if isinstance(released, Park) else released

    def _without_handler(self, task: Task) -> Finish | Park:
        """Taken to be ignored; or the handler has gone meanwhile."""
        orphan = task.lane_id in self._orphans
        if orphan and task.state == TaskState.PENDING:
            return ignored(task)
        released = self._decide(task, None, Released("no handler here"))
        return msgspec.structs.replace(released, wake_for=_NO_HANDLER_FOR) if orphan and isinstance(released, Park) else released

    def _decide(self, task: Task, handler: Handler | None, outcome: Outcome) -> Finish | Park:
        default = handler.retry if handler else RetryPolicy()
        try:
            return decide(task, outcome, default, self._ids.random, self._options.result_limit)
        except InvalidInput as error:
            return failure(Problem(error.code, str(error), type(error).__name__))

    async def _settle(self, execution: _Execution, decided: Finish | Park, started: float) -> None:
        task = execution.task
        execution.settling = True
        reach("settle.before_commit")
        sent_at = self._clock.monotonic()
        answer = await self._commit_at_last(task, execution.context.token, decided)
        self._answered(execution, answer, decided, started, sent_at)

    def _settle_soon(self, execution: _Execution, unit: Unit, decided: Finish | Park, started: float) -> None:
        """Hand it to the committer, which tells the answer to `ended`: most of what a worker does ends so."""
        execution.settling = True
        reach("settle.before_commit")
        sent_at = self._clock.monotonic()

        def ended(answer: Answer | BaseException) -> None:
            try:
                if isinstance(answer, BaseException):
                    self._emit(_unsettled(execution.task, answer))
                else:
                    self._answered(execution, answer, decided, started, sent_at)
            finally:
                self._end(execution)

        self._committer.submit_told(unit, ended)
        execution.answering = True

    def _answered(self, execution: _Execution, answer: Answer, decided: Finish | Park, started: float, sent_at: float) -> None:
        reach("settle.after_commit")
        if (observe := self._telemetry.observe) is not None:
            done = answer.verdict is Verdict.DONE
            observe(SettleAnswered(execution.task.id, decided.move, done, self._clock.monotonic() - sent_at))
        self._settled(execution, answer, decided.move, decided.error, started)

    async def _commit_at_last(self, task: Task, token: Claim, decided: Finish | Park) -> Answer:
        """Commit it once the store can be reached: what settles may have to read first, and what is done must not be done again
        because that failed. The lease is kept meanwhile; whether it still held is the store's to say.
        """
        delay = _FIRST_DELAY
        while True:
            try:
                return await self._commit(task, token, decided)
            except StoreError as error:
                if self._stopping:
                    raise
                self._emit(StoreTrouble("settling", str(error), delay))
                await self._clock.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)

    def _settled(self, execution: _Execution, answer: Answer, move: str, error: str | None, started: float) -> None:
        """Count and tell what became of a settlement."""
        task = execution.task
        if answer.verdict is not Verdict.DONE:
            self._emit(ResultDropped(task.id, task.name, move, task.trace_id))
            return
        self._note_settled(task, move, error, started)

    def _note_settled(self, task: Task, move: str, error: str | None, started: float) -> None:
        if move == "release":
            self.released += 1
        else:
            self.handled += 1
            self.failed += move == "fail"
        if error is not None or self._hears_all:
            took_ms = (self._clock.monotonic() - started) * 1000
            self._emit(TaskSettled.of(task, move, took_ms, error))

    async def _drive(self, execution: _Execution, functions: FunctionRunner, started: float) -> Park | Finish | None:
        """Execute a durable function, which settles its task itself."""
        task = execution.task

        def settling(on: bool) -> None:
            execution.settling = on

        called_at = self._measured_at()
        try:
            settled = await functions.execute(task, execution.context, settling)
        except StoreError as error:
            return self._decide(task, execution.handler, Released(f"the run could not be read: {error}"))
        except asyncio.CancelledError:
            self._ended(task, None, called_at)
            raise
        self._ended(task, None if settled is None else settled.move, called_at)
        if settled is not None:
            self._note_settled(task, settled.move, settled.error, started)
        else:
            self._emit(ResultDropped(task.id, task.name, "checkpoint", task.trace_id))
        return None

    def _settle_alone(self, _: Task, token: Claim, decided: Finish | Park) -> Awaitable[Answer]:
        return self._committer.submit(Unit(token, decided))

    async def _release(self, execution: _Execution, started: float) -> None:
        """Give the task back: the worker stops, and another may take it at once."""
        decided = settlement(execution.task, Released(), RetryPolicy())
        await self._settle(execution, decided, started)


def _unsettled(task: Task, error: BaseException) -> LoopError:
    return LoopError("worker", f"task {task.id} ({task.name}) could not be settled: {error!r}")
