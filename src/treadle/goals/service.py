"""Operations on objectives: add, approve, block, unblock, edit. Every change commits with the task that checks its consequences.

An objective goes from NEW to TODO only by a named person (or by the reviewer that a topology names).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from treadle.api.objectives import Blocker, Objective
from treadle.api.wire import Instant
from treadle.goals.decide import (
    Changed,
    Decision,
    ReadRecord,
    approved,
    blocked,
    next_blocker_id,
    readiness_task,
    resolve_blocker,
    resolved_by,
    text_blocker,
    unblocked,
)
from treadle.goals.reads import GoalReads
from treadle.goals.records import LEVELS, TICKET, ObjectiveNotFound, Status
from treadle.kernel.core import STORE_TIMEOUT
from treadle.kernel.operations import difference, operation_entry
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import check_limit, find_id
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.records import PutItems
from treadle.kernel.store.units import Row, Unit, UnitAnswer, Verdict
from treadle.model.errors import IllegalTransition, InvalidInput
from treadle.model.ids import parse_id
from treadle.model.names import check_key, check_name
from treadle.model.states import OBJECTIVE
from treadle.model.values import Json, decode, encode, shown

DOCUMENT_LIMIT = 64 * 1024
"""Maximum size of an objective in bytes: it is read and written often, and copied into every context snapshot."""

_REVIEWER = "reviewer:"
_replace = msgspec.structs.replace


class Objectives(GoalReads):
    """The objectives of one namespace."""

    async def add(
        self,
        title: str,
        *,
        actor: str,
        acceptance_criteria: Sequence[str] = (),
        type: str = TICKET,  # noqa: A002 - the word of the artifact
        importance: int = 2,
        urgency: int = 2,
        blocked_by: Sequence[str] = (),
        metadata: Mapping[str, Json] | None = None,
        prompt: str | None = None,
        key: str | None = None,
    ) -> Objective:
        """Store a NEW objective, which then waits for approval.

        `blocked_by` holds ids of objectives that must be DONE first, or texts that a person resolves. If an objective with the
        same `key` is not DONE, return that one and store nothing.
        """
        objective_id = self._ids.new_id()
        check_actor(actor)
        fields = _checked(
            title=title,
            acceptance_criteria=acceptance_criteria,
            importance=importance,
            urgency=urgency,
            metadata={} if metadata is None else metadata,
            **({} if prompt is None else {"prompt": prompt}),
        )
        _list(blocked_by, "blocked_by")

        async def attempt() -> Objective:
            now = await self._now()
            blockers, waited_for = await self._blockers(blocked_by, now)
            objective = Objective(
                objective_id=objective_id,
                type=check_name(type, "type"),
                blockers=blockers,
                key=None if key is None else check_key(key),
                created_by=actor,
                created_at=now,
                updated_at=now,
                **fields,
            )
            _check_size(objective)
            decision = Decision({}, new=[objective], tasks=[readiness_task(self._namespace, objective, "added", "add")])
            entry = operation_entry(self._core, "objectives.add", objective_id, actor, None, {"title": title})
            touched, items = _waits(objective_id, waited_for)
            answer = await self._commit(decision, (touched, (*items, *entry)))
            if objective.key is not None and (existing_id := answer.existing.get(objective.key)) not in (None, objective_id):
                return await self.get(str(existing_id))
            if answer.verdict is not Verdict.DONE:
                raise Stale
            return objective

        return await self._committer.transact(attempt, f"add the objective {objective_id}")

    async def get(self, objective_id: str) -> Objective:
        """Return the objective, or raise `ObjectiveNotFound`."""
        return (await self._find(objective_id)).objective

    async def list(
        self, *, statuses: Sequence[str] = (), before_id: str | None = None, limit: int = 50
    ) -> builtins.list[Objective]:
        """Return a page of objectives, newest first; the id of the last one is the `before_id` of the next page."""
        check_limit(limit)
        states = tuple(_one_of(status, tuple(Status), "status") for status in _list(statuses, "statuses"))
        before = None if before_id is None else parse_id(before_id, "cursor")
        return [seen.objective for seen in await self._artifacts.list_objectives(states, before, limit)]

    async def board(self, limit: int = 20) -> dict[str, tuple[int, builtins.list[Objective]]]:
        """Return for each status the number of objectives and the newest of them, most important first."""
        check_limit(limit)
        counts = await self._store.records.count(self._namespace, OBJECTIVE.entity)
        board = {}
        for status in Status:
            objectives = await self.list(statuses=[status], limit=limit) if counts.get(status) else []
            objectives.sort(key=lambda objective: (-objective.importance, -objective.urgency))
            board[str(status)] = (counts.get(status, 0), objectives)
        return board

    async def approve(self, objective_id: str, *, actor: str) -> Objective:
        """Approve a NEW objective; `actor` is the approving person, and is recorded. An approved objective is returned
        unchanged."""

        def decide(objective: Objective, now: Instant) -> tuple[Objective, str] | None:
            return None if objective.approved_by is not None else (approved(objective, actor, now), "approve")

        return await self._operate(objective_id, actor, "approve", decide)

    async def block(self, objective_id: str, *, actor: str, reason: str | None = None, on: str | None = None) -> Objective:
        """Block a TODO objective: until a person unblocks it, or until the objective `on` is DONE."""
        if (reason is None) == (on is None):
            raise InvalidInput("Give either a reason, or the objective that blocks it.")
        waited_for: builtins.list[ReadRecord] = []
        if on is not None:
            other = await self._find(on)
            if other.objective.objective_id == parse_id(objective_id, "objective id"):
                raise InvalidInput("An objective cannot wait for itself.")
            await self._check_no_cycle(parse_id(objective_id, "objective id"), other)
            if other.objective.status == Status.DONE:
                raise InvalidInput(f"The objective {on} is already DONE and blocks nothing.")
            waited_for.append(other)

        def decide(objective: Objective, now: Instant) -> tuple[Objective, str] | None:
            blocker = (
                text_blocker(objective, _text(reason, "reason", 2000))
                if reason is not None
                else _objective_blocker(next_blocker_id(objective), waited_for[0])
            )
            return blocked(objective, blocker), "block"

        return await self._operate(objective_id, actor, "block", decide, waited_for)

    async def unblock(self, objective_id: str, *, actor: str) -> Objective:
        """Resolve all blockers of the objective; a BLOCKED one becomes TODO, and its count of failed workorders restarts."""

        def decide(objective: Objective, now: Instant) -> tuple[Objective, str] | None:
            after = resolved_by(objective, actor, now)
            if objective.status == Status.BLOCKED:
                return unblocked(after), "unblock"
            return None if after == objective else (after, "resolve")

        return await self._operate(objective_id, actor, "unblock", decide)

    async def edit(
        self,
        objective_id: str,
        *,
        actor: str,
        title: str | None = None,
        acceptance_criteria: Sequence[str] | None = None,
        importance: int | None = None,
        urgency: int | None = None,
        metadata: Mapping[str, Json] | None = None,
        prompt: str | None = None,
    ) -> Objective:
        """Change the given fields of an objective that is not DONE. A workorder in progress keeps its snapshot.

        An objective that cannot be read is made anew from its title and the other given fields.
        """
        edits = {
            "title": title,
            "acceptance_criteria": acceptance_criteria,
            "importance": importance,
            "urgency": urgency,
            "metadata": metadata,
            "prompt": prompt,
        }
        changes = _checked(**{name: value for name, value in edits.items() if value is not None})

        def decide(objective: Objective, now: Instant) -> tuple[Objective, str] | None:
            after = _replace(objective, **changes)
            _check_size(after)
            return None if after == objective else (after, "edit")

        return await self._operate(objective_id, actor, "edit", decide, made_anew=title is not None)

    # internal

    async def _operate(
        self,
        objective_id: str,
        actor: str,
        transition: str,
        decide: Callable[[Objective, Instant], tuple[Objective, str] | None],
        waited_for: Sequence[ReadRecord] = (),
        made_anew: bool = False,
    ) -> Objective:
        """Apply an operator's transition to the objective, with the readiness task that follows, guarded by the version that was
        read."""
        check_actor(actor)

        async def attempt() -> Objective:
            seen = await self._find(objective_id, repair=made_anew)
            now = await self._now()
            decided = decide(seen.objective, now)
            if decided is None:
                return seen.objective
            after, actual_transition = _replace(decided[0], updated_at=now), decided[1]
            if OBJECTIVE.target(seen.record.state, actual_transition) is None:
                raise IllegalTransition(
                    "objective", objective_id, seen.record.state, transition, OBJECTIVE.possible(seen.record.state)
                )
            change = difference(seen.objective.as_json(), decided[0].as_json()) if actual_transition == "edit" else None
            changed = [Changed(seen.record, after, actual_transition, actor, change)]
            tasks = (
                [readiness_task(self._namespace, after, f"version/{seen.record.version}", actual_transition)]
                if actual_transition != "edit" or after.status == Status.NEW
                else []
            )
            others = [await self._find(other.objective.objective_id) for other in waited_for]
            if any(other.objective.status == Status.DONE for other in others):
                raise InvalidInput(f"The objective {others[0].objective.objective_id} is already DONE and blocks nothing.")
            answer = await self._commit(Decision({}, changed=changed, tasks=tasks), _waits(after.objective_id, others))
            if answer.verdict is not Verdict.DONE:
                raise Stale
            return after

        return await self._committer.transact(attempt, f"{transition} the objective {objective_id}")

    async def _commit(self, decision: Decision, waits: tuple[Decision, tuple[Row, ...]]) -> UnitAnswer:
        touched, items = waits
        rows = (*self._artifacts.rows(decision), *self._artifacts.rows(touched), *items)
        failpoint("operate.before_commit")
        answer = await self._committer.submit(Unit(tasks=tuple(decision.tasks), rows=rows), STORE_TIMEOUT)
        failpoint("operate.after_commit")
        return answer

    async def _find(self, objective_id: str, *, repair: bool = False) -> ReadRecord:
        find = self._artifacts.find_any_objective if repair else self._artifacts.find_objective
        seen = await find(await find_id(self._store, self._namespace, OBJECTIVE.entity, objective_id))
        if seen is None:
            raise ObjectiveNotFound(objective_id)
        return seen

    async def _now(self) -> Instant:
        return Instant.of(await self._store.now())

    async def _blockers(self, blocked_by: Sequence[str], now: Instant) -> tuple[builtins.list[Blocker], builtins.list[ReadRecord]]:
        """Return the blockers of a new objective, and the blocking objectives that are not DONE."""
        blockers: builtins.list[Blocker] = []
        waited_for: builtins.list[ReadRecord] = []
        for number, text in enumerate(blocked_by, 1):
            try:
                other = await self._find(text)
            except InvalidInput:
                blockers.append(Blocker(blocker_id=f"b{number}", kind="TEXT", text=_text(text, "blocker", 2000)))
                continue
            blocker = _objective_blocker(f"b{number}", other)
            if other.objective.status == Status.DONE:
                blocker = resolve_blocker(blocker, now, "readiness")
            else:
                waited_for.append(other)
            blockers.append(blocker)
        return blockers, waited_for

    async def _check_no_cycle(self, objective_id: str, other: ReadRecord) -> None:
        """Reject a cycle of blockers, which would never resolve."""
        frontier, met = [other.objective], {other.objective.objective_id}
        while frontier:
            objective = frontier.pop()
            for blocker in objective.open_blockers:
                if blocker.objective_id == objective_id:
                    raise InvalidInput(f"That would be a cycle: {objective.objective_id} already waits for {objective_id}.")
                if blocker.objective_id is not None and blocker.objective_id not in met:
                    met.add(blocker.objective_id)
                    seen = await self._artifacts.find_objective(blocker.objective_id)
                    frontier += [] if seen is None else [seen.objective]


def check_actor(actor: str) -> str:
    """Check the name of the acting person; the reviewer's name is reserved."""
    check_key(actor, "actor")
    if actor.startswith(_REVIEWER) or not actor.strip():
        raise InvalidInput(f"{actor!r} is not the name of a person, such as ada or cli:ada.")
    return actor


def _waits(objective_id: str, waited_for: Sequence[ReadRecord]) -> tuple[Decision, tuple[Row, ...]]:
    """Record the dependency with the blocking objectives and increment their versions, so that none becomes DONE concurrently."""
    touched = [Changed(seen.record, seen.objective) for seen in waited_for]
    items = tuple(PutItems(seen.record.id, ((objective_id, "{}"),)) for seen in waited_for)
    return Decision({}, changed=touched), items


def _objective_blocker(blocker_id: str, other: ReadRecord) -> Blocker:
    return Blocker(
        blocker_id=blocker_id,
        kind="OBJECTIVE",
        objective_id=other.objective.objective_id,
        text=other.objective.title,
    )


def _checked(**fields: Any) -> dict[str, Any]:
    """Return checked fields of an objective; raises `InvalidInput`."""
    return {name: _CHECKS[name](value) for name, value in fields.items()}


def _text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > limit:
        raise InvalidInput(f"The {what} must be text of 1 to {limit} characters, not {shown(value)}.")
    return value


def _list(value: object, what: str) -> builtins.list[Any]:
    """Return the list; text is rejected, because it would be a list of characters."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise InvalidInput(f"{what} is a list of texts, not {type(value).__name__}.")
    return [*value]


def _criteria(value: object) -> builtins.list[str]:
    return [_text(criterion, "acceptance criterion", 4000) for criterion in _list(value, "acceptance_criteria")]


def _level(value: object, what: str) -> int:
    if type(value) is not int or value not in LEVELS:
        raise InvalidInput(f"{what} is a whole number from 0 to 4 (4 is the highest), not {value!r}.")
    return value


def _one_of(value: object, choices: tuple[str, ...], what: str) -> str:
    if value not in choices:
        raise InvalidInput(f"{what} must be one of {', '.join(choices)}, not {value!r}.")
    return str(value)


def _metadata(value: object) -> dict[str, Json]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"metadata is a dict (a JSON object), not {type(value).__name__}.")
    metadata: dict[str, Json] = decode(encode(dict(value), "metadata", DOCUMENT_LIMIT))
    return metadata


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "title": lambda value: _text(value, "title", 500),
    "acceptance_criteria": _criteria,
    "importance": lambda value: _level(value, "importance"),
    "urgency": lambda value: _level(value, "urgency"),
    "metadata": _metadata,
    "prompt": lambda value: _text(value, "prompt", 32_000),
}


def _check_size(objective: Objective) -> None:
    encode(objective.as_json(), "objective", DOCUMENT_LIMIT)
