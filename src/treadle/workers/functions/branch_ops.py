"""What branches of a function ask of its driver: their places, what is recorded there, waiting, and branches of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.kernel.functions.rows import EFFECT, NOW, START, STEP, Recorded, fold_text, make_step, step_id
from treadle.model.errors import MisusedContext, RepeatedKey, TooManySteps
from treadle.model.outcomes import Problem
from treadle.model.states import StepState
from treadle.model.values import BlobRef, encode
from treadle.workers.functions.branches import Branch, Pending
from treadle.workers.functions.commits import Committing
from treadle.workers.functions.inbox import Letter, error_of
from treadle.workers.functions.waits import Group, Wait


class Branching(Committing):
    """The part of a driver that operations of `ctx` use."""

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

    def reach_gather(self, branch: Branch, size: int) -> str:
        """The place of a gather of so many, which has no row of its own."""
        place = f"{branch.scope}{branch.position}"
        branch.position += 1
        if self.replaying and (recorded := self.history.look(place)) is not None:
            self.diverge(place, f"{recorded.kind} {recorded.name}", "a gather")
        if self.replaying and self.history.width(place) > size:
            self.diverge(place, f"a gather of {self.history.width(place)}", f"a gather of {size}")
        return place

    def diverge(self, place: str, recorded: str, now: str) -> None:
        """The code does not do what it did: nothing of this replay counts."""
        self.problem = self.problem or diverged(place, recorded, now)
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
            _, blobs = fold_text(text, value, self.root_id, self.runtime.value_store)
            if blobs:
                later.rows += blobs
                recorded.value = BlobRef(blobs[0].digest, len(text), isinstance(value, list))
        later.steps[recorded.id] = make_step(self.run_id, recorded, self.runtime.value_store)
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
            if letter.id in self._known_mail:
                continue  # two looked at once
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
            later.steps[letter.id] = make_step(self.run_id, marker, self.runtime.value_store)
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
        if self.replaying and self.history.went_past(branch.scope, branch.position):
            self.diverge(f"{branch.scope}{branch.position}", "something else", "the end of the branch")
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


def diverged(place: str, recorded: str, now: str) -> Problem:
    """What is said of code that does not do what is recorded."""
    return Problem("nondeterministic", f"nondeterministic at {place}: recorded {recorded}, now {now}")
