"""The writes of a commit, inside the caller's transaction: settlements of tasks, and the rows of units.

The guard is in the `where` of each statement. Settlements of one kind are one statement; only if fewer rows were written than asked
for does the code look up which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias, assert_never

import msgspec

from treadle.kernel.store.records import (
    AppendStream,
    Await,
    ChangeRecord,
    PutItems,
    PutMessage,
    PutOutcome,
    PutRecord,
    TakeMessages,
)
from treadle.kernel.store.units import (
    CLAIM_LOST,
    DONE,
    Amend,
    Answer,
    CancelRunTasks,
    ClearInbox,
    Dismiss,
    Finish,
    HoldRun,
    Keep,
    LimitTask,
    MoveRun,
    Park,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    PutTags,
    Revive,
    Row,
    Unit,
    Verdict,
)
from treadle.model.errors import IllegalMove, StoreBusy
from treadle.model.records import Message, Record
from treadle.model.runs import Step, deadline_task_id
from treadle.model.tags import KEPT_LIMIT
from treadle.model.tasks import Claim
from treadle.stores.postgres.connection.connect import Connection, plain, row_count, sparse, words
from treadle.stores.postgres.limits import Key, take_turns
from treadle.stores.postgres.streams import append_streams
from treadle.stores.rules.units import (
    Change,
    GuardedTask,
    Name,
    Part,
    Settlements,
    Snapshot,
    changed_records,
    kept_answer,
    name_of,
    new_records,
    new_runs,
    with_admitted,
)
from treadle.stores.statements import load_statements

_SETTLEMENTS = load_statements(__package__, "settlements.sql")


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
        status = await connection.execute(_SETTLEMENTS["finish_alike"], task_ids, versions, *common, results, limited)
    else:
        columns = words(owner_ids), words(actors), words(moves), words(states), results, *errors
        status = await connection.execute(_SETTLEMENTS["finish"], task_ids, versions, *columns, limited)
    return row_count(status)


def _is_one(values: Sequence[str | None]) -> bool:
    """Whether all values are the same."""
    return values.count(values[0]) == len(values)


async def doubt_effects(connection: Connection, task_ids: Sequence[str]) -> None:
    """Log the effects in progress of the locked tasks as unknown."""
    if task_ids:
        await connection.execute(_SETTLEMENTS["doubt_effects"], sorted(task_ids))


async def open_rest(connection: Connection) -> None:
    """Give up the split of the first partition, into whose bounds an id does not fit."""
    await connection.execute(_SETTLEMENTS["open_rest"])


async def bury(connection: Connection, task_ids: Sequence[str]) -> None:
    """Remove live tasks that have ended already; they cannot end twice."""
    await connection.execute(_SETTLEMENTS["bury"], sorted(task_ids))


async def _park(connection: Connection, changes: Sequence[Change[Park]], rows: dict[str, GuardedTask]) -> None:
    parks = [change.what for change in changes]
    await connection.execute(
        _SETTLEMENTS["park"],
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
        await connection.execute(_SETTLEMENTS["keep"], task_ids, checkpoints)
    else:
        data = [change.what.data for change in changes]
        await connection.execute(_SETTLEMENTS["keep_and_log"], task_ids, checkpoints, moves, data)


async def _revive(connection: Connection, changes: Sequence[Change[Revive]]) -> dict[str, Key]:
    """Make finished tasks live again; return the limit keys of those that have one, by id."""
    rows = await connection.fetch(
        _SETTLEMENTS["revive"],
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
        _SETTLEMENTS["amend"],
        [change.task_id for change in changes],
        [change.what.move for change in changes],
        [change.what.state for change in changes],
        [change.actor for change in changes],
    )


_ROWS = load_statements(__package__, "rows.sql")


async def insert_runs(connection: Connection, snapshot: Snapshot, inserted: set[str], units: Mapping[int, Unit]) -> bool:
    """Insert the new runs of units, by position, because only that shows whether they are new; add their ids to `inserted`.

    Returns False if some runs exist and their units are refused: the other units must then be decided again.
    """
    new = [(position, put.run) for position, unit in units.items() for put in new_runs(unit) if put.run.id not in inserted]
    if not new:
        return True
    text = msgspec.json.encode(sorted((run for _, run in new), key=lambda run: (run.idempotency_key or "", run.id))).decode()
    added = {row[0] for row in await connection.fetch(_ROWS["insert_runs"], text)}
    inserted |= added
    known = [(position, run) for position, run in new if run.id not in added]
    keys = [(run.namespace, run.idempotency_key) for _, run in known if run.idempotency_key is not None]
    holders: dict[Key, str] = {}
    if keys:
        found = await connection.fetch(_ROWS["find_runs_by_key"], [key[0] for key in keys], [key[1] for key in keys])
        holders = {(row[0], row[1]): row[2] for row in found}
    for position, run in known:
        key = run.idempotency_key
        holder = run.id if key is None else holders.get((run.namespace, key))
        if holder is None:
            raise StoreBusy(f"The run with the idempotency key {key} was pruned at this very moment; try again.")
        snapshot.refused[position] = DONE if holder == run.id else Answer(Verdict.DONE, existing={key or "": holder})
    return not known


async def take_back_runs(connection: Connection, inserted: set[str], units: Iterable[Unit]) -> None:
    """Remove the runs that were inserted for units that are refused after all."""
    if stale := inserted - {put.run.id for unit in units for put in new_runs(unit)}:
        await connection.execute(_ROWS["take_back_runs"], sorted(stale))


@dataclass(slots=True)
class _Kinds:
    """Rows by kind; those with a result for a unit have the position of the unit."""

    flows: dict[str, PutFlow] = field(default_factory=dict)
    blobs: list[PutBlob] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    inbox: list[PutInbox] = field(default_factory=list)
    cleared: set[str] = field(default_factory=set)
    moves: list[MoveRun] = field(default_factory=list)
    items: list[PutItems] = field(default_factory=list)
    taken: list[TakeMessages] = field(default_factory=list)
    awaits: list[Await] = field(default_factory=list)
    outcomes: list[PutOutcome] = field(default_factory=list)
    holds: list[tuple[int, HoldRun | CancelRunTasks]] = field(default_factory=list)
    limited: list[LimitTask] = field(default_factory=list)
    dismissed: list[Dismiss] = field(default_factory=list)
    tags: list[PutTags] = field(default_factory=list)
    sent: list[tuple[int, Message]] = field(default_factory=list)
    appended: list[AppendStream] = field(default_factory=list)

    def add(self, position: int, row: Row) -> None:
        match row:
            case PutRun() | PutRecord() | ChangeRecord():
                pass  # `insert_runs` and `write_records` wrote it
            case PutFlow(flow, anew):
                if anew or flow.id not in self.flows:
                    self.flows[flow.id] = row
            case PutBlob():
                self.blobs.append(row)
            case PutSteps(steps=steps):
                self.steps.update({step.id: step for step in steps})
            case PutInbox():
                self.inbox.append(row)
            case ClearInbox(step_ids):
                self.cleared.update(step_ids)
            case MoveRun():
                self.moves.append(row)
            case PutItems():
                self.items.append(row)
            case TakeMessages():
                self.taken.append(row)
            case Await():
                self.awaits.append(row)
            case PutOutcome():
                self.outcomes.append(row)
            case HoldRun() | CancelRunTasks():
                self.holds.append((position, row))
            case LimitTask():
                self.limited.append(row)
            case Dismiss():
                self.dismissed.append(row)
            case PutTags():
                self.tags.append(row)
            case PutMessage(message):
                self.sent.append((position, message))
            case AppendStream():
                self.appended.append(row)
            case _:
                assert_never(row)


async def write_rows(connection: Connection, units: Mapping[int, Unit], keys: set[Key]) -> dict[int, set[int]]:
    """Write the rows of units, by position; return the lanes in which tasks became ready, by position.

    Adds the limit keys of affected tasks to `keys`.
    """
    kinds = _Kinds()
    for position, unit in units.items():
        for row in unit.rows:
            if type(row) is PutSteps:
                kinds.steps.update([(step.id, step) for step in row.steps])
            else:
                kinds.add(position, row)
    await _bump_runs(connection, [unit for unit in units.values() if unit.run is not None])
    if flows := [kinds.flows[flow_id].flow for flow_id in sorted(kinds.flows)]:
        columns = ([f.id for f in flows], [f.namespace for f in flows], [f.sources for f in flows], [f.program for f in flows])
        await connection.execute(_ROWS["put_flows"], *columns)
        for row in kinds.flows.values():
            if row.anew:
                await connection.execute(_ROWS["replace_flow"], row.flow.id, row.flow.sources, row.flow.program)
    if blobs := sorted(kinds.blobs, key=lambda blob: blob.digest):
        await connection.execute(_ROWS["put_blobs"], [blob.digest for blob in blobs], [blob.value for blob in blobs])
        await connection.execute(_ROWS["use_blobs"], [blob.root_id for blob in blobs], [blob.digest for blob in blobs])
    if steps := [kinds.steps[step_id] for step_id in sorted(kinds.steps)]:
        await connection.execute(_ROWS["put_steps"], *_step_columns(steps))
    if inbox := sorted(kinds.inbox, key=lambda row: row.step_id):
        await connection.execute(_ROWS["put_inbox"], [row.step_id for row in inbox], [row.inbox for row in inbox])
    if kinds.cleared:
        await connection.execute(_ROWS["clear_inbox"], sorted(kinds.cleared))
    await _move_runs(connection, kinds.moves)
    await put_items(connection, kinds.items)
    await take_messages(connection, kinds.taken)
    await await_messages(connection, kinds.awaits)
    await _put_outcomes(connection, kinds.outcomes)
    lanes: dict[int, set[int]] = {}
    for position, change in kinds.holds:
        if isinstance(change, HoldRun):
            found = await connection.fetch(_ROWS["hold_run" if change.held else "free_run"], change.run_id)
        else:
            ended = await connection.fetch(_ROWS["lock_run_tasks"], change.run_id, change.inbox)
            await doubt_effects(connection, [each[0] for each in ended])
            found = await connection.fetch(_ROWS["cancel_run_tasks"], change.run_id, change.actor, change.error, change.inbox)
        lanes.setdefault(position, set()).update(each[0] for each in found if each[0] is not None)
        keys.update((each[1], each[2]) for each in found if each[2] is not None)
    for limited in kinds.limited:
        for namespace, *both in await connection.fetch(_ROWS["limit_task"], limited.task_id, limited.key):
            keys.update((namespace, key) for key in both if key is not None)
    for row in kinds.dismissed:
        if row.task_ids is None:
            await connection.execute(_ROWS["dismiss_run"], row.run_id)
        else:
            await connection.execute(_ROWS["dismiss_tasks"], sorted(row.task_ids))
    for tags in sorted(kinds.tags, key=lambda row: row.owner_id):
        keys_of, values = zip(*sorted(tags.tags), strict=True) if tags.tags else ((), ())
        statement = _ROWS["put_run_tags" if tags.entity == "run" else "put_task_tags"]
        await connection.execute(statement, tags.owner_id, keys_of, values, KEPT_LIMIT)
    if kinds.appended:
        await append_streams(connection, kinds.appended)
    if kinds.sent:
        await put_messages(connection, kinds.sent, keys, lanes)
    return lanes


async def _bump_runs(connection: Connection, units: Sequence[Unit]) -> None:
    """Raise the version of each unit's run, and its number of steps."""
    bumps = [(unit.run.run_id, sum(row.added for row in unit.rows if isinstance(row, PutSteps))) for unit in units if unit.run]
    if len(dict(bumps)) == len(bumps):
        if bumps:
            await connection.execute(
                _ROWS["bump_runs"], plain([run_id for run_id, _ in bumps]), plain([added for _, added in bumps])
            )
    else:  # several units of one run: each raises its version
        for run_id, added in bumps:
            await connection.execute(_ROWS["bump_runs"], plain([run_id]), plain([added]))


def _step_columns(steps: Sequence[Step]) -> tuple[object, ...]:
    return (
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


async def put_checkpoints(connection: Connection, units: Sequence[Unit]) -> list[Answer]:
    """Apply units that are checkpoints: one statement checks all claims and stores all steps."""
    given = [
        (position, unit.guard, step)
        for position, unit in enumerate(units)
        if isinstance(unit.guard, Claim)
        for row in unit.rows
        if isinstance(row, PutSteps)
        for step in row.steps
    ]
    rows = await connection.fetch(
        _ROWS["put_checkpoints"],
        plain([position for position, _, _ in given]),
        plain([claim.task_id for _, claim, _ in given]),
        plain([claim.version for _, claim, _ in given]),
        words([claim.owner_id for _, claim, _ in given]),
        *_step_columns([step for _, _, step in given]),
    )
    answers = [CLAIM_LOST] * len(units)
    for position, hold in rows:
        answers[position] = kept_answer(hold)
    kept = {position for position, _ in rows}
    if lost := [claim.task_id for position, claim, _ in given if position not in kept]:
        # The statement had locked those that became ready meanwhile, so that claims skipped them.
        ready = {row[0] for row in await connection.fetch(_ROWS["list_ready_lanes"], lost)}
        return with_admitted(answers, ready)
    return answers


async def _move_runs(connection: Connection, moves: Sequence[MoveRun]) -> None:
    """Move runs in batches; the second move of a run goes into the batch after its first."""
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
            _ROWS["move_runs"],
            [move.run_id for move in batch],
            [move.move for move in batch],
            [move.from_state for move in batch],
            [move.to_state for move in batch],
            sparse([move.actor for move in batch]),
            sparse([move.outputs for move in batch]),
            sparse([move.error for move in batch]),
            sparse([move.failed_step_id for move in batch]),
            sparse([move.data for move in batch]),
            [deadline_task_id(move.run_id) for move in batch],
        )
        if row_count(status) != len(batch):
            raise IllegalMove("run", batch[0].run_id, f"not {batch[0].from_state}", batch[0].move)
        pending = later


async def _put_outcomes(connection: Connection, given: Iterable[PutOutcome]) -> None:
    """Record outcomes of effects; a resolved outcome stays, also among those given."""
    last: dict[str, PutOutcome] = {}
    for row in given:
        before = last.get(row.outcome.idempotency_key)
        if before is None:
            last[row.outcome.idempotency_key] = row
        elif (first := before.outcome).status == "unknown":
            kept = {name: getattr(row.outcome, name) or getattr(first, name) for name in ("task_id", "details")}
            outcome = msgspec.structs.replace(row.outcome, root_id=first.root_id, **kept)
            last[outcome.idempotency_key] = PutOutcome(outcome, before.doubted or row.doubted)
    rows = [last[key] for key in sorted(last)]
    outcomes = [row.outcome for row in rows]
    if outcomes:
        await connection.execute(
            _ROWS["put_outcomes"],
            [outcome.idempotency_key for outcome in outcomes],
            [outcome.tool_call_id for outcome in outcomes],
            [outcome.status for outcome in outcomes],
            sparse([outcome.response_hash for outcome in outcomes]),
            sparse([outcome.response for outcome in outcomes]),
            [outcome.root_id for outcome in outcomes],
            sparse([outcome.task_id for outcome in outcomes]),
            sparse([outcome.details for outcome in outcomes]),
            [row.doubted for row in rows],
        )


_RECORDS = load_statements(__package__, "records.sql")


async def find_holders(connection: Connection, records: Sequence[Record]) -> dict[Name, str]:
    """Return the live records that have the names of these, by name."""
    names = [name_of(record) for record in records if record.name is not None]
    if not names:
        return {}
    rows = await connection.fetch(_RECORDS["find_holders"], *([name[part] for name in names] for part in range(3)))
    return {(row[0], row[1], row[2]): row[3] for row in rows}


class _Taken(Exception):
    """The records of these units exist, or their names are taken: the changes so far must be rolled back."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = answers


async def write_records(connection: Connection, units: Mapping[int, Unit]) -> dict[int, Answer]:
    """Change and insert the records of units, by position; or do nothing, and return answers to units that are refused after all.

    Changes existing records first, which may free names.
    """
    new = [(position, record) for position, unit in units.items() for record in new_records([unit])]
    changes = changed_records(units.values())
    if not new:
        await _change(connection, changes)
        return {}
    created = {record.id for _, record in new}
    try:
        async with connection.transaction():
            await _change(connection, [change for change in changes if change.record_id not in created])
            await _insert(connection, new)
            await _change(connection, [change for change in changes if change.record_id in created])
    except _Taken as taken:
        return taken.answers
    return {}


async def _insert(connection: Connection, new: Sequence[tuple[int, Record]]) -> None:
    """Insert the records, because only that shows whether they are new."""
    records = sorted((record for _, record in new), key=lambda record: (record.name or "", record.id))
    inserted = {row[0] for row in await connection.fetch(_RECORDS["insert_records"], msgspec.json.encode(records).decode())}
    refused = [(position, record) for position, record in new if record.id not in inserted]
    if not refused:
        return
    ids = [record.id for _, record in refused]
    known = {row[0] for row in await connection.fetch(_RECORDS["list_existing"], ids)}
    holders = await find_holders(connection, [record for _, record in refused])
    answers: dict[int, Answer] = {}
    for position, record in refused:
        holder = record.id if record.id in known else holders.get(name_of(record))
        if holder is None:
            raise StoreBusy(f"The record with the name {record.name} ended at this very moment; try again.")
        answers[position] = DONE if holder == record.id else Answer(Verdict.DONE, existing={record.name or "": holder})
    raise _Taken(answers)


async def _change(connection: Connection, changes: Sequence[ChangeRecord]) -> None:
    """Change records in batches; the second change of a record goes into the batch after its first."""
    pending = list(changes)
    while pending:
        now: dict[str, ChangeRecord] = {}
        later = []
        for change in pending:
            if change.record_id in now:
                later.append(change)
            else:
                now[change.record_id] = change
        batch = list(now.values())
        count = await connection.fetchval(
            _RECORDS["change_records"],
            [change.record_id for change in batch],
            [change.version for change in batch],
            [change.body for change in batch],
            sparse([change.move for change in batch]),
            sparse([change.from_state for change in batch]),
            sparse([change.to_state for change in batch]),
            [change.ended for change in batch],
            sparse([change.actor for change in batch]),
            sparse([change.data for change in batch]),
            sparse([change.task_id for change in batch]),
        )
        if count != len(batch):
            raise IllegalMove("record", batch[0].record_id, f"not {batch[0].from_state}", batch[0].move or "change")
        pending = later


async def put_items(connection: Connection, puts: Sequence[PutItems]) -> None:
    """Store or remove values of records; of a key that several units put, the last one."""
    items = {(row.record_id, key): value for row in puts for key, value in row.items}
    removed = sorted(place for place, value in items.items() if value is None)
    if removed:
        await connection.execute(_RECORDS["remove_items"], [place[0] for place in removed], [place[1] for place in removed])
    kept = sorted((place, value) for place, value in items.items() if value is not None)
    if kept:
        columns = [place[0] for place, _ in kept], [place[1] for place, _ in kept], [value for _, value in kept]
        await connection.execute(_RECORDS["put_items"], *columns)


_MESSAGES = load_statements(__package__, "messages.sql")


def receiving_runs(units: Sequence[Unit]) -> set[str]:
    """Return the runs to which units send messages."""
    return {row.message.run_id for unit in units for row in unit.rows if isinstance(row, PutMessage)}


async def put_messages(
    connection: Connection, sent: Sequence[tuple[int, Message]], keys: set[Key], lanes: dict[int, set[int]]
) -> None:
    """Deliver messages, each with the position of its unit, and wake the runs that await no more of them.

    Adds the lanes of woken tasks to `lanes`, by unit, and limit keys to `keys`.
    """
    messages = [message for _, message in sent]
    woken = await connection.fetch(
        _MESSAGES["put_messages"],
        plain([message.id for message in messages]),
        plain([message.run_id for message in messages]),
        words([message.step_id for message in messages]),
        words([message.name for message in messages]),
        [message.body for message in messages],
    )
    for run_id, lane_id, hold, namespace, limit_key in woken:
        if limit_key is not None and hold:
            keys.add((namespace, limit_key))
        if not hold:
            for unit in {unit for unit, message in sent if message.run_id == run_id}:
                lanes.setdefault(unit, set()).add(lane_id)


async def take_messages(connection: Connection, taken: Sequence[TakeMessages]) -> None:
    """Delete messages that runs consumed."""
    places = sorted({(row.run_id, message_id) for row in taken for message_id in row.message_ids})
    if places:
        await connection.execute(
            _MESSAGES["take_messages"], plain([place[0] for place in places]), plain([place[1] for place in places])
        )


async def await_messages(connection: Connection, awaits: Sequence[Await]) -> None:
    """Set the number of messages that runs await; of several units of a run, the last one counts."""
    counts = {row.run_id: row.count for row in awaits}
    if counts:
        added = [sum(row.added for row in awaits if row.run_id == run_id) for run_id in counts]
        await connection.execute(_MESSAGES["await_messages"], list(counts), list(counts.values()), added)
