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

from treadle.kernel.crashpoints import reach
from treadle.kernel.effects import UNKNOWN
from treadle.kernel.entities import Await, TakeMail
from treadle.kernel.function_rows import EFFECT, NOW, START, STEP, Recorded, StepIds, fold_text, make_step, read_step, step_id
from treadle.kernel.ports import DONE, Answer, Keep, Park, PutSteps, Row, RunGuard, Unit, Verdict
from treadle.model.errors import MisusedContext, RepeatedKey, StoreError, TooManySteps, TreadleError
from treadle.model.outcomes import Problem
from treadle.model.runs import Run, Step
from treadle.model.states import RunState, StepState, TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import BlobRef, encode
from treadle.workers.context import Context
from treadle.workers.functions.branches import Branch, Pending
from treadle.workers.functions.endings import Ending, ended_unit, stuck_park
from treadle.workers.functions.history import History
from treadle.workers.functions.letters import Letter, error_of, open_letter
from treadle.workers.functions.registry import Function
from treadle.workers.functions.runtime import Runtime, Settled
from treadle.workers.functions.waits import NEVER, Group, Wait, need_of

SAFETY_NET_FOR = 86_400_000
"""Milliseconds after which a function that waits for mail alone looks by itself."""

_LOOK_EVERY = 1.0
"""Seconds between looks at mail while some branches wait and others execute."""
_PAGE = 1000
_WAIT = "wait"


class Driver:
    """One run in this process, from its first claim here until it ends, is evicted, or is taken by another process."""

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
        self._shared = Pending()
        self._stopped: list[asyncio.Future[None]] = []
        self._resting: asyncio.Future[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._scheduled = False
        self._crash: BaseException | None = None
        self._claimed_at = 0
        self._anchor = 0.0

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

    def now(self) -> int:
        """The store's clock, as far as it can be known without asking: never ahead of it by more than the two clocks drift."""
        return self._claimed_at + round((self.runtime.clock.monotonic() - self._anchor) * 1000)

    async def _begin(self) -> None:
        if self.task.claim_version > 1 or self.task.scope is not None:
            await self._load()
        payload = await self.runtime.vault.unpack(self.task.payload)
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
        store, vault = self.runtime.store, self.runtime.vault
        run = await self._look()
        recorded: list[Recorded] = []
        after: str | None = None
        while page := await store.list_steps(run.id, after, _PAGE):
            recorded += [read_step(step, vault) for step in page]
            after = page[-1].id
        wanted = [each.value.digest for each in recorded if isinstance(each.value, BlobRef)]
        if wanted:
            found = await vault.load(wanted)
            for each in recorded:
                if isinstance(each.value, BlobRef):
                    each.value = found[each.value.digest]
        self.history = History(recorded)
        self.count = self.history.count
        self.replaying = bool(self.history)
        self._take_letters(await self._read_mail())

    async def _look(self) -> Run:
        """The run as it is now; one that is over has been taken from us."""
        run = await self.runtime.store.find_run(self.run_id)
        if run is None or run.finished:
            self.lose()
            raise asyncio.CancelledError
        self.run, self.version = run, run.version
        self.held = run.state == RunState.PAUSED
        return run

    async def _read_mail(self) -> list[Letter]:
        letters: list[Letter] = []
        after = 0
        while page := await self.runtime.store.list_mail(self.run_id, _PAGE, after):
            letters += [await open_letter(mail, self.runtime.vault) for mail in page if mail.id not in self._known_mail]
            after = page[-1].seq
            if len(page) < _PAGE:
                break
        return letters

    async def _refresh(self) -> None:
        """Look at the run and its mail; what branches waited for lets them go on."""
        await self._look()
        self._take_letters(await self._read_mail())

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

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

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
                self.problem = _diverged(left.place, f"{left.kind} {left.name}", "the end of the function")
            elif not self.held:
                return await self._end(settling)
        if self.problem is not None:
            self.close()
            return await self._park(settling, stuck_park(self.task, self.problem), Pending())
        if self.held:
            return await self._park_held(settling)
        if self._fire_due():
            return None
        need = need_of(self._waits)
        wake_for = min(max(need.wake_at - self.now(), 1), SAFETY_NET_FOR)
        park = Park(_WAIT, TaskState.PENDING, self.task.attempt, self.task.failures, 0, wake_for=wake_for)
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
        if self.run is None and self.root_id != self.run_id:
            await self._look()
        value, error = self.ended or (None, None)
        pending = self._collect()
        ending = Ending(value, error, self.successor)
        tasks, rows = self._rows_of(pending)
        finish, more_tasks, more_rows = await ended_unit(self.runtime, self.task, self.run, self.function, ending)
        unit = Unit(
            self.token,
            finish,
            (*tasks, *more_tasks),
            (),
            RunGuard(self.run_id, None),
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
            self.lose()
            return None
        self.close()
        self.runtime.on_finished(self.run_id)
        return Settled(finish.move, finish.error)

    def _collect(self) -> Pending:
        """All that is decided and not committed."""
        pending, self._shared = self._shared, Pending()
        for branch in self._branches.values():
            if branch.pending is not None:
                pending.take(branch.pending)
                branch.pending = None
        return pending

    # committing

    def _rows_of(self, pending: Pending) -> tuple[tuple[NewTask, ...], list[Row]]:
        tasks, rows = list(pending.tasks), list(pending.rows)
        for task, more in pending.starts:
            tasks.append(task)
            rows += more
        if pending.steps:
            rows.append(PutSteps(self.run_id, tuple(pending.steps.values()), 0))
        if pending.taken:
            rows.append(TakeMail(self.run_id, tuple(pending.taken)))
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
            guard = None
            if pending.starts or pending.guarded:
                guard = RunGuard(self.run_id, self.version if pending.starts else None)
            tasks, rows = self._rows_of(pending)
            keep = None if pending.doubt is None else Keep(self.task.checkpoint, UNKNOWN, pending.doubt)
            answer = await self._submit_here(Unit(self.token, keep, tasks, (), guard, tuple(rows)))
            if answer.verdict is Verdict.DONE:
                self.version += guard is not None
                return self._committed(pending)
            if answer.verdict is Verdict.CLAIM_LOST:
                if await self._still_held():
                    continue
                self.lose()
                raise asyncio.CancelledError
            await self._refresh_here()
            if self.held:  # a paused run starts nothing; what else there is, is kept
                self._shared.starts += pending.starts
                pending.starts = []
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
        self._known_mail.difference_update(pending.taken)

    # what operations ask for

    def enter(self) -> Branch:
        """The branch that calls; raises where `ctx` cannot be used."""
        task = asyncio.current_task()
        branch = self._branches.get(task) if task is not None else None
        if self.closed:
            raise asyncio.CancelledError
        if branch is None:
            raise MisusedContext(
                f"An operation of ctx was awaited outside the function {self.function.lane_name}, e.g. in a task of its own. "
                "Use `ctx.gather(...)` for things at once."
            )
        if branch.busy is not None:
            raise MisusedContext(f"ctx cannot be used inside the step {branch.busy}; a step is one unit of work.")
        return branch

    def reach(self, branch: Branch, kind: str, name: str) -> tuple[str, Recorded | None]:
        """The place of the next step of the branch, and what is recorded there; a mismatch ends the replay."""
        position = branch.position
        branch.position = position + 1
        place = f"{branch.scope}{position}"
        if self.replaying:
            recorded = self.history.take(place)
            if recorded is not None:
                if recorded.kind != kind or recorded.name != name:
                    self.diverge(place, f"{recorded.kind} {recorded.name}", f"{kind} {name}")
                return place, recorded
            if kind not in (START, NOW) and self.history.went_past(branch.scope, position):
                self.diverge(place, "something else", f"{kind} {name}")
            self.replaying = bool(self.history)
        if self.count >= self.function.max_steps:
            raise TooManySteps(self.function.max_steps)
        self.count += 1
        self._uncounted += 1
        return place, None

    def reach_gather(self, branch: Branch) -> str:
        """The place of a gather, which has no row of its own."""
        place = f"{branch.scope}{branch.position}"
        branch.position += 1
        if self.replaying and (recorded := self.history.look(place)) is not None:
            self.diverge(place, f"{recorded.kind} {recorded.name}", "a gather")
        return place

    def diverge(self, place: str, recorded: str, now: str) -> None:
        """The code does not do what it did: nothing of this replay counts."""
        self.problem = self.problem or _diverged(place, recorded, now)
        self.closed = True
        self._schedule()
        raise asyncio.CancelledError

    def check_key(self, key: str) -> str:
        """An explicit key, which a run may use once (D27)."""
        if key in self._keys:
            raise RepeatedKey(f"The key {key!r} was given to a step of this run before; each key is used once.")
        self._keys.add(key)
        return key

    def make(self, place: str, kind: str, name: str, state: str) -> Recorded:
        """A new step at a place."""
        redo = self.history.redo(place) if self.history else 0
        return Recorded(
            id=step_id(self.run_id, place, redo), place=place, redo=redo, kind=kind, name=name, state=state, ordinal=self.count
        )

    def record(self, recorded: Recorded, later: Pending) -> None:
        """Let the step's row go with a later commit."""
        value = recorded.value
        if value is not None and isinstance(value, dict | list | str):
            text = encode(value, "value", 2**31)
            _, blobs = fold_text(text, value, self.root_id, self.runtime.vault)
            if blobs:
                later.rows += blobs
                recorded.value = BlobRef(blobs[0].digest, len(text), isinstance(value, list))
        later.steps[recorded.id] = make_step(self.run_id, recorded, self.runtime.vault)
        recorded.value = value

    def share(self, branch: Branch) -> Pending:
        """What goes with the unit at the end of this turn, as the branch waits from now on."""
        if branch.pending is not None:
            pending, branch.pending = branch.pending, None
            self._shared.take(pending)
        self._schedule()
        return self._shared

    async def stop(self) -> None:
        """The run is paused: stay here until it goes on."""
        while self.held:
            stopped = asyncio.get_running_loop().create_future()
            self._stopped.append(stopped)
            self.active -= 1
            self._schedule()
            await stopped

    def _resume_stopped(self) -> None:
        stopped, self._stopped = self._stopped, []
        for each in stopped:
            if not each.done():
                self.active += 1
                each.set_result(None)

    # waits

    def register(self, wait: Wait) -> None:
        """From now on it ends when what it waits for comes; what is here already ends it at once."""
        if wait.mail_key is not None and (letter := self._child_mail.pop(wait.mail_key, None)) is not None:
            return self._end_by_letter(wait, letter)
        if wait.signal is not None and (letters := self._signal_mail.get(wait.signal)):
            return self._end_by_letter(wait, letters.pop(0))
        self._waits[wait] = None
        if wait.mail_key is not None:
            if wait.mail_key in self._by_key:
                raise MisusedContext(f"{wait.recorded.name} is awaited twice at once.")
            self._by_key[wait.mail_key] = wait
        if wait.signal is not None:
            self._by_signal.setdefault(wait.signal, []).append(wait)
        return None

    async def block(self, wait: Wait) -> None:
        """Wait for it, as this branch."""
        if wait.done:
            return
        wait.future = asyncio.get_running_loop().create_future()
        self.active -= 1
        self._schedule()
        await wait.future

    def _take_letters(self, letters: list[Letter]) -> None:
        for letter in letters:
            self._known_mail.add(letter.id)
            if letter.step_id is not None:
                wait = self._by_key.get(letter.step_id)
                if wait is None:
                    self._child_mail[letter.step_id] = letter
                    continue
            else:
                waiting = self._by_signal.get(letter.name or "")
                if not waiting:
                    self._signal_mail.setdefault(letter.name or "", []).append(letter)
                    continue
                wait = waiting[0]
            self._end_by_letter(wait, letter)

    def _end_by_letter(self, wait: Wait, letter: Letter) -> None:
        recorded = wait.recorded
        recorded.state = StepState.COMPLETED if letter.error is None else StepState.FAILED
        recorded.value, recorded.error = letter.value, letter.error
        later = self._later(wait)
        later.taken.append(letter.id)
        if letter.keyed:
            later.guarded = True
            marker = Recorded(id=letter.id, kind="signal", name=letter.name or "", state=StepState.COMPLETED)
            later.steps[letter.id] = make_step(self.run_id, marker, self.runtime.vault)
        self._resolve(wait)

    def _fire_due(self) -> bool:
        """End the waits whose time has come; whether there were any."""
        now = self.now()
        due = [wait for wait in self._waits if wait.wake_at is not None and wait.wake_at <= now]
        for wait in due:
            if wait.recorded.kind not in (STEP, EFFECT):
                wait.recorded.state = StepState.COMPLETED
                wait.recorded.timed_out = wait.mailed
            self._resolve(wait)
        return bool(due)

    def _later(self, wait: Wait) -> Pending:
        """Where the row of an ended wait goes: to the branch that goes on because of it."""
        branch = wait.branch
        return branch.parent.later() if wait.group is not None and branch.parent is not None else branch.later()

    def _resolve(self, wait: Wait) -> None:
        wait.done = True
        recorded = wait.recorded
        self._waits.pop(wait, None)
        if wait.mail_key is not None:
            self._by_key.pop(wait.mail_key, None)
        if wait.signal is not None and wait in (waiting := self._by_signal.get(wait.signal, [])):
            waiting.remove(wait)
        if recorded.kind not in (STEP, EFFECT):
            self.record(recorded, self._later(wait))
            wait.error = error_of(recorded)
            wait.value = recorded.value
        if wait.on_done is not None:
            wait.on_done(wait)
        if wait.group is not None:
            self.one_less(wait.group, wait.index, wait.value, wait.error)
        elif wait.future is not None and not wait.future.done():
            self.active += 1
            wait.future.set_result(None)

    # branches

    def fork(self, group: Group, index: int, branch: Branch, awaitable: Any) -> None:
        """Execute an argument of a gather as a branch of its own."""
        group.coded += 1
        self.active += 1
        task = asyncio.get_running_loop().create_task(self._run_branch(group, index, branch, awaitable))
        self._branches[task] = branch

    async def _run_branch(self, group: Group, index: int, branch: Branch, awaitable: Any) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = await awaitable
        except asyncio.CancelledError as canceled:
            if self.closed:
                raise
            error = canceled
        except (Exception, SystemExit) as raised:
            error = raised
        task = asyncio.current_task()
        if task is not None:
            self._branches.pop(task, None)
        if branch.pending is not None and branch.parent is not None:
            branch.parent.later().take(branch.pending)
        group.coded -= 1
        self.one_less(group, index, value, error)
        self.active -= 1
        self._schedule()

    def one_less(self, group: Group, index: int, value: Any, error: BaseException | None) -> None:
        """A branch of a gather has ended; the last one lets the gather go on."""
        group.results[index] = (value, error)
        group.left -= 1
        if not group.left and group.future is not None and not group.future.done():
            self.active += 1
            group.future.set_result(None)

    async def join(self, group: Group) -> None:
        """Wait for all of a gather."""
        if group.left:
            group.future = asyncio.get_running_loop().create_future()
            self.active -= 1
            self._schedule()
            await group.future

    async def end_here(self) -> None:
        """Never go on: what follows is decided by the driver."""
        self.active -= 1
        self._schedule()
        await asyncio.get_running_loop().create_future()

    # the end

    def lose(self) -> None:
        """The claim is gone: nothing that is decided here counts any more."""
        self.lost = self.closed = True
        self._schedule()

    def close(self) -> None:
        """Stop all code of the run here; what it still asks for is refused. Nothing durable happens."""
        self.closed = True
        for task in (*self._branches, self._watching, self._flushing):
            if task is not None and not task.done():
                task.cancel()
        self._branches.clear()
        self._waits.clear()


def _diverged(place: str, recorded: str, now: str) -> Problem:
    return Problem("nondeterministic", f"nondeterministic at {place}: recorded {recorded}, now {now}")
