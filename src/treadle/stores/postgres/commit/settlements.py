"""Settle locked tasks, one statement for each kind of settlement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from treadle.kernel.store.units import Amend, Finish, Keep, Park, Revive
from treadle.stores.postgres.connection.connect import Connection, plain, row_count, sparse, words
from treadle.stores.postgres.limits import Key, take_turns
from treadle.stores.rules.units import Change, GuardedTask, Part, Settlements
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "settlements.sql")


End: TypeAlias = tuple[str, int, str | None, str | None, Finish]
"""The end of a task if its claim is unchanged: its id, claim version and owner, the actor and the end. A plain tuple is built in a
quarter of the time of a named one, once per task."""


class Limited(NamedTuple):
    """Limit keys of settled tasks, and the ids of these tasks: they must be admitted before they are ready."""

    keys: set[Key]
    task_ids: set[str]


async def settle(connection: Connection, parts: Iterable[Part]) -> Limited:
    """Settle the tasks of the parts; their guards matched locked rows."""
    settled = [part for part in parts if part.row is not None and part.unit.settlement is not None]
    rows = {part.row.id: part.row for part in settled if part.row is not None}
    kinds = Settlements((part.position, part.unit) for part in settled)
    limited = Limited(set(), set())
    for part in settled:
        if part.row is not None and part.row.limit_key is not None and not isinstance(part.unit.settlement, Keep):
            limited.keys.add((part.row.namespace, part.row.limit_key))
            limited.task_ids.add(part.row.id)
    await doubt_effects(connection, [guard[0] for guard in kinds.doubtful])
    if kinds.finishes:
        ends = [(c.task_id, c.claim_version, rows[c.task_id].owner_id, c.actor, c.what) for c in kinds.finishes]
        await finish(connection, ends)
    if kinds.parks or kinds.quiet_parks:
        await _park(connection, [*kinds.parks, *kinds.quiet_parks], rows)
    if kinds.keeps:
        await _keep(connection, kinds.keeps)
    if kinds.revivals:
        revived = await _revive(connection, kinds.revivals)
        await take_turns(connection, [change.task_id for change in kinds.revivals])
        limited.keys.update(revived.values())
        limited.task_ids.update(revived)
    if kinds.amends:
        await _amend(connection, kinds.amends)
    return limited


async def finish(connection: Connection, ends: Sequence[End], *, limited: bool = True) -> int:
    """Move the tasks with an unchanged claim to the finished ones; return their number.

    Unless `limited`, skips tasks with a limit key: the same transaction must then admit the next task of their key.
    """
    ends = sorted(ends, key=itemgetter(0))
    task_ids, versions = plain([end[0] for end in ends]), plain([end[1] for end in ends])
    owner_ids, actors = [end[2] for end in ends], [end[3] for end in ends]
    finishes = [end[4] for end in ends]
    moves, states = [finish.move for finish in finishes], [finish.state for finish in finishes]
    results = sparse([finish.result for finish in finishes])
    errors = [sparse([getattr(finish, name) for finish in finishes]) for name in ("error", "error_code", "fingerprint")]
    if not any(errors) and owner_ids[0] is not None and all(_is_one(values) for values in (owner_ids, actors, moves, states)):
        common = owner_ids[0], actors[0], moves[0], states[0]
        status = await connection.execute(_SQL["finish_alike"], task_ids, versions, *common, results, limited)
    else:
        columns = words(owner_ids), words(actors), words(moves), words(states), results, *errors
        status = await connection.execute(_SQL["finish"], task_ids, versions, *columns, limited)
    return row_count(status)


def _is_one(values: Sequence[str | None]) -> bool:
    """Whether all values are the same."""
    return values.count(values[0]) == len(values)


async def doubt_effects(connection: Connection, task_ids: Sequence[str]) -> None:
    """Log the effects in progress of the locked tasks as unknown."""
    if task_ids:
        await connection.execute(_SQL["doubt_effects"], sorted(task_ids))


async def open_rest(connection: Connection) -> None:
    """Give up the split of the first partition, into whose bounds an id does not fit."""
    await connection.execute(_SQL["open_rest"])


async def bury(connection: Connection, task_ids: Sequence[str]) -> None:
    """Remove live tasks that have ended already; they cannot end twice."""
    await connection.execute(_SQL["bury"], sorted(task_ids))


async def _park(connection: Connection, changes: Sequence[Change[Park]], rows: dict[str, GuardedTask]) -> None:
    parks = [change.what for change in changes]
    await connection.execute(
        _SQL["park"],
        [change.task_id for change in changes],
        [rows[change.task_id].state for change in changes],
        [change.actor for change in changes],
        [park.move for park in parks],
        [park.state for park in parks],
        [park.attempt for park in parks],
        [park.failures for park in parks],
        [park.takeovers for park in parks],
        [park.hold for park in parks],
        sparse([park.delay for park in parks]),
        sparse([park.checkpoint for park in parks]),
        sparse([park.error for park in parks]),
        sparse([park.data for park in parks]),
        [park.quiet for park in parks],
        sparse([park.doing for park in parks]),
        [park.stays for park in parks],
    )


async def _keep(connection: Connection, changes: Sequence[Change[Keep]]) -> None:
    """Store checkpoints, and log the moves if there are any."""
    task_ids, checkpoints = [change.task_id for change in changes], [change.what.checkpoint for change in changes]
    moves = [change.what.move for change in changes]
    if moves.count(None) == len(moves):
        await connection.execute(_SQL["keep"], task_ids, checkpoints)
    else:
        data = [change.what.data for change in changes]
        await connection.execute(_SQL["keep_and_log"], task_ids, checkpoints, moves, data)


async def _revive(connection: Connection, changes: Sequence[Change[Revive]]) -> dict[str, Key]:
    """Make finished tasks live again; return the limit keys of those that have one, by id."""
    rows = await connection.fetch(
        _SQL["revive"],
        [change.task_id for change in changes],
        [change.what.move for change in changes],
        [change.actor for change in changes],
        [change.what.payload for change in changes],
        [change.what.failures for change in changes],
        [change.what.delay for change in changes],
    )
    return {task_id: (namespace, key) for task_id, namespace, key in rows if key is not None}


async def _amend(connection: Connection, changes: Sequence[Change[Amend]]) -> None:
    """Replace the ends of finished tasks."""
    await connection.execute(
        _SQL["amend"],
        [change.task_id for change in changes],
        [change.what.move for change in changes],
        [change.what.state for change in changes],
        [change.actor for change in changes],
    )
