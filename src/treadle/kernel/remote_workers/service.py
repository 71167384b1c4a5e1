"""Outside workers: programs in any language that register, claim tasks, and settle them, without seeing the store.

To everybody else an outside worker is a server: it has a row with its handlers and lists, beats, is shown as lost when it
does not, and its id is the owner of its claims. It holds what it claims by leases that it renews itself; one that stays
silent loses them, and others go on. What it may do with what it holds is in `held_work`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from treadle.kernel.approvals.service import Tend
from treadle.kernel.claims import take
from treadle.kernel.external.decide import unregistered_text
from treadle.kernel.external.intents import INTENT
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.claim_waiters import Claimed, ClaimWaiters
from treadle.kernel.queue.decide import decide, failure, refusal, turned_away
from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.remote_workers.held_work import HeldWork
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Renewal, TaskFilter, Touch
from treadle.kernel.store.units import Finish, Park, Verdict
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.telemetry.events import Emit, LoopError, TaskSettled, TaskTaken, WorkerStarted, WorkerStopped
from treadle.kernel.telemetry.observer import TasksClaimed, timed
from treadle.model.approvals import split_checkpoint
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import ClaimLost, InvalidInput, Refused, StoreError, TreadleError, WorkerNotFound
from treadle.model.external import UNREGISTERED
from treadle.model.ids import Ids, parse_id
from treadle.model.lists import check_count
from treadle.model.names import (
    DEFAULT_LIST,
    DEFAULT_NAMESPACE,
    HANDLER,
    Lane,
    check_key,
    check_name,
    check_pattern,
    handles,
    handles_by_name,
)
from treadle.model.outcomes import Problem, Released
from treadle.model.remote_workers import HELD, Beaten, ClaimedTask, HeldClaim
from treadle.model.retry import NO_RETRY
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Server, Task
from treadle.model.values import decode

LONGEST_WAIT_FOR = 60_000
"""Milliseconds that a claim may wait for tasks."""
CLAIM_LIMIT = 250
"""Tasks that one claim takes at most."""
MOST_CONCURRENT = 10_000
MOST_CLAIMS = 1000
"""Claims that one beat may name."""
POLL_LEFT_FOR = 1_000
"""Milliseconds after which the poll of an outside job, which came to an outside worker, is due again; for twice that time its lane
is left to specialists here, so that they get it."""
_MOST_PATTERNS = 1000
_MOST_KNOWN = 10_000
"""Workers that a process remembers; it looks all others up again."""
_PAGE = 1000


@dataclass(slots=True)
class _Known:
    """A worker as this process knows it: its row, when that was last touched, and what is to be added to it."""

    server: Server
    touched_at: float
    settled: Counter[str]


@dataclass(frozen=True, slots=True)
class _Wants:
    """The lanes that a worker wants tasks of: handlers' alone, by its patterns, narrowed down to `only` for this claim.

    A prompt that this engine serves itself is wanted by name, not by a glob that happens to match it.
    """

    namespace: str
    handlers: tuple[str, ...]
    only: tuple[str, ...] | None
    task_lists: frozenset[str]
    is_prompt: Callable[[str], bool]

    def __call__(self, lane: Lane) -> bool:
        if lane.kind != HANDLER or lane.namespace != self.namespace or lane.task_list not in self.task_lists:
            return False
        if not handles(self.handlers, lane.name) or (self.only is not None and not handles(self.only, lane.name)):
            return False
        return handles_by_name((*self.handlers, *(self.only or ())), lane.name) or not self.is_prompt(lane.name)


class RemoteWorkers(HeldWork):
    """The outside workers of one namespace, in one process of those that they may come to."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        value_store: ValueStore,
        external_jobs: ExternalJobs,
        clock: Clock,
        ids: Ids,
        emit: Emit,
        *,
        tend: Tend,
        is_prompt: Callable[[str], bool] = lambda name: False,
        lease_for: int,
        **options: Any,
    ) -> None:
        super().__init__(store, committer, external_jobs, clock, ids, emit, lease_for=lease_for, **options)
        self._value_store = value_store
        self._whose = "" if self._namespace == DEFAULT_NAMESPACE else f" in {self._namespace}"
        """What tells the workers of this namespace from others' in the one list of servers: no name of a token has a space."""
        self._tend = tend
        self._is_prompt = is_prompt
        self._known: dict[str, _Known] = {}
        self._room: ClaimWaiters[ClaimedTask] = ClaimWaiters(store, committer, clock, lease_for, emit)
        self._room.on_tick = self._keep_alive

    # coming and going

    async def register(
        self,
        name: str,
        *,
        handlers: Iterable[str],
        task_lists: Iterable[str] = (DEFAULT_LIST,),
        concurrency: int = 1,
        heartbeat_every: Duration = 10,
        host: str = "outside",
        version: str = "",
        actor: str = "outside",
    ) -> Server:
        """A new worker; its worker id is that of its row, new each time. `handlers` are names, short names or globs (`billing.*`).

        It is shown as lost when three of its beats, one every `heartbeat_every`, have been missed; claims and heartbeats are
        beats too. `actor` is who registered it, and is kept as the service name, with the namespace unless that is the default.
        """
        patterns, lists = _several(handlers, "handlers", check_pattern), _several(task_lists, "task_lists", _check_list)
        check_key(name, "name of a worker")
        check_key(host, "host")
        check_key(actor, "actor")
        if version:
            check_key(version, "version")
        every_for = milliseconds(heartbeat_every, "heartbeat_every", positive=True)
        if check_count(concurrency, "concurrency") > MOST_CONCURRENT:
            raise InvalidInput(f"concurrency is at most {MOST_CONCURRENT}, not {concurrency}.")
        server = Server(
            id=self._ids.new_id(),
            name=name,
            host=host,
            pid=0,
            version=version,
            state="running",
            handlers=patterns,
            task_lists=lists,
            concurrency=concurrency,
            heartbeat_every_for=every_for,
            service_name=f"{actor}{self._whose}",
        )
        await self._store.save_server(server)
        self._emit(WorkerStarted(server.id, tuple(patterns)))
        return await self._touch(server.id)

    async def registered_by(self, worker_id: str) -> str:
        """Who registered the worker, or `WorkerNotFound`, also for one of another namespace."""
        worker_id = parse_id(worker_id, "worker id")
        known = self._known.get(worker_id)
        if known is None:
            known = self._remember(await self._look_up(worker_id))
        if not known.server.service_name.endswith(self._whose):
            raise WorkerNotFound(worker_id)
        return known.server.service_name.removesuffix(self._whose)

    async def beat(
        self,
        worker_id: str,
        *,
        running: int | None = None,
        claims: Iterable[tuple[str, int]] = (),
        lease_for: Duration | None = None,
    ) -> Beaten:
        """A sign of life, which also holds the claims (task id, claim version) for another lease; how each of them stands.

        `running` is how many tasks are in progress, for people; without it, as many as claims were given, if any.
        """
        lease = self._lease(lease_for)
        worker_id = parse_id(worker_id, "worker id")
        renewals = [Renewal(_claim_of(worker_id, each)) for each in claims]
        if len(renewals) > MOST_CLAIMS:
            raise InvalidInput(f"A beat names at most {MOST_CLAIMS} claims, not {len(renewals)}.")
        if running is not None and (type(running) is not int or running < 0):
            raise InvalidInput(f"running is how many tasks are in progress, not {running!r}.")
        server = await self._touch(worker_id, running if running is not None else len(renewals) if renewals else None)
        return Beaten(server, tuple(await self._renew(renewals, lease)) if renewals else ())

    async def leave(self, worker_id: str) -> int:
        """The worker stops: its claims that wait get nothing, and what it holds is released for others; how much that was."""
        worker_id = parse_id(worker_id, "worker id")
        server = await self._touch(worker_id, 0, "stopped")
        self._known.pop(worker_id, None)
        self._room.dismiss(worker_id)
        released = 0
        for task in await self._list_held(worker_id):
            try:
                await self._finish(self._settle(task, task.claim, Released("its worker left")))
                released += 1
            except ClaimLost:
                continue  # settled, or taken over, at that moment
        self._emit(WorkerStopped(server.id, server.handled, released))
        return released

    async def close(self) -> None:
        """Let all claims go that wait here, and finish what is on its way; idempotent."""
        await self._room.close()
        self._known.clear()

    # claiming

    async def claim(
        self,
        worker_id: str,
        *,
        limit: int = 1,
        wait_for: Duration = 0,
        lease_for: Duration | None = None,
        names: Iterable[str] | None = None,
        task_lists: Iterable[str] | None = None,
        allowed: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        """Up to `limit` tasks that the worker has handlers for, held for a lease from now; waits up to `wait_for` (60 s) for some.

        `names` and `task_lists` narrow down what the worker was registered with; `allowed` are the lists that its access is
        restricted to. Those who wait are served in the order in which they came. A caller that is canceled holds nothing.
        """
        if check_count(limit, "limit") > CLAIM_LIMIT:
            raise InvalidInput(f"limit is at most {CLAIM_LIMIT}, not {limit}.")
        wait = milliseconds(wait_for, "wait_for")
        if wait > LONGEST_WAIT_FOR:
            raise InvalidInput(f"wait_for is at most {LONGEST_WAIT_FOR // 1000} s, not {wait_for!r}.")
        lease = self._lease(lease_for)
        only = None if names is None else _several(names, "names", check_pattern)
        lists = None if task_lists is None else _several(task_lists, "task_lists", _check_list)
        server = await self._alive(parse_id(worker_id, "worker id"))
        wants = self._wants(server, only, lists, allowed)

        async def look(lane_ids: Sequence[int]) -> Claimed[ClaimedTask]:
            return await self._look(lane_ids, server.id, lease, limit)

        return await self._room.wait(server.id, wants, look, self._give_back, wait / 1000)

    def _wants(self, server: Server, only: list[str] | None, lists: list[str] | None, allowed: Collection[str] | None) -> _Wants:
        served = set(server.task_lists) if lists is None else set(server.task_lists).intersection(lists)
        if allowed is not None:
            served = served.intersection(allowed)
        if not served:
            raise Refused("This worker serves none of those task lists, or its access is not for them: nothing can be claimed.")

        narrowed = None if only is None else tuple(only)
        return _Wants(self._namespace, tuple(server.handlers), narrowed, frozenset(served), self._is_prompt)

    async def _look(self, lane_ids: Sequence[int], worker_id: str, lease_for: int, limit: int) -> Claimed[ClaimedTask]:
        observe = self._telemetry.observe

        def claim(room: int) -> Awaitable[list[Task]]:
            call = self._store.claim(lane_ids, worker_id, lease_for, room)
            return call if observe is None else timed(observe, self._clock, "claim", call, len)

        tasks = await take(claim, self._tend, limit)
        if observe is not None and tasks:
            observe(TasksClaimed(tasks))
        lanes = frozenset(task.lane_id for task in tasks)
        ready = [task for task in tasks if await self._may_be_executed(task)]
        bounded = [Renewal(task.claim) for task in ready if (task.deadline_at or task.progress_for or task.timeout_for) is not None]
        try:
            extended = await self._store.extend(bounded, lease_for) if bounded else {}
        except StoreError:
            await self._give_back([_claimed(task) for task in ready])
            raise
        found = []
        for task in ready:
            if (extension := extended.get(task.id)) is not None:
                task.wake_at = extension.until_at
            self._emit(TaskTaken(task.id, task.name, task.attempt, task.trace_id))
            found.append(_claimed(task))
        return Claimed(lanes, found)

    async def _may_be_executed(self, task: Task) -> bool:
        """Whether it is handed out, with its payload opened; else it is settled here, as a worker in this process would."""
        try:
            if (problem := refusal(task)) is not None:
                await self._turn_away(task, turned_away(task, problem))
            elif task.state == TaskState.AWAITING_EXTERNAL:
                self._room.skip_lane(task.lane_id, 2 * POLL_LEFT_FOR / 1000)
                await self._turn_away(task, await self._for_specialist(task))
            else:
                task.payload = await self._value_store.open_text(task.payload)
                return True
        except StoreError as error:
            self._emit(LoopError("outside workers", f"task {task.id} ({task.name}) is left to its lease: {error}"))
        except TreadleError as error:
            await self._turn_away(task, failure(Problem(error.code, str(error), type(error).__name__)))
        return False

    async def _for_specialist(self, task: Task) -> Finish | Park:
        """What awaits an outside job is polled by its specialist alone."""
        if not await self._external_jobs.is_offered(task):
            return failure(Problem(UNREGISTERED, unregistered_text(task.name, task.scope)))
        released = decide(task, Released("its specialist polls it"), NO_RETRY, self._ids.random)
        return msgspec.structs.replace(released, delay=POLL_LEFT_FOR) if isinstance(released, Park) else released

    async def _turn_away(self, task: Task, decided: Finish | Park) -> None:
        answer = await self._settle_task(task, task.claim, decided, PATIENCE)
        if answer.verdict is Verdict.DONE:
            self._emit(TaskSettled.of(task, decided.move, 0.0, decided.error))

    async def _give_back(self, claimed: list[ClaimedTask]) -> None:
        """Release what was taken for somebody who has gone."""
        for each in claimed:
            task = each.task
            try:
                await self._turn_away(task, decide(task, Released("whoever claimed it went away"), NO_RETRY, self._ids.random))
            except StoreError as error:
                self._emit(LoopError("outside workers", f"task {task.id} ({task.name}) is left to its lease: {error}"))

    # signs of life

    async def _renew(self, renewals: Sequence[Renewal], lease_for: int) -> list[HeldClaim]:
        """As for all held work; whoever holds something is alive."""
        answers = await super()._renew(renewals, lease_for)
        if any(each.state == HELD for each in answers):
            with suppress(WorkerNotFound):  # a claim is held by its own right
                await self._alive(renewals[0].claim.owner_id)
        return answers

    async def _alive(self, worker_id: str) -> Server:
        """The worker's row, touched if that is due."""
        known = self._known.get(worker_id)
        return known.server if known is not None and not self._is_due(known) else await self._touch(worker_id)

    def _is_due(self, known: _Known) -> bool:
        """Whether it is time to store a sign of life: thrice in the time between two beats."""
        return self._clock.monotonic() - known.touched_at >= known.server.heartbeat_every_for / 3000

    async def _touch(self, worker_id: str, running: int | None = None, state: str | None = None) -> Server:
        """Store a sign of life, with what has been counted since the last one; or `WorkerNotFound`."""
        known = self._known.get(worker_id) or await self._look_up(worker_id)
        found = await self._store.touch_servers([replace(self._touch_of(known), running=running, state=state)])
        if not found:
            self._known.pop(worker_id, None)
            raise WorkerNotFound(worker_id)
        self._learn(found[0])
        return found[0]

    async def _look_up(self, worker_id: str) -> _Known:
        """A worker that has not come to this process before; a server that hosts workers itself is none."""
        for server in await self._store.list_servers():
            if server.id == worker_id and server.pid == 0:
                return _Known(server, float("-inf"), Counter())
        raise WorkerNotFound(worker_id)

    def _touch_of(self, known: _Known) -> Touch:
        """What is to be stored; it counts as stored."""
        known.touched_at = self._clock.monotonic()
        settled, known.settled = known.settled, Counter()
        failed = settled.pop("fail", 0)
        return Touch(known.server.id, None, settled.total() - settled["release"] + failed, failed)

    def _learn(self, server: Server) -> None:
        known = self._known.get(server.id)
        self._remember(_Known(server, self._clock.monotonic(), Counter() if known is None else known.settled))

    def _remember(self, known: _Known) -> _Known:
        """Know the worker from now on; those that did not come for the longest time are forgotten."""
        self._known.pop(known.server.id, None)
        while len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[known.server.id] = known
        return known

    async def _keep_alive(self, worker_ids: Collection[str]) -> None:
        """Those who wait are alive; one that has left through another process waits no longer."""
        due = [known for each in worker_ids if (known := self._known.get(each)) is not None and self._is_due(known)]
        if not due:
            return
        found = {server.id: server for server in await self._store.touch_servers([self._touch_of(known) for known in due])}
        for known in due:
            worker_id = known.server.id
            if (server := found.get(worker_id)) is not None:
                self._learn(server)
            else:
                self._known.pop(worker_id, None)
                self._room.dismiss(worker_id, WorkerNotFound(worker_id))

    def _note_settled(self, worker_id: str, move: str) -> None:
        if (known := self._known.get(worker_id)) is not None:
            known.settled[move] += 1

    async def _list_held(self, worker_id: str) -> list[Task]:
        held: list[Task] = []
        which = TaskFilter(states=(TaskState.RUNNING,), namespace=self._namespace, kind=HANDLER)
        while page := await self._store.list_tasks(which, _PAGE):
            held += [task for task in page if task.owner_id == worker_id]
            which = replace(which, before_id=page[-1].id)
        return held


def _claimed(task: Task) -> ClaimedTask:
    decisions, own = split_checkpoint(decode(task.checkpoint))
    if isinstance(own, dict):
        own = {
            name: value for name, value in own.items() if name != INTENT
        } or None  # the key of a call-back is no worker's business
    until_at = task.wake_at or 0
    left_for = max(until_at - (task.claimed_at or 0), 0)
    return ClaimedTask(task, decode(task.payload), until_at, left_for, own, tuple(decisions))


def _claim_of(worker_id: str, given: tuple[str, int]) -> Claim:
    task_id, claim_version = given
    if type(claim_version) is not int or not 0 < claim_version < 2**31:
        raise InvalidInput(f"A claim is (task id, claim version), not {given!r}.")
    return Claim(parse_id(task_id, "task id"), claim_version, worker_id)


def _several(given: Iterable[str], what: str, check: Callable[[str], str]) -> list[str]:
    """The names, each once and checked."""
    names = list(dict.fromkeys([given] if isinstance(given, str) else given))
    if not 0 < len(names) <= _MOST_PATTERNS:
        raise InvalidInput(f"{what} are 1 to {_MOST_PATTERNS} names, not {len(names)}.")
    return [check(name) for name in names]


def _check_list(name: str) -> str:
    return check_name(name, "task list")
