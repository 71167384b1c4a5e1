"""Units that advance runs: the guards of their runs, and the rows that follow, one statement for each kind of row.

Records are written where they are judged (`records`), and mail goes last.

Runs are locked before tasks, both in the order of their ids (D8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from treadle.kernel.store.records import Await, PutItems, PutMessage, PutOutcome, TakeMessages
from treadle.kernel.store.units import (
    DEFERRED,
    DONE,
    Answer,
    CancelRunTasks,
    ClearInbox,
    HoldRun,
    MoveRun,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    Row,
    Unit,
    Verdict,
)
from treadle.model.errors import IllegalMove, StoreBusy
from treadle.stores.postgres.connect import PACKAGE, Connection, plain, row_count, sparse, words
from treadle.stores.postgres.limits import Key
from treadle.stores.postgres.mail import await_mail, put_mail, take_mail, told_runs
from treadle.stores.postgres.outcomes import put_outcomes
from treadle.stores.postgres.records import put_items
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "rows.sql")
R = TypeVar("R")


def has_rows(unit: Unit) -> bool:
    """Whether it is about more than tasks."""
    return bool(unit.rows or unit.also) or unit.run is not None


@dataclass(slots=True)
class RunsSeen:
    """The versions of the runs that units are guarded by, and what is known already of units that make new runs or records."""

    versions: dict[str, int] = field(default_factory=dict)
    refused: dict[int, Answer] = field(default_factory=dict)
    inserted: set[str] = field(default_factory=set)
    """New runs that have been inserted."""
    made: set[str] = field(default_factory=set)
    """New runs of the units judged so far."""

    def fresh(self) -> RunsSeen:
        """As before the first unit was judged, but with what is known of refused ones."""
        return RunsSeen(dict(self.versions), self.refused)

    def refusal(self, index: int, unit: Unit) -> Answer | None:
        """The answer to a unit whose run moved on, or that makes a run which is there already; None if neither."""
        if index in self.refused:
            return self.refused[index]
        if unit.run is not None:
            version = self.versions.get(unit.run.run_id)
            if version is None or (unit.run.version is not None and version != unit.run.version):
                return DEFERRED
        return None

    def made_before(self, unit: Unit) -> bool:
        """Whether an earlier unit makes a new run of this one: it was sent twice."""
        return any(isinstance(row, PutRun) and row.run.id in self.made for row in unit.rows)

    def advance(self, unit: Unit) -> None:
        """The unit happens: its run has the next version for the units after it."""
        if unit.run is not None:
            self.versions[unit.run.run_id] += 1
        self.made.update(row.run.id for row in unit.rows if isinstance(row, PutRun))


async def see_runs(connection: Connection, units: Sequence[Unit]) -> RunsSeen:
    """Lock the runs that units are guarded by, or tell something."""
    seen = RunsSeen()
    wanted = {unit.run.run_id for unit in units if unit.run is not None} | told_runs(units)
    wanted |= {row.run_id for unit in units for row in unit.rows if isinstance(row, Await)}
    if run_ids := sorted(wanted):
        seen.versions = {row[0]: row[1] for row in await connection.fetch(_SQL["lock_runs"], plain(run_ids))}
    return seen


async def insert_runs(connection: Connection, seen: RunsSeen, units: Mapping[int, Unit]) -> bool:
    """Insert the new runs of units that may happen, by index, as only that tells whether they are new.

    False if some are not, and their units refused: what depends on these has to be judged again.
    """
    runs = [(index, row.run) for index, unit in units.items() for row in unit.rows if isinstance(row, PutRun)]
    new = [(index, run) for index, run in runs if run.id not in seen.inserted]
    if not new:
        return True
    text = msgspec.json.encode(sorted((run for _, run in new), key=lambda run: (run.idempotency_key or "", run.id))).decode()
    inserted = {row[0] for row in await connection.fetch(_SQL["insert_runs"], text)}
    seen.inserted |= inserted
    there = [(index, run) for index, run in new if run.id not in inserted]
    keys = [(run.namespace, run.idempotency_key) for _, run in there if run.idempotency_key is not None]
    holders: dict[Key, str] = {}
    if keys:
        found = await connection.fetch(_SQL["find_runs_by_key"], [key[0] for key in keys], [key[1] for key in keys])
        holders = {(row[0], row[1]): row[2] for row in found}
    for index, run in there:
        key = run.idempotency_key
        holder = run.id if key is None else holders.get((run.namespace, key))
        if holder is None:
            raise StoreBusy(f"The run with the idempotency key {key} was pruned at this very moment; try again.")
        seen.refused[index] = DONE if holder == run.id else Answer(Verdict.DONE, existing={key or "": holder})
    return not there


async def take_back_runs(connection: Connection, seen: RunsSeen, units: Mapping[int, Unit]) -> None:
    """Remove the runs that were inserted for units that do not happen after all."""
    made = {row.run.id for unit in units.values() for row in unit.rows if isinstance(row, PutRun)}
    if stale := seen.inserted - made:
        await connection.execute(_SQL["take_back_runs"], sorted(stale))


async def write_rows(connection: Connection, units: dict[int, Unit], keys: set[Key]) -> dict[int, set[int]]:
    """Write the rows of units that happen, by index; lanes in which that made tasks ready, by index.

    Limit keys that something was done about are added to `keys`.
    """
    rows = [row for unit in units.values() for row in unit.rows]
    added: dict[str, int] = {unit.run.run_id: 0 for unit in units.values() if unit.run is not None}
    bumps = [
        (unit.run.run_id, sum(row.added for row in unit.rows if isinstance(row, PutSteps))) for unit in units.values() if unit.run
    ]
    for run_id, count in bumps:
        added[run_id] += count
    if len(added) == len(bumps):
        if added:
            await connection.execute(_SQL["bump_runs"], plain(added), plain(added.values()))
    else:  # several units of one run: each raises its version
        for run_id, count in bumps:
            await connection.execute(_SQL["bump_runs"], plain([run_id]), plain([count]))
    if flows := [flow for _, flow in sorted({row.flow.id: row.flow for row in _of(rows, PutFlow)}.items())]:
        columns = ([f.id for f in flows], [f.namespace for f in flows], [f.sources for f in flows], [f.program for f in flows])
        await connection.execute(_SQL["put_flows"], *columns)
    if blobs := sorted(_of(rows, PutBlob), key=lambda blob: blob.digest):
        await connection.execute(_SQL["put_blobs"], [blob.digest for blob in blobs], [blob.value for blob in blobs])
        await connection.execute(_SQL["use_blobs"], [blob.root_id for blob in blobs], [blob.digest for blob in blobs])
    await _put_steps(connection, _of(rows, PutSteps))
    if inbox := sorted(_of(rows, PutInbox), key=lambda row: row.step_id):
        await connection.execute(_SQL["put_inbox"], [row.step_id for row in inbox], [row.inbox for row in inbox])
    if cleared := sorted({step_id for row in _of(rows, ClearInbox) for step_id in row.step_ids}):
        await connection.execute(_SQL["clear_inbox"], cleared)
    await _move_runs(connection, _of(rows, MoveRun))
    await put_items(connection, _of(rows, PutItems))
    await take_mail(connection, _of(rows, TakeMessages))
    await await_mail(connection, _of(rows, Await))
    await put_outcomes(connection, [row.outcome for row in _of(rows, PutOutcome)])
    lanes: dict[int, set[int]] = {}
    for index, unit in units.items():
        for row in unit.rows:
            match row:
                case HoldRun(run_id, held):
                    found = await connection.fetch(_SQL["hold_run" if held else "free_run"], run_id)
                case CancelRunTasks(run_id, actor, error):
                    found = await connection.fetch(_SQL["cancel_run_tasks"], run_id, actor, error)
                case _:
                    continue
            lanes.setdefault(index, set()).update(each[0] for each in found if each[0] is not None)
            keys.update((each[1], each[2]) for each in found if each[2] is not None)
    if told := [(index, row.message) for index, unit in units.items() for row in unit.rows if isinstance(row, PutMessage)]:
        await put_mail(connection, told, keys, lanes)
    return lanes


async def _put_steps(connection: Connection, puts: Sequence[PutSteps]) -> None:
    """Steps in the order of their ids; of a step that several units put, the last."""
    steps = sorted({step.id: step for row in puts for step in row.steps}.values(), key=lambda step: step.id)
    if steps:
        await connection.execute(
            _SQL["put_steps"],
            plain([step.id for step in steps]),
            plain([step.run_id for step in steps]),
            words([step.parent_id for step in steps]),
            plain([step.ordinal for step in steps]),
            words([step.kind for step in steps]),
            words([step.name for step in steps]),
            words([step.facet for step in steps]),
            words([step.state for step in steps]),
            [step.body for step in steps],
        )


async def _move_runs(connection: Connection, moves: Sequence[MoveRun]) -> None:
    """Moves of different runs go together; the second move of a run goes after its first."""
    pending = list(moves)
    while pending:
        now: dict[str, MoveRun] = {}
        later = []
        for move in pending:
            if move.run_id in now:
                later.append(move)
            else:
                now[move.run_id] = move
        batch = [now[run_id] for run_id in sorted(now)]
        status = await connection.execute(
            _SQL["move_runs"],
            [move.run_id for move in batch],
            [move.move for move in batch],
            [move.from_state for move in batch],
            [move.to_state for move in batch],
            sparse([move.actor for move in batch]),
            sparse([move.outputs for move in batch]),
            sparse([move.error for move in batch]),
            sparse([move.failed_step_id for move in batch]),
            sparse([move.data for move in batch]),
        )
        if row_count(status) != len(batch):
            raise IllegalMove("run", batch[0].run_id, f"not {batch[0].from_state}", batch[0].move)
        pending = later


def _of(rows: Iterable[Row], kind: type[R]) -> list[R]:
    return [row for row in rows if isinstance(row, kind)]
