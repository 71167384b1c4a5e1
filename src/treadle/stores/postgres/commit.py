"""The one write: units, each with its guard, all in one transaction, with as few round trips as their kinds allow.

The hot paths (every unit ends a claimed task and does nothing else; all units are new tasks of no step; all are checkpoints)
are a single statement. That is whole for new tasks too: which of them are refused is decided in it. Otherwise the guarded rows are
locked in the order of their ids, the guards are evaluated here, one after the other, and each kind of settlement is one
statement for all units. The hot statements leave tasks with a limit key, and lanes that were said something about, to that
way: there, the last thing done is to admit the next tasks of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, assert_never

import asyncpg
import msgspec

from treadle.kernel.store.units import CLAIM_LOST, DONE, Amend, Answer, Finish, Keep, Park, Revive, Seen, Unit, Verdict
from treadle.model.names import Lane
from treadle.model.states import Hold
from treadle.model.tasks import Claim, NewTask
from treadle.stores.checkpoints import is_checkpoint
from treadle.stores.dedupe import has_keys
from treadle.stores.postgres import settlements
from treadle.stores.postgres.checkpoints import put_checkpoints
from treadle.stores.postgres.connect import PACKAGE, Connection, plain
from treadle.stores.postgres.dedupe import settle_keys, take_keys
from treadle.stores.postgres.inserts import Inserted, claim_born, enter, insert_tasks
from treadle.stores.postgres.limits import Key, admit
from treadle.stores.postgres.mail import told_runs
from treadle.stores.postgres.records import RecordsSeen, see_records, write_records
from treadle.stores.postgres.rows import RunsSeen, has_rows, insert_runs, see_runs, take_back_runs, write_rows
from treadle.stores.postgres.settlements import End, Parking
from treadle.stores.preclaimed import has_births, list_births
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "commit.sql")
_OF_FINISHED = (Revive, Amend)
"""Settlements whose guard is on a finished task."""


class _Row(NamedTuple):
    """What is stored of a guarded task, locked."""

    id: str
    version: int
    claim_version: int
    owner_id: str | None
    state: str
    lane_id: int
    hold: int = 0
    namespace: str = ""
    limit_key: str | None = None


class _Keyed(NamedTuple):
    """Limit keys that something was done about, and the settled tasks that have one: they are not ready by that alone."""

    keys: set[Key]
    task_ids: set[str]


class _Allowed(NamedTuple):
    """A unit that may happen, and the row that its guard matched."""

    unit: Unit
    row: _Row | None


async def commit(connection: Connection, lane_ids: Mapping[Lane, int], units: Sequence[Unit]) -> list[Answer]:
    """Do the units; answers in their order. All lanes of new tasks are in `lane_ids`."""
    if not has_births(units):
        return await _commit_keys(connection, lane_ids, units)
    async with connection.transaction():
        answers = await _commit_keys(connection, lane_ids, units)
        await claim_born(connection, list_births(units, answers))
    return answers


async def _commit_keys(connection: Connection, lane_ids: Mapping[Lane, int], units: Sequence[Unit]) -> list[Answer]:
    if not has_keys(units):
        return await _commit(connection, lane_ids, units)
    async with connection.transaction():
        deduped = await take_keys(connection, units)
        answers = await _commit(connection, lane_ids, deduped.units)
        return await settle_keys(connection, deduped, units, answers)


async def _commit(connection: Connection, lane_ids: Mapping[Lane, int], units: Sequence[Unit]) -> list[Answer]:
    if (ends := _plain_ends(units)) is not None:
        if await settlements.finish(connection, ends, limited=False) == len(ends):
            return [DONE] * len(ends)
    elif any(map(has_rows, units)):
        if all(map(is_checkpoint, units)):
            return await put_checkpoints(connection, units)
        async with connection.transaction():
            return await _commit_rows(connection, lane_ids, units)
    elif tasks := _plain_tasks(units):
        inserted = await insert_tasks(connection, lane_ids, tasks)
        if not inserted.shut:
            return [_answer(unit, None, inserted, lane_ids) for unit in units]
    async with connection.transaction():
        allowed, answers = await _judge(connection, units)
        keyed = await _settle(connection, allowed.values())
        inserted = await enter(connection, lane_ids, [one.unit for one in allowed.values()])
        ready = await _admit(connection, keyed.keys, inserted)
    for position, one in allowed.items():
        answers[position] = _answer(one.unit, one.row, inserted, lane_ids, keyed.task_ids)
    return _with_lanes(answers, ready)


async def _commit_rows(connection: Connection, lane_ids: Mapping[Lane, int], units: Sequence[Unit]) -> list[Answer]:
    """Do units of which some advance runs: each is taken apart into the settlements of its tasks and its rows."""
    seen = await see_runs(connection, units)
    parts = [[unit, *(Unit(claim, finish) for claim, finish in unit.also)] for unit in units]
    rows = await _lock(connection, [part for some in parts for part in some], told_runs(units))
    records = await see_records(connection, units)
    while True:
        decided = _decide(units, parts, seen.fresh(), dict(rows), records.fresh())
        if not await insert_runs(connection, seen, decided.happening):
            continue
        if not (refused := await write_records(connection, decided.happening)):
            break
        seen.refused |= refused
    happening, answers = decided.happening, decided.answers
    await take_back_runs(connection, seen, happening)
    await _recognise(connection, parts, answers, happening)
    keyed = await _settle(connection, decided.allowed)
    inserted = await enter(connection, lane_ids, list(happening.values()))
    lanes = await write_rows(connection, happening, keyed.keys)
    ready = await _admit(connection, keyed.keys, inserted)
    for position, unit in happening.items():
        answer = _answer(unit, decided.rows.get(position), inserted, lane_ids, keyed.task_ids)
        if position in lanes:
            answer = msgspec.structs.replace(answer, lane_ids=tuple(sorted(lanes[position].union(answer.lane_ids))))
        answers[position] = answer
    return _with_lanes(answers, ready)


class _Decided(NamedTuple):
    """Which units happen, what of their tasks is settled, the rows that their guards matched, and the answers of the others."""

    happening: dict[int, Unit]
    allowed: list[_Allowed]
    rows: dict[int, _Row]
    answers: list[Answer]


def _decide(
    units: Sequence[Unit],
    parts: Sequence[Sequence[Unit]],
    seen: RunsSeen,
    rows: dict[tuple[str, bool], _Row],
    records: RecordsSeen,
) -> _Decided:
    """Judge the units, one after the other, each as if those before it that may happen had happened."""
    decided = _Decided({}, [], {}, [CLAIM_LOST] * len(units))
    for position, unit in enumerate(units):
        refusal = seen.refusal(position, unit)
        lost = tuple(part.guard.task_id for part in parts[position] if part.guard and not _holds(part, rows))
        if refusal is None and not lost:
            refusal = DONE if seen.made_before(unit) else records.refusal(unit)
        if refusal is not None or lost:
            decided.answers[position] = refusal or Answer(Verdict.CLAIM_LOST, lost=lost)
            continue
        decided.happening[position] = unit
        seen.advance(unit)
        records.advance(unit)
        if unit.guard is not None:
            decided.rows[position] = rows[_key(unit)]
        for part in parts[position]:
            row = rows.pop(_key(part), None) if part.guard and part.settlement else None
            decided.allowed.append(_Allowed(part, row))
    return decided


async def _recognise(
    connection: Connection, parts: Sequence[Sequence[Unit]], answers: list[Answer], happening: Mapping[int, Unit]
) -> None:
    """Answer `done` to refused units all of whose claims were settled in just this way before."""
    asked = [
        (position, part)
        for position, some in enumerate(parts)
        if position not in happening and answers[position].verdict is not Verdict.DONE
        for part in some
        if part.guard is not None
    ]
    settled = await _list_settled(connection, [part for _, part in asked])
    for position in {position for position, _ in asked}:
        if all(index in settled for index, (owner, _) in enumerate(asked) if owner == position):
            answers[position] = DONE


def _key(unit: Unit) -> tuple[str, bool]:
    return (unit.guard.task_id if unit.guard else "", isinstance(unit.settlement, _OF_FINISHED))


def _holds(unit: Unit, rows: Mapping[tuple[str, bool], _Row]) -> bool:
    row = rows.get(_key(unit))
    return row is not None and unit.guard is not None and _matches(unit.guard, row)


async def make_way(connection: Connection, units: Sequence[Unit], error: asyncpg.PostgresError) -> None:
    """Remove what made a commit of the units fail, where it has no right to be there."""
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "finished_pkey":
        await settlements.bury(connection, [unit.guard.task_id for unit in units if unit.guard is not None])


# --- the hot path ---


def _plain_ends(units: Sequence[Unit]) -> list[End] | None:
    """The ends, if each unit ends a claimed task, each another one, and nothing else happens."""
    ends = []
    for unit in units:
        guard, finish = unit.guard, unit.settlement
        if unit.tasks or type(guard) is not Claim or type(finish) is not Finish or has_rows(unit):
            return None
        ends.append(End(guard.task_id, guard.version, guard.owner_id, finish.actor or guard.owner_id, finish))
    return ends if len({end.task_id for end in ends}) == len(ends) else None


def _plain_tasks(units: Sequence[Unit]) -> list[NewTask]:
    """The new tasks, if that is all that there is, and none has a step or a limit key."""
    tasks: list[NewTask] = []
    for unit in units:
        if unit.guard is not None or any(task.step_id or task.limit_key for task in unit.tasks):
            return []
        tasks += unit.tasks
    return tasks


# --- guards ---


async def _judge(connection: Connection, units: Sequence[Unit]) -> tuple[dict[int, _Allowed], list[Answer]]:
    """The units that may happen, by position, and the answers of those that may not."""
    rows = await _lock(connection, units)
    allowed: dict[int, _Allowed] = {}
    for position, unit in enumerate(units):
        if unit.guard is None:
            allowed[position] = _Allowed(unit, None)
            continue
        key = (unit.guard.task_id, isinstance(unit.settlement, _OF_FINISHED))
        row = rows.get(key)
        if row is not None and _matches(unit.guard, row):
            allowed[position] = _Allowed(unit, row)
            if unit.settlement is not None:
                del rows[key]
    refused = [position for position in range(len(units)) if position not in allowed]
    answers = [CLAIM_LOST] * len(units)
    for index in await _list_settled(connection, [units[position] for position in refused]):
        answers[refused[index]] = DONE
    return allowed, answers


async def _lock(connection: Connection, units: Sequence[Unit], told: Set[str] = frozenset()) -> dict[tuple[str, bool], _Row]:
    """The guarded tasks by id and whether they are finished; nobody else changes them until the transaction ends.

    The own tasks of runs that are `told` something, which may wake them, are locked with them.
    """
    wanted = {(unit.guard.task_id, isinstance(unit.settlement, _OF_FINISHED)) for unit in units if unit.guard is not None}
    rows: dict[tuple[str, bool], _Row] = {}
    for finished, statement in ((False, "lock_tasks"), (True, "lock_finished")):
        task_ids = sorted(task_id for task_id, ended in wanted if ended is finished)
        if told and not finished:
            found = await connection.fetch(_SQL["lock_tasks_and_told"], task_ids, sorted(told))
        else:
            found = await connection.fetch(_SQL[statement], plain(task_ids)) if task_ids else []
        for row in found:
            rows[row[0], finished] = _Row(*row)
    return rows


def _matches(guard: Claim | Seen, row: _Row) -> bool:
    match guard:
        case Claim():
            return row.claim_version == guard.version and row.owner_id == guard.owner_id
        case Seen():
            return row.claim_version == guard.claim_version and row.version == guard.version
        case _:
            assert_never(guard)


async def _list_settled(connection: Connection, units: Sequence[Unit]) -> set[int]:
    """Which of the units have been committed before, by position from 0."""
    asked = [
        (position, unit.guard, unit.settlement.actor or unit.guard.owner_id, unit.settlement.move)
        for position, unit in enumerate(units)
        if isinstance(unit.guard, Claim) and isinstance(unit.settlement, Finish | Park)
    ]
    if not asked:
        return set()
    rows = await connection.fetch(
        _SQL["list_settled"],
        [claim.task_id for _, claim, _, _ in asked],
        [claim.version for _, claim, _, _ in asked],
        [claim.owner_id for _, claim, _, _ in asked],
        [actor for _, _, actor, _ in asked],
        [move for _, _, _, move in asked],
    )
    return {asked[row[0] - 1][0] for row in rows}


# --- what the allowed units do ---


async def _settle(connection: Connection, allowed: Iterable[_Allowed]) -> _Keyed:
    """Write what becomes of the guarded tasks: a statement for each kind of settlement that there is."""
    keyed = _Keyed(set(), set())
    ends: list[End] = []
    parkings: list[Parking] = []
    keeps: dict[str, Keep] = {}
    revivals: dict[str, Revive] = {}
    amends: dict[str, Amend] = {}
    for unit, row in allowed:
        if row is None:
            continue
        owner_id = unit.guard.owner_id if isinstance(unit.guard, Claim) else None
        if row.limit_key is not None and not isinstance(unit.settlement, Keep | None):
            keyed.keys.add((row.namespace, row.limit_key))
            keyed.task_ids.add(row.id)
        match unit.settlement:
            case Finish() as finish:
                ends.append(End(row.id, row.claim_version, row.owner_id, finish.actor or owner_id, finish))
            case Park() as park:
                parkings.append(Parking(row.id, row.state, park.actor or owner_id, park))
            case Keep() as kept:
                keeps[row.id] = kept
            case Revive() as revival:
                revivals[row.id] = revival
            case Amend() as amendment:
                amends[row.id] = amendment
            case None:
                pass
            case _:
                assert_never(unit.settlement)
    if ends:
        await settlements.finish(connection, ends)
    if parkings:
        await settlements.park(connection, parkings)
    if keeps:
        await settlements.keep(connection, keeps)
    if revivals:
        revived = await settlements.revive(connection, revivals)
        keyed.keys.update(revived.values())
        keyed.task_ids.update(revived)
    if amends:
        await settlements.amend(connection, amends)
    return keyed


async def _admit(connection: Connection, keys: set[Key], inserted: Inserted) -> set[int]:
    """Let the next tasks of the keys go on; their lanes."""
    keys |= set(inserted.keys.values())
    return await admit(connection, keys, inserted.limits) if keys else set()


def _with_lanes(answers: list[Answer], ready: set[int]) -> list[Answer]:
    """The answers, one of them with the lanes of admitted tasks: whoever is told of one unit is told of all."""
    if ready:
        done = next(position for position, answer in enumerate(answers) if answer.verdict is Verdict.DONE)
        answers[done] = msgspec.structs.replace(answers[done], lane_ids=tuple(sorted(ready.union(answers[done].lane_ids))))
    return answers


def _answer(
    unit: Unit, row: _Row | None, inserted: Inserted, lane_ids: Mapping[Lane, int], keyed: Set[str] = frozenset()
) -> Answer:
    """What the unit is told: done, which keys were taken, and where it made tasks ready."""
    ready = {
        lane_ids[task.lane]
        for task in unit.tasks
        if task.delay <= 0 and not task.hold and task.id in inserted.ids and task.id not in inserted.keys
    }
    match unit.settlement:
        case Park(hold=0, delay=None) | Revive(delay=None) if row is not None and row.id not in keyed:
            if not row.hold & Hold.RUN_PAUSED:
                ready.add(row.lane_id)
    existing = {}
    if inserted.holders:
        existing = {
            task.unique_key: inserted.holders[task.id] for task in unit.tasks if task.unique_key and task.id in inserted.holders
        }
    stays = isinstance(unit.guard, Claim) and isinstance(unit.settlement, Keep | None)
    held = stays and row is not None and bool(row.hold & Hold.RUN_PAUSED)
    return Answer(Verdict.DONE, existing, tuple(sorted(ready)), held=held) if ready or existing or held else DONE
