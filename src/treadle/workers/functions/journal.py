"""The journal of a run: the steps that it has recorded, by place, the places of its next steps, and the exceptions of failed steps.

A replay takes recorded steps from the journal as the function reaches their places again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from treadle.kernel.effects.decide import UnrepeatedEffect
from treadle.kernel.functions.steps import (
    ASK,
    CALL,
    EFFECT,
    FIRST,
    HIDDEN,
    NOW,
    PUBLISH,
    PUBLISHED,
    RESULT,
    START,
    VOID,
    Recorded,
    StepIds,
    folded,
    is_after,
    place_key,
    published_id,
    question_place,
    read_step,
    step_id,
)
from treadle.model.errors import (
    ApprovalDenied,
    ApprovalExpired,
    Canceled,
    InvalidInput,
    PayloadTooLarge,
    RunCanceled,
    RunFailed,
    SignalTimeout,
    StepFailed,
    TaskCanceled,
    TaskFailed,
    TaskIgnored,
    TreadleError,
)
from treadle.model.states import StepState, TaskState
from treadle.model.values import BlobRef
from treadle.workers.exceptions import revived
from treadle.workers.functions.execution import FunctionBranch, FunctionExecution, PendingUnit

UNKNOWN_OUTCOME = "unknown"
"""The state in the error of an effect that failed because its outcome is unknown."""


def error_of(recorded: Recorded) -> BaseException | None:
    """Return the exception for a step that failed or timed out; the same in every replay."""
    if recorded.state == StepState.CANCELED:
        return Canceled((recorded.error or {}).get("message", ""))
    if recorded.timed_out:
        return blamed(SignalTimeout(recorded.name), recorded.id)
    if recorded.state != StepState.FAILED:
        return None
    stored = recorded.error or {}
    code, message, state = stored.get("code", "failed"), stored.get("message", ""), stored.get("state")
    error: TreadleError
    match recorded.kind:
        case kind if kind in (CALL, ASK):
            error = _task_error(recorded, kind, code, message, state)
        case kind if kind == RESULT and state == TaskState.CANCELED:
            error = RunCanceled(f"Run {recorded.task_id} was canceled: {message}")
        case kind if kind == RESULT:
            error = revived(RunFailed(recorded.task_id or "", None, message), stored)
        case kind if kind == EFFECT and state == UNKNOWN_OUTCOME:
            error = UnrepeatedEffect(message, code)
        case kind if kind == PUBLISH:
            error = PayloadTooLarge(message) if code == PayloadTooLarge.code else InvalidInput(message)
        case _:
            error = revived(StepFailed(recorded.name, code, message, stored.get("type")), stored)
    return blamed(error, recorded.id)


def failure_of(recorded: Recorded) -> BaseException:
    """Return the exception for a step that has failed."""
    error = error_of(recorded)
    assert error is not None
    return error


def _task_error(recorded: Recorded, kind: str, code: str, message: str, state: str | None) -> TreadleError:
    if kind == ASK and code == ApprovalDenied.code:
        return ApprovalDenied(message)
    if kind == ASK and code == ApprovalExpired.code:
        return ApprovalExpired(message)
    if state == TaskState.CANCELED:
        return TaskCanceled(f"Task {recorded.task_id} was canceled: {message}")
    if state == TaskState.IGNORED:
        return TaskIgnored(f"Task {recorded.task_id} was ignored: {message}")
    return revived(TaskFailed(recorded.task_id or "", code, message), recorded.error or {})


def blamed(error: BaseException, *step_ids: str) -> BaseException:
    """Return the error after attaching the steps that caused it; an operator's retry repeats these."""
    error.__dict__["step_ids"] = tuple(dict.fromkeys((*blamed_steps(error), *step_ids)))
    return error


def blamed_steps(error: BaseException | None) -> tuple[str, ...]:
    """Return the steps that caused an error: directly, as one of a group or among its arguments, or as the error it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if step_ids := error.__dict__.get("step_ids"):
            return tuple(step_ids)
        if collected := [step_id for part in _collected(error) if id(part) not in seen for step_id in blamed_steps(part)]:
            return tuple(dict.fromkeys(collected))
        error = error.__cause__ or error.__context__
    return ()


def _collected(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that the code has collected in another one: a group's, and those in arguments and lists of them."""
    for part in (error.exceptions, *error.args) if isinstance(error, BaseExceptionGroup) else error.args:
        yield from (item for item in (part if isinstance(part, list | tuple) else [part]) if isinstance(item, BaseException))


_PAGE = 1000


class History:
    """Recorded steps that the function has not reached in this replay; empty for a new run."""

    __slots__ = ("_furthest", "_redone_names", "begun", "count", "left", "redone", "replaced", "steps", "widest")

    def __init__(self, recorded: Iterable[Recorded] = ()) -> None:
        self.left: dict[str, Recorded] = {}
        """The steps that the replay has not reached, by place."""
        self.redone: dict[str, int] = {}
        """How often an operator had a step repeated, by place."""
        self.replaced: dict[str, Recorded] = {}
        """The last attempt at an effect before an operator had it repeated, by place."""
        self.begun: dict[str, int] = {}
        """Attempts begun at effects, by the step of the first attempt."""
        self._furthest: dict[str, int] = {}
        self.widest: dict[str, int] = {}
        """The least number of branches that a gather had, by place."""
        self._redone_names: dict[str, str] = {}
        self.count = 0
        """Number of rows."""
        self.steps = 0
        """Number of rows that are steps."""
        for row in recorded:
            self.count += 1
            if row.of is not None and row.attempt:
                self.begun[row.of] = max(self.begun.get(row.of, 0), row.attempt)
            if row.kind == VOID:
                self.redone[row.place] = max(self.redone.get(row.place, 0), row.redo + 1)
                self._redone_names[row.place] = row.name
                if row.attempt and (row.place not in self.replaced or row.attempt > self.replaced[row.place].attempt):
                    self.replaced[row.place] = row
            elif row.kind not in HIDDEN:
                self.steps += 1
                self.left[row.place] = row
                self._measure(row.place)

    def _measure(self, place: str) -> None:
        parts = place.split(".")
        for index in range(0, len(parts), 2):
            scope = "".join(f"{part}." for part in parts[:index])
            self._furthest[scope] = max(self._furthest.get(scope, -1), int(parts[index]))
            if index + 1 < len(parts):
                gather = f"{scope}{parts[index]}"
                self.widest[gather] = max(self.widest.get(gather, 0), int(parts[index + 1]) + 1)

    def __bool__(self) -> bool:
        return bool(self.left) or bool(self.redone)

    def take_questions(self, place: str, attempts: int) -> None:
        """Count the decisions on unknown outcomes of the effect at the place as reached, up to that attempt."""
        for attempt in range(1, attempts + 1):
            self.left.pop(question_place(place, attempt), None)

    def went_past(self, scope: str, position: int) -> bool:
        """Return whether the branch has recorded a step at the position or later."""
        return self._furthest.get(scope, -1) >= position

    def named(self, place: str) -> dict[str, int]:
        """Return the indexes of a host's recorded operations by name."""
        names = {**self._redone_names, **{row.place: row.name for row in self.left.values() if row.place.startswith(place)}}
        paths = ((at.removeprefix(f"{place}.").split("."), name) for at, name in names.items() if at.startswith(f"{place}."))
        return {name: int(parts[0]) for parts, name in paths if len(parts) == 2 and parts[1] == "0"}

    def unreached(self) -> Recorded | None:
        """Return the first step that the replay has not reached."""
        return min(self.left.values(), key=lambda row: row.ordinal, default=None)


class Journal:
    """Assigns places to the steps of a run, and matches them with its history."""

    def __init__(self, execution: FunctionExecution) -> None:
        self._execution = execution
        self.history = History()
        self.ids = StepIds(execution.run_id)
        self.replaying = False
        self.count = 0
        """Steps that the run has."""
        self.uncounted = 0
        """Steps that its row does not count yet."""
        self.silent = False
        """Whether log lines were written by an earlier execution of the same code."""
        self.published: dict[str, Any] = {}
        """The published values, by name."""
        self._keys: set[str] = set()
        self._unknown: dict[tuple[str, str, str | None], dict[str, tuple[str, int]]] = {}
        """Place and number of the last attempt at unknown effects, by action, request hash and key, then by their first step."""

    async def load(self, counted: int) -> None:
        """Read the recorded steps and their values. The run's row counts that many steps: a lost process may have added more."""
        runtime = self._execution.runtime
        recorded: list[Recorded] = []
        after: str | None = None
        while page := await runtime.store.runs.list_steps(self._execution.run_id, after, _PAGE):
            recorded += [read_step(step, runtime.value_store) for step in page]
            after = page[-1].id
        digests = [row.value.digest for row in recorded if isinstance(row.value, BlobRef)]
        if digests:
            values = await runtime.value_store.load(digests)
            for row in recorded:
                if isinstance(row.value, BlobRef):
                    row.value = values[row.value.digest]
        self.published = next((row.value for row in recorded if row.kind == PUBLISHED), {})
        self.history = History(recorded)
        self.count = self.history.count
        self.uncounted = self.history.steps - counted
        self.replaying = bool(self.history)
        self.silent = self.history.steps > 0

    def next_step(self, branch: FunctionBranch, kind: str, name: str) -> tuple[str, Recorded | None]:
        """Return the place of the branch's next step, and the step that is recorded there; a mismatch ends the replay."""
        position = branch.position
        branch.position = position + 1
        place = f"{branch.scope}{position}"
        if self.replaying:
            recorded = self.history.left.pop(place, None)
            if recorded is not None:
                if recorded.kind != kind or recorded.name != name:
                    self._execution.diverge(place, f"{recorded.kind} {recorded.name}", f"{kind} {name}")
                return place, recorded
            if kind not in (START, NOW) and self.history.went_past(branch.scope, position):
                self._execution.diverge(place, "something else", f"{kind} {name}")
            self.replaying = bool(self.history)
            self.decided()
        self._count()
        return place, None

    def start(self, kind: str, place: str, name: str, recorded: Recorded | None, about: str) -> int:
        """Note that the code of a step executes from now; return the time."""
        execution = self._execution
        self.decided()
        began_at = execution.now()
        if recorded is None:
            redo, ordinal, attempt = self.redo(place), self.count, 1
        else:
            redo, ordinal, attempt = recorded.redo, recorded.ordinal, recorded.attempt or recorded.failures + 1
        execution.executing[place] = (began_at, kind, name, redo, ordinal, attempt, about)
        return began_at

    def decided(self) -> None:
        """Note that something new happens: after the last recorded step, it does so for the first time."""
        if self.silent:
            self.silent = bool(self.history.left)

    def _count(self) -> None:
        self._check_room()
        self.count += 1
        self.uncounted += 1

    def _check_room(self) -> None:
        max_steps = self._execution.function.max_steps
        if self.count >= max_steps:
            raise TreadleError(
                f"This run has reached its function's limit of {max_steps} steps (each one makes replay longer). Continue with "
                "`ctx.continue_as_new(...)`, or raise max_steps.",
                code="too_many_steps",
            )

    def next_gather(self, branch: FunctionBranch, size: int, now: str = "", kind: str = "") -> str:
        """Return the place of a gather of that size, which has no row of its own; or of that `kind`, which may have one."""
        place = f"{branch.scope}{branch.position}"
        branch.position += 1
        if self.replaying and (recorded := self.history.left.get(place)) is not None and recorded.kind != kind:
            self._execution.diverge(place, f"{recorded.kind} {recorded.name}", now or "a gather")
        if self.replaying and self.history.widest.get(place, 0) > size:
            self._execution.diverge(place, f"a gather of {self.history.widest.get(place, 0)}", now or f"a gather of {size}")
        return place

    def next_first(self, branch: FunctionBranch, names: Sequence[str]) -> tuple[Recorded, bool]:
        """Return the step of a `first` with operations of these names, and whether the record has decided it."""
        place, name = self.next_gather(branch, len(names), f"a first of {len(names)}", FIRST), branch.number("first")
        recorded = self.history.left.pop(place, None)
        if recorded is not None:
            index, won = recorded.value["index"], recorded.value["name"]
            if recorded.name != name or index >= len(names) or names[index] != won:
                self._execution.diverge(place, f"{recorded.kind} {recorded.name} won by {won or index}", f"{FIRST} {name}")
            return recorded, True
        self._check_room()
        return self.new_step(place, FIRST, name, StepState.COMPLETED), False

    def count_first(self, recorded: Recorded) -> None:
        """Count the step of a `first`, which has a row from its decision on."""
        self.count += 1
        self.uncounted += 1
        recorded.ordinal = self.count

    def skip(self, branch: FunctionBranch, kind: str, name: str, key: str | None) -> Recorded | None:
        """Pass an operation, the only one of its branch, that does not happen; return its step if it has begun."""
        name = self.step_name(branch, name, key)
        place, branch.position = f"{branch.scope}0", 1
        recorded = self.history.left.pop(place, None)
        if recorded is not None and (recorded.kind != kind or recorded.name != name):
            self._execution.diverge(place, f"{recorded.kind} {recorded.name}", f"{kind} {name}")
        return recorded

    def check_end(self, branch: FunctionBranch) -> None:
        """End the replay if the branch ends before the steps that it has recorded."""
        if self.replaying and self.history.went_past(branch.scope, branch.position):
            self._execution.diverge(f"{branch.scope}{branch.position}", "something else", "the end of the branch")

    def step_name(self, branch: FunctionBranch, name: str, key: str | None) -> str:
        """Return the name of the branch's next step: the name with its number, or the key, which a run may use once (D27)."""
        if key is None:
            return branch.number(name)
        if key in self._keys:
            raise InvalidInput(
                f"The key {key!r} was given to an earlier step of this run; each key is used once.", code="repeated_key"
            )
        self._keys.add(key)
        return key

    def note_unknown(self, what: tuple[str, str, str | None], first: str, place: str, attempt: int) -> None:
        """Note that the effect ended with an unknown outcome: the next identical one repeats it, and its key may be used again."""
        self._unknown.setdefault(what, {})[first] = (place, attempt)
        if what[2] is not None:
            self._keys.discard(what[2])

    def find_unknown(self, what: tuple[str, str, str | None], place: str) -> tuple[str, int] | None:
        """Return the first step and the last attempt of the unknown effect that one at the place repeats, if there is one."""
        matches = [
            (place_key(last), first, attempt)
            for first, (last, attempt) in self._unknown.get(what, {}).items()
            if is_after(place, last) and self.history.begun.get(first, 0) <= attempt
        ]
        return min(matches)[1:] if matches else None

    def new_step(self, place: str, kind: str, name: str, state: str) -> Recorded:
        """Return a new step at a place; nothing is written yet."""
        redo = self.redo(place)
        return Recorded(
            id=step_id(self._execution.run_id, place, redo) if redo else self.ids.at(place),
            place=place,
            redo=redo,
            kind=kind,
            name=name,
            state=state,
            ordinal=self.count,
        )

    def redo(self, place: str) -> int:
        """Return how often an operator had the step at the place repeated."""
        return self.history.redone.get(place, 0)

    def write(self, recorded: Recorded, unit: PendingUnit, *, checked: bool = False) -> None:
        """Add the step's row to a unit that will be committed later; a `checked` value was read from the store."""
        self.decided()
        self.add(recorded, unit, checked=checked)

    def add(self, recorded: Recorded, unit: PendingUnit, *, checked: bool = False) -> None:
        """Add a row, which need not be a step with a place, to a unit."""
        execution = self._execution
        step, blobs = folded(execution.run_id, recorded, execution.root_id, execution.runtime.value_store, checked=checked)
        unit.rows += blobs
        unit.steps[recorded.id] = step

    def published_row(self, run_id: str) -> Recorded:
        """Return the row of the published values for that run."""
        state, value = StepState.COMPLETED, dict(self.published)
        return Recorded(id=published_id(run_id), kind=PUBLISHED, name=PUBLISHED, state=state, value=value)
