"""What a driver of a function knows, and how what its branches decide is committed under the claim of its task."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.kernel.effects.decide import UNKNOWN
from treadle.kernel.functions.rows import StepIds
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.records import TakeMessages
from treadle.kernel.store.units import DONE, Answer, Keep, PutSteps, Row, RunGuard, Unit, Verdict
from treadle.model.outcomes import Problem
from treadle.model.records import Message
from treadle.model.runs import Run, Step
from treadle.model.states import RunState
from treadle.model.tasks import NewTask, Task
from treadle.workers.context import Context
from treadle.workers.functions.branches import Branch, Pending
from treadle.workers.functions.history import History
from treadle.workers.functions.inbox import Letter, open_letter
from treadle.workers.functions.registry import Function
from treadle.workers.functions.runtime import Runtime
from treadle.workers.functions.waits import Wait

_PAGE = 1000


class Committing:
    """The state of a driver, its reads, and its commits while the task stays claimed."""

    def __init__(self, runtime: Runtime, function: Function, task: Task) -> None:
        self.runtime = runtime
        self.function = function
        self.run_id = task.run_id or ""
        self.root_id = task.root_id
        self.task = task
        self.token = task.claim
        self.context: Context | None = None
        self.ids = StepIds(self.run_id)
        self.run: Run | None = None
        """The run as it was last read; a new one is not read at all."""
        self.version = 0
        self.history = History()
        self.replaying = False
        self.active = 0
        self.closed = False
        self.lost = False
        self.held = False
        self.problem: Problem | None = None
        self.ended: tuple[Any, BaseException | None] | None = None
        self.successor: dict[str, Any] | None = None
        self.ctx: Any = None
        self.count = 0
        self._uncounted = 0
        self._keys: set[str] = set()
        self._root: asyncio.Task[None] | None = None
        self._branches: dict[asyncio.Task[Any], Branch] = {}
        self._waits: dict[Wait, None] = {}
        self._by_key: dict[str, Wait] = {}
        self._by_signal: dict[str, list[Wait]] = {}
        self._child_mail: dict[str, Letter] = {}
        self._signal_mail: dict[str, list[Letter]] = {}
        self._known_mail: set[str] = set()
        self._taken_mail: set[str] = set()
        self._shared = Pending()
        self._stopped: list[asyncio.Future[None]] = []
        self._resting: asyncio.Future[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._scheduled = False
        self._crash: BaseException | None = None
        self._claimed_at = 0
        self._anchor = 0.0

    def now(self) -> int:
        """The store's clock, as far as it can be known without asking: never ahead of it by more than the two clocks drift."""
        return self._claimed_at + round((self.runtime.clock.monotonic() - self._anchor) * 1000)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """The end of a turn of the event loop."""
        raise NotImplementedError

    def _take_letters(self, letters: list[Letter]) -> None:
        """Let branches go on that waited for these."""
        raise NotImplementedError

    def lose(self) -> None:
        """The claim is gone: nothing that is decided here counts any more."""
        self.lost = self.closed = True
        self._schedule()

    # reads

    async def _look(self) -> Run:
        """The run as it is now; one that is over has been taken from us. Its mail has not been looked at by that."""
        run = await self.runtime.store.find_run(self.run_id)
        if run is None or run.finished:
            self.lose()
            raise asyncio.CancelledError
        self.run = run
        self.held = run.state == RunState.PAUSED
        return run

    async def _read_mail(self) -> list[Letter]:
        letters: list[Letter] = []
        after = 0
        while page := await self.runtime.store.list_messages(self.run_id, _PAGE, after):
            letters += [await open_letter(mail, self.runtime.value_store) for mail in page if mail.id not in self._known_mail]
            after = page[-1].seq
            if len(page) < _PAGE:
                break
        return letters

    async def _list_signals(self) -> list[Message]:
        """Signals that are not taken in."""
        found: list[Message] = []
        while page := await self.runtime.store.list_messages(self.run_id, _PAGE, found[-1].seq if found else 0):
            found += page
        return [mail for mail in found if mail.step_id is None]

    async def _refresh(self) -> None:
        """Look at the run and its mail; what branches waited for lets them go on.

        Only then has it been seen up to that version: a look that is broken off in between must not let the run park past its mail.
        """
        run = await self._look()
        self._take_letters(await self._read_mail())
        self.version = run.version

    # committing

    def _rows_of(self, pending: Pending) -> tuple[tuple[NewTask, ...], list[Row]]:
        tasks, rows = list(pending.tasks), list(pending.rows)
        steps = list(pending.steps.values())
        for task, more, step in pending.starts:
            tasks.append(task)
            rows += more
            steps.append(step)
        if steps:
            rows.append(PutSteps(self.run_id, tuple(steps), 0))
        if pending.taken:
            rows.append(TakeMessages(self.run_id, tuple(pending.taken)))
        return tuple(tasks), rows

    async def checkpoint(self, branch: Branch, step: Step) -> None:
        """Commit a step, with all that its branch decided before; when this returns, it is durable."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if branch.pending is None and not self._shared:
            unit = Unit(self.token, None, (), (), None, (PutSteps(self.run_id, (step,), 0),))
            reach("function.before_commit")
            try:
                answer = await self.runtime.committer.submit(unit)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raise self._crashed(error) from None
            reach("function.after_commit")
            if answer is not DONE:
                self.held = self.held or answer.held
                if answer.verdict is not Verdict.DONE:
                    if await self._still_held():
                        return await self.checkpoint(branch, step)
                    self.lose()
                    raise asyncio.CancelledError
            return None
        pending = self._decided(branch)
        pending.steps[step.id] = step
        return await self.commit(pending)

    async def _still_held(self) -> bool:
        """Whether the claim holds all the same: a unit that logged a move in the same commit makes another one look lost."""
        try:
            task = await self.runtime.store.find_task(self.task.id)
        except Exception as error:
            raise self._crashed(error) from None
        return task is not None and not task.finished and task.claim == self.token

    async def commit_decided(self, branch: Branch) -> None:
        """Commit what the branch decided so far, if anything."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if branch.pending is not None:
            await self.commit(self._decided(branch))

    def _decided(self, branch: Branch) -> Pending:
        """What the branch decided, after what is shared: a wait that ended at once may have left there what came before."""
        pending, self._shared = self._shared, Pending()
        if branch.pending is not None:
            pending.take(branch.pending)
            branch.pending = None
        return pending

    async def commit(self, pending: Pending) -> None:
        """Commit what was decided while the task stays claimed."""
        while pending:
            if self.held and pending.starts:  # a paused run starts nothing; what else there is, is kept
                self._shared.starts += pending.starts
                pending.starts = []
                continue
            guard = None
            if pending.starts or pending.guarded:
                guard = RunGuard(self.run_id, self.version if pending.starts else None)
            tasks, rows = self._rows_of(pending)
            keep = None if pending.doubt is None else Keep(self.task.checkpoint, UNKNOWN, pending.doubt)
            answer = await self._submit_here(Unit(self.token, keep, tasks, (), guard, tuple(rows)))
            if answer.verdict is Verdict.DONE:
                if guard is not None and guard.version == self.version:  # else it was looked at meanwhile, or will be
                    self.version += 1
                return self._committed(pending)
            if answer.verdict is Verdict.CLAIM_LOST:
                if await self._still_held():
                    continue
                self.lose()
                raise asyncio.CancelledError
            await self._refresh_here()
        return None

    async def _submit(self, unit: Unit) -> Answer:
        reach("function.before_commit")
        answer = await self.runtime.committer.submit(unit)
        reach("function.after_commit")
        if answer.held:
            self.held = True
        return answer

    async def _submit_here(self, unit: Unit) -> Answer:
        """Submit in a branch: what goes wrong with that is the driver's trouble, never an error of the user's code."""
        try:
            return await self._submit(unit)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise self._crashed(error) from None

    async def _refresh_here(self) -> None:
        try:
            await self._refresh()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise self._crashed(error) from None

    def _crashed(self, error: BaseException) -> asyncio.CancelledError:
        self._crash = self._crash or error
        self.closed = True
        self._schedule()
        return asyncio.CancelledError()

    def _committed(self, pending: Pending) -> None:
        self._taken_mail.update(pending.taken)

    def _collect(self) -> Pending:
        """All that is decided and not committed."""
        pending, self._shared = self._shared, Pending()
        for branch in self._branches.values():
            if branch.pending is not None:
                pending.take(branch.pending)
                branch.pending = None
        return pending
