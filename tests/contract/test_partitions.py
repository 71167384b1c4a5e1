"""Partitions of finished tasks and of the log on PostgreSQL: made ahead of time, and dropped with the old tasks in them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import psycopg
import pytest

from treadle.kernel.store.queries import Pruned
from treadle.kernel.store.retention import DAY_FOR, Retention
from treadle.kernel.store.units import PutRun, Redrive, RunTransition, Unit, Verdict
from treadle.kernel.store.verify import verify
from treadle.model.ids import uuid7
from treadle.model.runs import Run
from treadle.model.tasks import LogLine, Task
from treadle.stores.postgres.partitions import HOUR_FOR, WEEK_FOR
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    WORK,
    claim_one,
    fail,
    get,
    new_task,
    put,
    requeue,
    seen,
    settle,
    succeed,
)

pytestmark = [pytest.mark.parametrize("database", ["postgres"], indirect=True), pytest.mark.new_schema]

_numbers = itertools.count()


def id_at(at: int) -> str:
    return uuid7(at, next(_numbers).to_bytes(10, "big"))


async def ended(store: Any, at: int, settlement: Any = None, **fields: Any) -> str:
    """A task with an id of that instant that ends now, after one retry."""
    task_id = id_at(at)
    await put(store, new_task(id=task_id, **fields))
    task = await claim_one(store, fields.get("queue", WORK))
    await settle(store, task.claim, requeue(task, "retry"))
    task = await claim_one(store, fields.get("queue", WORK))
    await settle(store, task.claim, settlement or succeed())
    return task_id


def parts(database: Any) -> dict[str, int]:
    """The partitions and their numbers of tasks."""
    children = "select c.relname from pg_class as c join pg_inherits on inhrelid = c.oid where inhparent = %s::regclass order by 1"
    found = database.admin.execute(children, [f'"{database.name}".finished']).fetchall()
    return {name.removeprefix("finished_"): len(database.rows(name)) for (name,) in found}


async def in_second_partition(store: Any, database: Any) -> int:
    """Prepare partitions, and advance the clock into the one after `rest`."""
    await store.retention.prepare(Retention(store).rules)
    await database.clock.advance(3 * DAY_FOR)
    return int(database.clock.now())


async def when_droppable(database: Any) -> None:
    await database.clock.advance(31 * DAY_FOR + WEEK_FOR)


async def test_partitions_are_made_ahead_of_time_and_take_new_tasks(database, store):
    assert list(parts(database)) == ["default", "rest"]
    now = await in_second_partition(store, database)
    assert len(parts(database)) == 4  # rest, two of a week, default
    for at in (now - 30 * DAY_FOR, now, now + 300 * DAY_FOR):
        await ended(store, at)
    assert sorted(parts(database).values()) == [0, 1, 1, 1]
    assert parts(database)["default"] == 1
    assert len(database.rows("finished")) == 3
    assert len(database.rows("log")) == 3
    await store.retention.prepare(Retention(store).rules)
    assert len(parts(database)) == 4 + (now + 2 * WEEK_FOR > now + 12 * DAY_FOR)
    assert (await verify(store)).holds


async def test_after_a_long_pause_new_partitions_begin_in_the_future(database, store):
    now = await in_second_partition(store, database)
    await database.clock.advance(100 * DAY_FOR)
    task_id = await ended(store, now + 100 * DAY_FOR)
    assert parts(database)["default"] == 1
    await store.retention.prepare(Retention(store).rules)
    await database.clock.advance(2 * HOUR_FOR)
    await ended(store, database.clock.now())
    assert parts(database)["default"] == 1
    assert (await get(store, task_id)).finished


async def test_a_partition_is_dropped_with_its_expired_tasks_and_transitions(database, store):
    now = await in_second_partition(store, database)
    for _ in range(5):
        await ended(store, now)
    before = parts(database)
    await when_droppable(database)
    report = await Retention(store).prune()
    assert (report.trees, report.tasks, report.transitions) == (5, 5, 5)
    assert database.rows("finished") == []
    assert database.rows("log") == []
    assert next(name for name in before if before[name]) not in parts(database)


async def test_expired_tasks_are_pruned_with_their_partition_unless_an_age_is_given(database, store):
    now = await in_second_partition(store, database)
    for _ in range(3):
        await ended(store, now)
    await database.clock.advance(31 * DAY_FOR)
    assert (await Retention(store).prune(dry_run=True)).tasks == 0
    assert (await Retention(store).prune()).tasks == 0
    assert (await Retention(store).prune(older_than=30 * 86_400)).tasks == 3


async def test_a_list_with_a_short_retention_does_not_wait_for_the_partition(database, store):
    now = await in_second_partition(store, database)
    await Retention(store).keep("default", completed=86_400)
    await ended(store, now)
    await database.clock.advance(2 * DAY_FOR)
    assert (await Retention(store).prune()).tasks == 1


async def test_retained_tasks_survive_a_partition_drop_with_their_transitions(database, store):
    now = await in_second_partition(store, database)
    for _ in range(20):
        await ended(store, now)
    failed = await ended(store, now, fail())
    elsewhere = await ended(store, now, queue=WORK._replace(namespace="elsewhere"))
    await Retention(store).keep("audit", completed=365 * 86_400)
    audited = await ended(store, now, queue=WORK._replace(task_list="audit"))
    parent = await ended(store, now)
    await put(store, new_task(id=id_at(now), root_id=parent, queue=OTHER))
    run_id = id_at(now)
    run = Run(id=run_id, flow_id="f", workflow="w.W", root_id=run_id)
    await store.commit([Unit(rows=(PutRun(run), RunTransition(run_id, "start", "pending", "running")))])
    of_run = await ended(store, now, run_id=run_id, root_id=run_id)
    transitions = {
        task_id: await store.log.list_transitions(task_id) for task_id in (failed, elsewhere, audited, parent, of_run, run_id)
    }
    await when_droppable(database)
    late = id_at(now)
    await put(store, new_task(id=late))
    await settle(store, (await claim_one(store)).claim, succeed())
    await database.clock.advance(2 * MINUTE)
    dropped = await store.retention.drop_expired(Retention(store).rules, 1000)
    assert (dropped.trees, dropped.tasks, dropped.transitions, dropped.more) == (20, 20, 20, True)
    assert (await Retention(store).prune()).tasks == 0
    left = {str(row["id"]) for row in database.rows("finished")}
    assert left == {failed, elsewhere, audited, parent, of_run, late}
    assert {task_id: await store.log.list_transitions(task_id) for task_id in transitions} == transitions
    assert (await verify(store)).holds


async def test_a_task_that_just_ended_keeps_its_partition(database, store):
    now = await in_second_partition(store, database)
    for _ in range(3):
        await ended(store, now)
    await when_droppable(database)
    late = await ended(store, now)
    assert await store.retention.drop_expired(Retention(store).rules, 1000) == Pruned()
    assert (await Retention(store).prune()).tasks == 3  # by their rows
    assert (await get(store, late)).finished


async def test_a_tree_of_several_tasks_is_pruned_as_a_whole(database, store):
    now = await in_second_partition(store, database)
    task_id = await ended(store, now)
    await store.log.append_lines([LogLine(task_id=task_id, at=0, level="info", message="a line")])
    child = await ended(store, now + WEEK_FOR, root_id=task_id)
    await when_droppable(database)
    report = await Retention(store).prune()
    assert (report.trees, report.tasks, report.lines) == (1, 2, 1)
    assert await store.tasks.find(child) is None
    assert database.rows("log") == database.rows("lines") == []


async def test_a_partition_of_mostly_retained_rows_is_not_copied(database, store):
    now = await in_second_partition(store, database)
    await ended(store, now)
    for _ in range(3):
        await ended(store, now, fail())
    before = parts(database)
    await when_droppable(database)
    assert (await Retention(store).prune()).tasks == 1  # by its row
    assert {name: count - (count == 4) for name, count in before.items()}.items() <= parts(database).items()


async def test_dropping_a_partition_respects_concurrent_writers(database, store, postgres_server):
    """A task that ends, and a failed one that is retried, while the partition is being dropped: neither is lost or doubled."""
    now = await in_second_partition(store, database)
    for _ in range(9):
        await ended(store, now)
    failed = await ended(store, now, fail())
    await when_droppable(database)
    last = id_at(now)
    await put(store, new_task(id=last))
    held = await claim_one(store)
    with psycopg.connect(postgres_server, autocommit=False) as other:
        other.execute(f'set search_path to "{database.name}"')
        other.execute("lock table only finished in row exclusive mode")
        dropping = asyncio.create_task(store.retention.drop_expired(Retention(store).rules, 1000))
        for _ in range(10_000):
            waiting = "select from pg_locks where relation = %s::regclass and not granted"
            if dropping.done() or database.admin.execute(waiting, [f'"{database.name}".finished']).fetchall():
                break
            await asyncio.sleep(0)
        other.execute("update finished set fingerprint = 'changed' where id = %s", [failed])
        other.commit()
        await dropping
    await settle(store, held.claim, succeed())
    await Retention(store).prune()
    assert {str(row["id"]): row["fingerprint"] for row in database.rows("finished")}[failed] == "changed"
    assert (await get(store, last)).finished
    assert (await verify(store)).holds


async def test_a_failed_task_in_the_kept_rows_can_be_retried(database, store):
    now = await in_second_partition(store, database)
    for _ in range(9):
        await ended(store, now)
    failed = await ended(store, now, fail())
    await when_droppable(database)
    await Retention(store).prune()
    task: Task = await get(store, failed)
    (answer,) = await store.commit([Unit(seen(task), Redrive("requeue", actor="me"))])
    assert answer.verdict == Verdict.DONE
    await settle(store, (await claim_one(store)).claim, succeed())
    assert (await verify(store)).holds


async def test_an_id_in_an_unfinished_split_ends_and_the_split_is_abandoned(database, store):
    now = database.clock.now()
    database.execute(f"select treadle_bound_part('finished', 'finished_rest', null, treadle_first_id({now}), 'not valid')")
    await ended(store, now + DAY_FOR)
    assert len(database.rows("finished")) == 1
    await store.retention.prepare(Retention(store).rules)
    assert (await verify(store)).holds
