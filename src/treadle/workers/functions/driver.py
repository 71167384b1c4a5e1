"""Drives one run of a function: starts or replays its code, commits what it decides, parks it when all of it waits.

Branches (the function itself, and the arguments of its gathers) are asyncio tasks that the driver owns. A branch that waits
durably waits in a future of the driver's, so the driver knows when nothing is left to execute: `active` is 0. Then, at the end of
the turn of the event loop, everything that was decided goes into one unit, with the task parked. While something still
executes, what the others decided is committed as a checkpoint. The claim of the run's task fences every unit; the version of the
run, at which mail was last looked at, sees to it that no mail is missed by parking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from treadle.kernel.functions.rows import Recorded, read_step
from treadle.kernel.store.records import Await
from treadle.kernel.store.units import Park, RunGuard, Unit, Verdict
from treadle.model.errors import StoreError, TreadleError
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.model.values import BlobRef
from treadle.workers.context import Context
from treadle.workers.functions.branch_ops import Branching, diverged
from treadle.workers.functions.branches import Branch, Pending
from treadle.workers.functions.endings import Ending, ended_unit, stuck_park
from treadle.workers.functions.history import History
from treadle.workers.functions.runtime import Settled
from treadle.workers.functions.waits import NEVER, need_of

SAFETY_NET_FOR = 86_400_000
"""Milliseconds after which a function that waits for mail alone looks by itself."""

_LOOK_EVERY = 1.0
"""Seconds between looks at mail while some branches wait and others execute."""
_PAGE = 1000
_WAIT = "wait"


class Driver(Branching):
    """One run in this process, from its first claim here until it ends, is evicted, or is taken by another process."""

    # one claim

    async def execute(self, task: Task, context: Context, settling: Callable[[bool], None]) -> Settled | None:
        """Go on from where the run is, until it parks or ends; None if the claim was lost. Closed when canceled."""
        self.task, self.token, self.context = task, context.token, context
        self._claimed_at, self._anchor = task.claimed_at or 0, self.runtime.clock.monotonic()
        try:
            if self._root is None:
                await self._begin()
            else:
                await self._go_on()
            while True:
                await self._rest()
                if (settled := await self._settle(settling)) is not None:
                    return settled
                if self.lost:
                    self.close()
                    return None
                if context.cancelled:
                    raise asyncio.CancelledError
        except BaseException as error:
            self.close()
            stopped = asyncio.current_task()
            if self.lost and isinstance(error, asyncio.CancelledError) and stopped is not None and not stopped.cancelling():
                return None
            raise

    @property
    def parked(self) -> bool:
        """Whether it can go on with the next claim."""
        return not self.closed

    async def _begin(self) -> None:
        if self.task.claim_version > 1 or self.task.scope is not None:
            await self._load()
        payload = await self.runtime.value_store.unpack(self.task.payload)
        handler = self.function.handler
        code = handler.call(*(payload, self.ctx)[: handler.arguments])
        self.active += 1
        self._root = asyncio.get_running_loop().create_task(self._run_root(code))
        self._branches[self._root] = Branch()

    async def _run_root(self, code: Any) -> None:
        try:
            self.ended = (await code, None)
        except asyncio.CancelledError as error:
            if self.closed:
                raise
            self.ended = (None, error)
        except (Exception, SystemExit) as error:
            self.ended = (None, error)
        self.active -= 1
        self._schedule()

    async def _load(self) -> None:
        """Read what the run has recorded, and its mail."""
        store, value_store = self.runtime.store, self.runtime.value_store
        run = await self._look()
        recorded: list[Recorded] = []
        after: str | None = None
        while page := await store.list_steps(run.id, after, _PAGE):
            recorded += [read_step(step, value_store) for step in page]
            after = page[-1].id
        wanted = [each.value.digest for each in recorded if isinstance(each.value, BlobRef)]
        if wanted:
            found = await value_store.load(wanted)
            for each in recorded:
                if isinstance(each.value, BlobRef):
                    each.value = found[each.value.digest]
        self.history = History(recorded)
        self.count = self.history.count
        self.replaying = bool(self.history)
        self._take_letters(await self._read_mail())
        self.version = run.version

    async def _go_on(self) -> None:
        """The coroutine is warm: take in what came, and let it run."""
        self.held = False
        if any(wait.mailed for wait in self._waits):
            await self._refresh()
        if not self.held:
            self._resume_stopped()
        self._schedule()

    # turns

    async def _rest(self) -> None:
        """Until nothing is left to execute."""
        if self._scheduled or (self.active and not (self.problem or self.lost or self._crash)):
            self._resting = asyncio.get_running_loop().create_future()
            try:
                await self._resting
            finally:
                self._resting = None
        if self._crash is not None:
            raise self._crash

    def _turn(self) -> None:
        """The end of a turn: everything that was decided in it is known."""
        self._scheduled = False
        if not self.active or self.problem or self.lost or self._crash:
            if self._resting is not None and not self._resting.done():
                self._resting.set_result(None)
        elif not self.closed:
            if self._shared and self._flushing is None:
                self._flushing = asyncio.get_running_loop().create_task(self._flush())
            if self._waits and self._watching is None:
                self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _flush(self) -> None:
        """Commit what waiting branches decided while others execute."""
        try:
            while self._shared and not self.held:
                pending, self._shared = self._shared, Pending()
                await self.commit(pending)
        except asyncio.CancelledError:
            if self._crash is None and not self.lost:
                raise
        finally:
            self._flushing = None

    async def _watch(self) -> None:
        """Let waiting branches go on while others execute; when none does, parking sees to it."""
        try:
            while self.active and self._waits and not self.closed:
                first = min((wait.wake_at for wait in self._waits if wait.wake_at is not None), default=NEVER)
                await self.runtime.clock.sleep(min(_LOOK_EVERY, max((first - self.now()) / 1000, 0.001)))
                if self.closed or not self.active:
                    break
                try:
                    if any(wait.mailed for wait in self._waits):
                        await self._refresh()
                except StoreError:
                    continue  # the next look tells
                self._fire_due()
        finally:
            self._watching = None

    # settling

    async def _settle(self, settling: Callable[[bool], None]) -> Settled | None:
        """Nothing executes: park, end, or find that something can go on after all (None)."""
        for task in (self._watching, self._flushing):
            if task is not None:
                if task is self._watching:
                    task.cancel()
                await asyncio.wait([task])
        if self.lost or (self.active and self.problem is None):
            return None
        if self.problem is None and (self.ended is not None or self.successor is not None):
            if (left := self.history.unreached()) is not None:
                self.problem = diverged(left.place, f"{left.kind} {left.name}", "the end of the function")
            elif not self.held:
                return await self._end(settling)
        if self.problem is not None:
            self.close()
            return await self._park(settling, stuck_park(self.task, self.problem), Pending())
        if self.held:
            return await self._park_held(settling)
        if any(wait.mailed and wait.wake_at is not None and wait.wake_at <= self.now() for wait in self._waits):
            await self._refresh()  # what came before its time ran out counts
        if self.active or self._fire_due():
            return None
        need = need_of(self._waits)
        delay = min(max(need.wake_at - self.now(), 1), SAFETY_NET_FOR)
        park = Park(_WAIT, TaskState.PENDING, self.task.attempt, self.task.failures, 0, delay=delay)
        return await self._park(settling, park, self._collect(), need.mail)

    async def _park_held(self, settling: Callable[[bool], None]) -> Settled | None:
        """The run is paused: its task is ready as soon as that is over. What was decided is kept, but no child starts now."""
        pending = self._collect()
        self._shared.starts, pending.starts = pending.starts, []
        park = Park(_WAIT, TaskState.PENDING, self.task.attempt, self.task.failures, 0)
        return await self._park(settling, park, pending)

    async def _park(self, settling: Callable[[bool], None], park: Park, pending: Pending, mail: int = 0) -> Settled | None:
        tasks, rows = self._rows_of(pending)
        rows.append(Await(self.run_id, mail, self._uncounted))
        guard = RunGuard(self.run_id, self.version)
        settling(True)
        answer = await self._submit(Unit(self.token, park, tasks, (), guard, tuple(rows)))
        if answer.verdict is Verdict.DONE:
            self.version += 1
            self._uncounted = 0
            self._committed(pending)
            self._known_mail -= self._taken_mail  # not before: a look that was made meanwhile may still bring it
            self._taken_mail.clear()
            return Settled(park.move, park.error)
        settling(False)
        pending.take(self._shared)
        self._shared = pending
        if answer.verdict is Verdict.CLAIM_LOST:
            self.lose()
            return None
        was_held = self.held
        await self._refresh()
        if was_held and not self.held:
            self._resume_stopped()
        return None

    async def _end(self, settling: Callable[[bool], None]) -> Settled | None:
        guard, left = RunGuard(self.run_id, None), []
        if self.successor is not None:  # signals that nobody waited for go on with it, none that comes now is missed
            guard, left = RunGuard(self.run_id, (await self._look()).version), await self._list_signals()
            if self.held:
                return None
        elif self.run is None and self.root_id != self.run_id:
            await self._look()
        value, error = self.ended or (None, None)
        pending = self._collect()
        ending = Ending(value, error, self.successor, [mail for mail in left if mail.id not in pending.taken])
        tasks, rows = self._rows_of(pending)
        finish, more_tasks, more_rows = await ended_unit(self.runtime, self.task, self.run, self.function, ending)
        unit = Unit(
            self.token,
            finish,
            (*tasks, *more_tasks),
            (),
            guard,
            (*rows, Await(self.run_id, 0, self._uncounted), *more_rows),
        )
        settling(True)
        try:
            answer = await self._submit(unit)
        except TreadleError as refused:
            if refused.code != "illegal_move":
                raise
            settling(False)  # it was paused meanwhile, or it is over
            self._shared = pending
            await self._look()
            if not self.held:
                raise
            return None
        if answer.verdict is not Verdict.DONE:
            settling(False)
            self._shared = pending
            if answer.verdict is Verdict.CLAIM_LOST:
                self.lose()
            return None
        self.close()
        self.runtime.on_finished(self.run_id)
        return Settled(finish.move, finish.error)

    # the end

    def close(self) -> None:
        """Stop all code of the run here; what it still asks for is refused. Nothing durable happens."""
        self.closed = True
        for task in (*self._branches, self._watching, self._flushing):
            if task is not None and not task.done():
                task.cancel()
        self._branches.clear()
        self._waits.clear()
