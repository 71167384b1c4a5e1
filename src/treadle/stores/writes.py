"""The writes of a commit, inside the caller's transaction: settlements of tasks, and the rows of units.

The units have been decided on locked rows, so their guards match; settlements of one kind, and rows of one kind, are one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar, assert_never, get_args

import msgspec

from treadle.kernel.store.records import (
    AppendStream,
    Await,
    ChangeRecord,
    PutItems,
    PutMessage,
    PutOutcome,
    TakeMessages,
)
from treadle.kernel.store.units import (
    CLAIM_LOST,
    DONE,
    DOUBTFUL_TRANSITIONS,
    BlockRun,
    CancelRunTasks,
    ClearInbox,
    Discard,
    Dismiss,
    Finish,
    Keep,
    LimitTask,
    PutBlob,
    PutFlow,
    PutInbox,
    PutMetrics,
    PutPayload,
    PutSteps,
    PutTags,
    Redrive,
    Requeue,
    Row,
    RunTransition,
    Unit,
    UnitAnswer,
    Verdict,
)
from treadle.model.errors import IllegalTransition, InvalidInput, StoreBusy
from treadle.model.records import Message, Record
from treadle.model.runs import Step, deadline_task_id
from treadle.model.tags import KEPT_LIMIT
from treadle.model.tasks import Claim
from treadle.stores.limits import Key, order_fairly
from treadle.stores.rules.units import (
    End,
    Name,
    Snapshot,
    UnitPart,
    changed_records,
    end_of,
    kept_answer,
    name_of,
    new_records,
    new_runs,
    with_admitted,
)
from treadle.stores.session import Session
from treadle.stores.streams import append_streams

T = TypeVar("T")

_ALLOWED = {Claim: (Finish, Requeue, Keep), None: (Finish, Requeue, Redrive, Discard)}
"""The settlements that a holder of the claim may make, and those of other callers."""


class Limited(NamedTuple):
    """Limit keys of settled tasks, and the ids of these tasks: they must be admitted before they are ready."""

    keys: set[Key]
    task_ids: set[str]


async def settle(session: Session, parts: Iterable[UnitPart]) -> Limited:
    """Settle the tasks of the parts; their guards matched locked rows."""
    limited = Limited(set(), set())
    ends: list[End] = []
    in_doubt: list[str] = []
    settlements: dict[str, list[tuple[Any, ...]]] = {"requeue": [], "keep": [], "redrive": [], "discard_finished": []}
    for _, unit, row in parts:
        guard, what = unit.guard, unit.settlement
        if what is None:
            continue
        if guard is None or row is None:
            raise InvalidInput("A unit without a guard cannot settle a task: give the claim, or the version that was seen.")
        owner_id = guard.owner_id if isinstance(guard, Claim) else None
        if not isinstance(what, _ALLOWED[Claim if isinstance(guard, Claim) else None]):
            holder = "The holder of a claim" if isinstance(guard, Claim) else "A caller without the claim"
            raise InvalidInput(f"{holder} cannot settle a task by {what!r}.")
        if row.limit_key is not None and not isinstance(what, Keep):
            limited.keys.add((row.namespace, row.limit_key))
            limited.task_ids.add(row.id)
        if (
            isinstance(what, Finish | Requeue)
            and what.transition in DOUBTFUL_TRANSITIONS
            and not (isinstance(what, Requeue) and what.stays)
        ):
            in_doubt.append(row.id)
        match what:
            case Finish():
                ends.append(end_of(row.id, row.claim_version, row.owner_id, what.actor or owner_id, what))
            case Requeue():
                settlements["requeue"].append((row.id, row.state, what.actor or owner_id, *_requeue_columns(what)))
            case Keep():
                settlements["keep"].append((row.id, what.checkpoint, what.transition, what.data))
            case Redrive():
                settlements["redrive"].append(
                    (row.id, what.transition, what.actor, what.payload, what.failures, what.delay, what.data)
                )
            case Discard():
                settlements["discard_finished"].append((row.id, what.transition, what.state, what.actor))
            case _:
                assert_never(what)
    await mark_in_doubt(session, in_doubt)
    if ends:
        await session.execute("finish", rows=sorted(ends, key=itemgetter(0)), limited=True)
    for name, rows in settlements.items():
        if rows and name == "redrive":
            redriven = {task_id: (namespace, key) for task_id, namespace, key in await session.fetch("redrive", rows=rows) if key}
            await order_fairly(session, [row[0] for row in rows])
            limited.keys.update(redriven.values())
            limited.task_ids.update(redriven)
        elif rows:
            await session.execute(name, rows=rows)
    return limited


_requeue_columns = attrgetter(
    *(
        "transition",
        "state",
        "attempt",
        "failures",
        "takeovers",
        "blocked_by",
        "delay",
        "checkpoint",
        "error",
        "data",
        "quiet",
        "activity",
        "stays",
        "keeps_slot",
    )
)


async def mark_in_doubt(session: Session, task_ids: Sequence[str]) -> None:
    """Log the effects in progress of the locked tasks as unknown."""
    if task_ids:
        await session.execute("mark_in_doubt", ids=sorted(task_ids))


async def insert_runs(session: Session, snapshot: Snapshot, inserted: set[str], units: Mapping[int, Unit]) -> bool:
    """Insert the new runs of units, by position, because only that shows whether they are new; add their ids to `inserted`.

    Returns False if some runs exist and their units are refused: the other units must then be decided again.
    """
    new = [(position, put.run) for position, unit in units.items() for put in new_runs(unit) if put.run.id not in inserted]
    if not new:
        return True
    text = msgspec.json.encode(sorted((run for _, run in new), key=lambda run: (run.idempotency_key or "", run.id))).decode()
    added = {row[0] for row in await session.fetch("insert_runs", runs=text)}
    inserted |= added
    refused = [(position, run) for position, run in new if run.id not in added]
    holders: dict[Key, str] = {}
    if keys := [(run.namespace, run.idempotency_key) for _, run in refused if run.idempotency_key is not None]:
        holders = {(row[0], row[1]): row[2] for row in await session.fetch("find_runs_by_key", rows=keys)}
    for position, run in refused:
        key = run.idempotency_key
        holder = run.id if key is None else holders.get((run.namespace, key))
        if holder is None:
            raise StoreBusy(f"The run with the idempotency key {key} was pruned at this very moment; try again.")
        snapshot.refused[position] = DONE if holder == run.id else UnitAnswer(Verdict.DONE, existing={key or "": holder})
    return not refused


async def take_back_runs(session: Session, inserted: set[str], units: Iterable[Unit]) -> None:
    """Remove the runs that were inserted for units that are refused after all."""
    if stale := inserted - {put.run.id for unit in units for put in new_runs(unit)}:
        await session.execute("take_back_runs", ids=sorted(stale))


async def write_rows(session: Session, units: Mapping[int, Unit], keys: set[Key]) -> dict[int, set[int]]:
    """Write the rows of units, by position; return the queues in which tasks became ready, by position.

    Adds the limit keys of affected tasks to `keys`. Messages go last: a run that ends or begins to wait in the same call has
    done so before its messages arrive.
    """
    await _bump_runs(session, [unit for unit in units.values() if unit.run is not None])
    rows: dict[type, list[Any]] = {kind: [] for kind in get_args(Row)}
    positions: list[tuple[int, Any]] = []
    for position, unit in units.items():
        for row in unit.rows:
            assert type(row) in rows, f"This store does not know how to write {row!r}."
            rows[type(row)].append(row)
            positions.append((position, row))
    await _put_values(session, rows)
    await _transition_runs(session, rows[RunTransition])
    await _put_items(session, {(put.record_id, key): value for put in rows[PutItems] for key, value in put.items})
    if consumed := {(row.run_id, message_id) for row in rows[TakeMessages] for message_id in row.message_ids}:
        await session.execute("take_messages", rows=sorted(consumed))
    if counts := {row.run_id: row.count for row in rows[Await]}:  # of several units of a run, the last one counts
        added = [sum(row.added for row in rows[Await] if row.run_id == run_id) for run_id in counts]
        await session.execute("await_messages", rows=[(*count, steps) for count, steps in zip(counts.items(), added, strict=True)])
    await _put_outcomes(session, rows[PutOutcome])
    queues = await _block_runs(session, [(at, row) for at, row in positions if isinstance(row, BlockRun | CancelRunTasks)], keys)
    for limited in rows[LimitTask]:
        for namespace, *both in await session.fetch("limit_task", task_id=limited.task_id, key=limited.key):
            keys.update((namespace, key) for key in both if key is not None)
    for put in rows[PutPayload]:
        await session.execute("put_payload", task_id=put.task_id, payload=put.payload)
    for dismissed in rows[Dismiss]:
        if dismissed.task_ids is None:
            await session.execute("dismiss_run", run_id=dismissed.run_id)
        else:
            await session.execute("dismiss_tasks", ids=sorted(dismissed.task_ids))
    for tags in sorted(rows[PutTags], key=attrgetter("owner_id")):
        name = "put_run_tags" if tags.entity == "run" else "put_task_tags"
        if tags.tags:
            await session.execute(name, owner_id=tags.owner_id, rows=sorted(tags.tags), kept=KEPT_LIMIT)
    for roll_up in rows[PutMetrics]:
        if await session.execute("advance_metrics", after_seq=roll_up.after_seq, until_seq=roll_up.until_seq):
            if roll_up.rows:
                await session.execute("add_metrics", rows=roll_up.rows)
            for step_for, before in roll_up.before:
                await session.execute("prune_metrics", step_for=step_for, before=before)
    if rows[AppendStream]:
        await append_streams(session, rows[AppendStream])
    if rows[PutMessage]:
        sent = [(position, row.message) for position, row in positions if isinstance(row, PutMessage)]
        await _put_messages(session, sent, keys, queues)
    return queues


async def _put_values(session: Session, rows: Mapping[type, Sequence[Any]]) -> None:
    """Write flows, large values, steps and their inboxes, each once, in order of their ids; of a step given twice, the last one."""
    if flows := sorted(rows[PutFlow], key=lambda row: row.flow.id):
        distinct = {row.flow.id: (row.flow.id, row.flow.namespace, row.flow.sources, row.flow.program) for row in flows}
        await session.execute("put_flows", rows=list(distinct.values()))
        for flow in (row.flow for row in flows if row.anew):
            await session.execute("replace_flow", id=flow.id, sources=flow.sources, program=flow.program)
    if blobs := {row.digest: row.value for row in reversed(rows[PutBlob])}:
        await session.execute("put_blobs", rows=sorted(blobs.items()))
        await session.execute("use_blobs", rows=sorted({(row.root_id, row.digest) for row in rows[PutBlob]}))
    if steps := {step.id: step for row in rows[PutSteps] for step in row.steps}:
        await session.execute("put_steps", rows=[_step_row(steps[step_id]) for step_id in sorted(steps)])
    if inboxes := {row.step_id: row.inbox for row in reversed(rows[PutInbox])}:
        await session.execute("put_inbox", rows=sorted(inboxes.items()))
    if cleared := {step_id for row in rows[ClearInbox] for step_id in row.step_ids}:
        await session.execute("clear_inbox", ids=sorted(cleared))


async def _put_outcomes(session: Session, puts: Sequence[PutOutcome]) -> None:
    """Record the outcomes of effects; a resolved one stays, also among those of one call."""
    last: dict[str, PutOutcome] = {}
    for put in puts:
        before = last.get(put.outcome.idempotency_key)
        if before is None:
            last[put.outcome.idempotency_key] = put
        elif (first := before.outcome).status == "unknown":
            merged = {name: getattr(put.outcome, name) or getattr(first, name) for name in ("task_id", "details")}
            outcome = msgspec.structs.replace(put.outcome, root_id=first.root_id, **merged)
            last[outcome.idempotency_key] = PutOutcome(outcome, before.in_doubt or put.in_doubt)
    if last:
        await session.execute("put_outcomes", rows=[_outcome_row(last[key]) for key in sorted(last)])


async def _block_runs(
    session: Session, changes: Iterable[tuple[int, BlockRun | CancelRunTasks]], keys: set[Key]
) -> dict[int, set[int]]:
    """Hold, free or cancel the tasks of runs; return the queues in which tasks became ready, by position, and add limit keys."""
    queues: dict[int, set[int]] = {}
    for position, change in changes:
        if isinstance(change, BlockRun):
            changed = await session.fetch("block_run" if change.blocked else "unblock_run", run_id=change.run_id)
        else:
            ended = await session.fetch("lock_run_tasks", run_id=change.run_id, inbox=change.inbox)
            await mark_in_doubt(session, [row[0] for row in ended])
            changed = await session.fetch("cancel_run_tasks", **msgspec.structs.asdict(change))
        queues.setdefault(position, set()).update(queue_id for queue_id, _, _ in changed if queue_id is not None)
        keys.update((namespace, key) for _, namespace, key in changed if key is not None)
    return queues


async def _bump_runs(session: Session, units: Sequence[Unit]) -> None:
    """Raise the version of each unit's run, and its number of steps."""
    bumps: dict[str, tuple[int, int]] = {}
    for unit in units:
        if unit.run is not None:
            count, steps = bumps.get(unit.run.run_id, (0, 0))
            bumps[unit.run.run_id] = count + 1, steps + sum(row.added for row in unit.rows if type(row) is PutSteps)
    if bumps:
        await session.execute("bump_runs", rows=[(run_id, *bump) for run_id, bump in sorted(bumps.items())])


def _step_row(step: Step) -> tuple[Any, ...]:
    return (step.id, step.run_id, step.parent_id, step.ordinal, step.kind, step.name, step.facet, step.state, step.document)


async def put_checkpoints(session: Session, units: Sequence[Unit]) -> list[UnitAnswer]:
    """Apply units that are checkpoints: one statement checks all claims and stores all steps."""
    rows = [
        (position, unit.guard.task_id, unit.guard.version, unit.guard.owner_id, *_step_row(step))
        for position, unit in enumerate(units)
        if isinstance(unit.guard, Claim)
        for row in unit.rows
        if isinstance(row, PutSteps)
        for step in row.steps
    ]
    held = dict(await session.fetch("put_checkpoints", rows=rows))
    answers = [kept_answer(held[position]) if position in held else CLAIM_LOST for position in range(len(units))]
    if lost := sorted({row[1] for row in rows if row[0] not in held}):
        # The statement had locked those that became ready meanwhile, so that claims skipped them.
        return with_admitted(answers, {row[0] for row in await session.fetch("list_ready_queues_of", ids=lost)})
    return answers


def _batches(changes: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[list[T]]:
    """Yield the changes in batches: the second change of one thing goes into the batch after its first."""
    pending = list(changes)
    while pending:
        batch: dict[Hashable, T] = {}
        later = []
        for change in pending:
            if key(change) in batch:
                later.append(change)
            else:
                batch[key(change)] = change
        yield list(batch.values())
        pending = later


async def _transition_runs(session: Session, transitions: Sequence[RunTransition]) -> None:
    for batch in _batches(sorted(transitions, key=attrgetter("run_id")), attrgetter("run_id")):
        rows = [
            (
                m.run_id,
                m.transition,
                m.from_state,
                m.to_state,
                m.actor,
                m.outputs,
                m.error,
                m.failed_step_id,
                m.data,
                deadline_task_id(m.run_id),
            )
            for m in batch
        ]
        if await session.execute("transition_runs", rows=rows) != len(batch):
            raise IllegalTransition("run", batch[0].run_id, f"not {batch[0].from_state}", batch[0].transition)


def _outcome_row(row: PutOutcome) -> tuple[Any, ...]:
    o = row.outcome
    start = (o.idempotency_key, o.tool_call_id, o.status, o.response_hash, o.response)
    return (*start, o.root_id, o.task_id, o.details, row.in_doubt)


async def find_holders(session: Session, records: Sequence[Record]) -> dict[Name, str]:
    """Return the live records that have the names of these, by name."""
    names = [name_of(record) for record in records if record.name is not None]
    rows = await session.fetch("find_holders", rows=names) if names else []
    return {(row[0], row[1], row[2]): row[3] for row in rows}


class _Refused(Exception):
    """The records of these units exist, or their names are taken: the changes so far must be rolled back."""

    def __init__(self, answers: dict[int, UnitAnswer]) -> None:
        self.answers = answers


async def write_records(session: Session, units: Mapping[int, Unit]) -> dict[int, UnitAnswer]:
    """Change and insert the records of units, by position; or do nothing, and return answers to units that are refused after all.

    Changes existing records first, which may free names.
    """
    new = [(position, record) for position, unit in units.items() for record in new_records([unit])]
    changes = changed_records(units.values())
    if not new:
        await _change_records(session, changes)
        return {}
    created = {record.id for _, record in new}
    try:
        async with session.transaction():
            await _change_records(session, [change for change in changes if change.record_id not in created])
            await _insert_records(session, new)
            await _change_records(session, [change for change in changes if change.record_id in created])
    except _Refused as refused:
        return refused.answers
    return {}


async def write_entry(session: Session, rows: tuple[Row, ...]) -> None:
    """Write the new records of an entry of the log, inside the caller's transaction."""
    if rows:
        await write_records(session, {0: Unit(rows=rows)})


async def _insert_records(session: Session, new: Sequence[tuple[int, Record]]) -> None:
    """Insert the records, because only that shows whether they are new."""
    records = sorted((record for _, record in new), key=lambda record: (record.name or "", record.id))
    inserted = {row[0] for row in await session.fetch("insert_records", records=msgspec.json.encode(records).decode())}
    refused = [(position, record) for position, record in new if record.id not in inserted]
    if not refused:
        return
    existing = {row[0] for row in await session.fetch("list_existing", ids=[record.id for _, record in refused])}
    holders = await find_holders(session, [record for _, record in refused])
    answers: dict[int, UnitAnswer] = {}
    for position, record in refused:
        holder = record.id if record.id in existing else holders.get(name_of(record))
        if holder is None:
            raise StoreBusy(f"The record with the name {record.name} ended at this very moment; try again.")
        answers[position] = DONE if holder == record.id else UnitAnswer(Verdict.DONE, existing={record.name or "": holder})
    raise _Refused(answers)


async def _change_records(session: Session, changes: Sequence[ChangeRecord]) -> None:
    for batch in _batches(changes, attrgetter("record_id")):
        rows = [
            (c.record_id, c.version, c.document, c.transition, c.from_state, c.to_state, c.ended, c.actor, c.data, c.task_id)
            for c in batch
        ]
        if sum(row[0] for row in await session.fetch("change_records", rows=rows)) != len(batch):
            raise IllegalTransition("record", batch[0].record_id, f"not {batch[0].from_state}", batch[0].transition or "change")


async def _put_items(session: Session, items: Mapping[tuple[str, str], str | None]) -> None:
    """Store or remove values of records."""
    if removed := sorted(place for place, value in items.items() if value is None):
        await session.execute("remove_items", rows=removed)
    if stored := sorted((*place, value) for place, value in items.items() if value is not None):
        await session.execute("put_items", rows=stored)


async def _put_messages(session: Session, sent: Sequence[tuple[int, Message]], keys: set[Key], queues: dict[int, set[int]]) -> None:
    """Deliver messages, each with the position of its unit, and wake the runs that await no more of them.

    Adds the queues of woken tasks to `queues`, by unit, and limit keys to `keys`.
    """
    rows = [(message.id, message.run_id, message.step_id, message.name, message.document) for _, message in sent]
    for run_id, queue_id, blocked_by, namespace, limit_key in await session.fetch("put_messages", rows=rows):
        if limit_key is not None and blocked_by:
            keys.add((namespace, limit_key))
        if not blocked_by:
            for unit in {unit for unit, message in sent if message.run_id == run_id}:
                queues.setdefault(unit, set()).add(queue_id)
