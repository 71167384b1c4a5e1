"""Retention: trees past their time go whole, in bounded transactions, and nothing of an active tree ever does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.kernel.store import retention
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Rules
from treadle.kernel.store.records import ChangeRecord, PutItems, PutOutcome, PutRecord
from treadle.kernel.store.retention import DAY_FOR, Retention
from treadle.kernel.store.units import PutBlob, PutRun, PutSteps, Redrive, RunTransition, Unit, Verdict
from treadle.kernel.store.verify import verify
from treadle.model.errors import NotFound, Refused
from treadle.model.names import QueueKey
from treadle.model.runs import Run, Step
from treadle.model.tasks import LogLine, Server, Task
from treadle_conformance.record_steps import new_message, new_record, outcome, tell, write
from treadle_conformance.task_steps import (
    UNKNOWN_ID,
    WORK,
    cancel,
    claim_one,
    everything,
    fail,
    get,
    ids,
    new_task,
    put,
    put_and_claim,
    put_one,
    requeue,
    seen,
    settle,
    succeed,
)

RULES = Rules("default", 30 * DAY_FOR, 90 * DAY_FOR)


async def ended(store: Store, settlement: Any = None, **fields: Any) -> Task:
    task = await put_and_claim(store, **fields)
    await settle(store, task.claim, settlement or succeed())
    return await get(store, task.id)


async def finished_run(store: Store, *, steps: int = 2, tasks: int = 2, state: str = "completed", blob: str | None = None) -> Run:
    """A run with steps and finished tasks, ended now unless its state is `running`."""
    run_id = ids.new_id()
    run = Run(id=run_id, flow_id="f", workflow="w.W", root_id=run_id)
    rows: list[Any] = [PutRun(run), RunTransition(run_id, "start", "pending", "running")]
    made = tuple(
        Step(id=ids.new_id(), run_id=run_id, parent_id=None, ordinal=n, kind="step", name="s", facet=None, state="c", document="{}")
        for n in range(steps)
    )
    rows.append(PutSteps(run_id, made, steps))
    if blob is not None:
        rows.append(PutBlob(blob, '"big"', run_id))
    members = tuple(new_task(run_id=run_id, root_id=run_id) for _ in range(tasks))
    await store.commit([Unit(tasks=members, rows=tuple(rows))])
    for _ in members:
        task = await claim_one(store)
        assert task.run_id == run_id
        await settle(store, task.claim, succeed())
    if state != "running":
        transition = {"completed": "succeed", "failed": "fail", "canceled": "cancel"}[state]
        await store.commit([Unit(rows=(RunTransition(run_id, transition, "running", state),))])
    if made:
        await store.log.append_lines([LogLine(task_id=made[0].id, at=0, level="info", message="of a step", run_id=run_id)])
    return run


async def prune(store: Store, **options: Any) -> Any:
    return await Retention(store).prune(**options)


# --- what goes and what stays ---


async def test_only_expired_trees_are_pruned(store, clock):
    old = await ended(store)
    await clock.advance(30 * DAY_FOR - 1)
    young, live = await ended(store), await put_one(store)
    assert (await prune(store)).trees == 0
    await clock.advance(1)
    report = await prune(store)
    assert (report.trees, report.tasks) == (1, 1)
    assert await store.tasks.find(old.id) is None
    assert {(await get(store, task.id)).id for task in (young, live)} == {young.id, live.id}
    assert (await verify(store)).checked == 2


@pytest.mark.parametrize(
    ("settlement", "days"), [(succeed(), 30), (cancel(), 30), (fail(), 90)], ids=["completed", "canceled", "failed"]
)
async def test_each_end_is_kept_for_its_own_time(store, clock, settlement, days):
    task = await ended(store, settlement)
    await clock.advance(days * DAY_FOR - 1)
    assert (await prune(store)).trees == 0
    await clock.advance(1)
    assert (await prune(store)).trees == 1
    assert await store.tasks.find(task.id) is None


async def test_pruning_a_tree_removes_only_its_records_messages_and_outcomes(database, store, clock):
    run, live = await finished_run(store, state="running", tasks=1), await finished_run(store, state="running", tasks=1)
    kept = await write(store, PutRecord(of_live := new_record(root_id=live.id, run_id=live.id)), PutOutcome(outcome(live.id)))
    assert kept.verdict == "done"
    records = [new_record(root_id=run.id) for _ in range(3)]
    puts = [PutOutcome(outcome(run.id, idempotency_key=f"of-run-{n}")) for n in range(3)]
    await write(store, *map(PutRecord, records), PutItems(records[0].id, (("a", "1"),)), *puts)
    vote = {"transition": "vote", "from_state": "pending", "to_state": "pending"}
    await write(store, *(ChangeRecord(record.id, 0, "{}", **vote) for record in records))
    await tell(store, new_message(run), new_message(live))
    await write(store, RunTransition(run.id, "succeed", "running", "completed"))
    await clock.advance(31 * DAY_FOR)
    report = await prune(store)
    assert (report.trees, report.runs, report.records, report.outcomes, report.transitions) == (1, 1, 3, 3, 5)
    assert [await store.records.find(record.id) for record in records] == [None] * 3
    assert await store.log.list_transitions(records[0].id) == []
    assert await store.records.list_items(records[0].id, None, 10) == []
    assert await store.records.list_messages(run.id, 10) == []
    assert await store.records.find_outcomes([f"of-run-{n}" for n in range(3)]) == []
    assert (await store.records.find(of_live.id)) is not None
    assert len(await store.records.list_messages(live.id, 10)) == 1
    assert len(await store.records.find_outcomes(["key-1"])) == 1
    assert (await verify(store)).problems == ()


async def test_records_and_outcomes_of_a_tree_go_in_bounded_transactions(store, clock):
    run = await finished_run(store, tasks=1, steps=0)
    await write(store, *(PutRecord(new_record(root_id=run.id)) for _ in range(7)))
    await write(store, *(PutOutcome(outcome(run.id, idempotency_key=f"k{n}")) for n in range(7)))
    await clock.advance(31 * DAY_FOR)
    pruned = []
    while not pruned or pruned[-1].more:
        pruned.append(await store.retention.prune_trees(RULES, [run.id], 4))
        assert pruned[-1].tasks + pruned[-1].records + pruned[-1].outcomes <= 4
        assert len(pruned) < 10
    assert [sum(getattr(each, name) for each in pruned) for name in ("records", "outcomes", "runs", "trees")] == [7, 7, 1, 1]
    assert await store.runs.find(run.id) is None


async def test_pruning_a_tree_removes_all_its_rows(store, clock):
    run = await finished_run(store, blob="d1")
    retried = await put_and_claim(store)
    await settle(store, retried.claim, requeue(retried, "retry", attempt=2, failures=1))
    await settle(store, (await claim_one(store)).claim, succeed())
    await store.log.append_lines([LogLine(task_id=retried.id, at=0, level="info", message="of a task")])
    await clock.advance(31 * DAY_FOR)
    report = await prune(store)
    assert (report.trees, report.tasks, report.runs, report.steps, report.lines, report.blobs) == (2, 3, 1, 2, 2, 1)
    assert report.transitions == 3
    assert await store.runs.find(run.id) is None
    assert await store.runs.list_steps(run.id, None, 10) == []
    assert await store.runs.find_blobs(["d1"]) == {}
    assert await store.log.list_lines(retried.id, 10) == []
    assert await store.log.list_transitions(retried.id) == await store.log.list_transitions(run.id) == []
    assert await store.log.list_histories(None, 10) == []


async def test_a_pruned_tree_leaves_no_row_in_any_table(database, store, clock):
    await finished_run(store, blob="d1")
    await ended(store)
    await clock.advance(31 * DAY_FOR)
    await prune(store)
    for table in ("tasks", "finished", "log", "lines", "runs", "steps", "blobs", "blob_uses"):
        assert database.rows(table) == [], table


async def test_a_run_without_tasks_is_pruned_too(store, clock):
    run = await finished_run(store, tasks=0)
    await clock.advance(31 * DAY_FOR)
    assert (await prune(store, dry_run=True)).trees == 1
    assert (await prune(store)).runs == 1
    assert await store.runs.find(run.id) is None


async def test_only_the_own_namespace_is_pruned(store, clock):
    foreign = await ended(store, queue=QueueKey("elsewhere", "handler", "default", "work"))
    own = await ended(store)
    await clock.advance(31 * DAY_FOR)
    assert (await prune(store)).trees == 1
    assert await store.tasks.find(own.id) is None
    assert (await get(store, foreign.id)).id == foreign.id


# --- active trees ---


async def test_no_row_is_pruned_from_a_tree_with_a_live_task(store, clock):
    root = await ended(store)
    child = await ended(store, root_id=root.id)
    live = await put_one(store, root_id=root.id, delay=365 * DAY_FOR)
    await clock.advance(91 * DAY_FOR)
    before = await everything(store)
    assert (await prune(store)).trees == 0
    assert await everything(store) == before
    assert (await settle(store, seen(await get(store, live.id)), cancel())) == Verdict.DONE
    assert (await prune(store)).trees == 0
    await clock.advance(31 * DAY_FOR)
    report = await prune(store)
    assert (report.trees, report.tasks) == (1, 3)
    assert await store.tasks.find(child.id) is None


async def test_no_row_is_pruned_from_a_tree_with_a_live_root(store, clock):
    root = await put_one(store, delay=365 * DAY_FOR)
    await ended(store, root_id=root.id)
    await clock.advance(91 * DAY_FOR)
    assert (await prune(store)).trees == 0


async def test_no_row_is_pruned_from_an_unfinished_run(store, clock):
    run = await finished_run(store, state="running")
    await clock.advance(91 * DAY_FOR)
    before = await everything(store)
    assert (await prune(store)).trees == 0
    assert await everything(store) == before
    assert len(await store.runs.list_steps(run.id, None, 10)) == 2


async def test_a_tree_is_kept_as_a_whole_while_any_part_is_retained(store, clock):
    root = await ended(store)
    failed = await ended(store, fail(), root_id=root.id)
    await clock.advance(89 * DAY_FOR)
    assert (await prune(store)).trees == 0
    await clock.advance(DAY_FOR)
    assert (await prune(store)).tasks == 2
    assert await store.tasks.find(failed.id) is None


async def test_a_tree_redriven_between_scan_and_removal_is_kept(store, clock):
    task = await ended(store, fail())
    await clock.advance(91 * DAY_FOR)
    page = await store.retention.find_prunable(RULES, None, 10)
    assert page.roots == (task.id,)
    await settle(store, seen(task), Redrive("requeue", "ann"))
    pruned = await store.retention.prune_trees(RULES, page.roots, 100)
    assert (pruned.trees, pruned.tasks, pruned.more) == (0, 0, False)
    assert (await get(store, task.id)).state == "pending"
    assert (await verify(store)).problems == ()


async def test_one_tree_can_be_pruned_on_demand_but_not_while_it_is_active(store):
    done, live = await ended(store), await put_one(store)
    retention = Retention(store)
    with pytest.raises(Refused):
        await retention.prune_tree(live.id)
    with pytest.raises(NotFound):
        await retention.prune_tree(UNKNOWN_ID)
    assert (await retention.prune_tree(done.id)).tasks == 1
    assert await store.tasks.find(done.id) is None
    assert (await get(store, live.id)).state == "pending"


# --- rules ---


async def test_a_lists_own_rules_win_in_both_directions(database, store, clock):
    short, long = QueueKey("default", "handler", "short", "work"), QueueKey("default", "handler", "long", "work")
    for queue in (short, long, WORK):
        await ended(store, queue=queue)
        await ended(store, fail(), queue=queue)
    columns = "namespace, task_list, keep_completed_for, keep_failed_for"
    database.execute(f"insert into lists ({columns}) values ('default', 'short', 1000, {DAY_FOR})")
    database.execute(f"insert into lists ({columns}) values ('default', 'long', {365 * DAY_FOR}, null)")
    await clock.advance(1000)
    assert (await prune(store)).tasks == 1
    await clock.advance(2 * DAY_FOR)
    assert (await prune(store)).tasks == 1
    await clock.advance(91 * DAY_FOR)
    assert (await prune(store, older_than=1)).tasks == 3
    assert len(database.rows("finished")) == 1


async def test_older_than_replaces_the_default_rules(store, clock):
    await ended(store)
    await ended(store, fail())
    await clock.advance(7 * DAY_FOR)
    assert (await prune(store, older_than=7 * 86_400 + 1)).trees == 0
    assert (await prune(store, older_than=7 * 86_400)).trees == 2


# --- big values, keys, servers ---


async def test_a_big_value_is_pruned_with_its_last_user(store, clock):
    first = await ended(store)
    await store.commit([Unit(rows=(PutBlob("d1", '"big"', first.id),))])
    await clock.advance(10 * DAY_FOR)
    second = await ended(store)
    await store.commit([Unit(rows=(PutBlob("d1", '"big"', second.id),))])
    await clock.advance(21 * DAY_FOR)
    assert ((await prune(store)).trees, await store.runs.find_blobs(["d1"])) == (1, {"d1": '"big"'})
    await clock.advance(10 * DAY_FOR)
    assert ((await prune(store)).blobs, await store.runs.find_blobs(["d1"])) == (1, {})


async def test_servers_long_gone_are_forgotten(store, clock):
    for name in ("old", "new"):
        await store.servers.save(Server(id=name, name=name, host="h", pid=1, version="1", state="running"))
        await clock.advance(5 * DAY_FOR)
    assert (await prune(store)).servers == 1
    assert [server.id for server in await store.servers.list_all()] == ["new"]


# --- bounds ---


async def test_a_big_tree_is_pruned_in_bounded_steps(store, clock):
    run = await finished_run(store, steps=30, tasks=20, blob="d1")
    await store.log.append_lines([LogLine(task_id=run.id, at=0, level="info", message="not of a task")])
    await clock.advance(31 * DAY_FOR)
    (root_id,) = (await store.retention.find_prunable(RULES, None, 100)).roots
    rounds = []
    while (pruned := await store.retention.prune_trees(RULES, [root_id], 8)).more:
        rounds.append(pruned)
        assert pruned.tasks + pruned.steps + pruned.lines <= 8
        assert await store.runs.find(run.id) is not None
    assert len(rounds) >= 6
    assert (pruned.trees, pruned.runs, pruned.blobs) == (1, 1, 1)
    assert sum(each.tasks for each in (*rounds, pruned)) == 20
    assert await store.log.list_histories(None, 10) == []


async def test_a_tree_half_pruned_by_a_crash_is_pruned_by_the_next_pass(store, clock):
    run = await finished_run(store, steps=10, tasks=10)
    await clock.advance(31 * DAY_FOR)
    assert (await store.retention.prune_trees(RULES, [run.id], 15)).more
    report = await prune(store)
    assert (report.trees, report.runs) == (1, 1)
    assert await store.runs.list_steps(run.id, None, 10) == []


async def test_a_prune_pass_visits_every_end_once_and_stops_at_the_retention_age(store, clock):
    old = [await ended(store) for _ in range(7)]
    await clock.advance(31 * DAY_FOR)
    for _ in range(9):
        await ended(store)
    cursor, met, looks = None, [], 0
    while True:
        page = await store.retention.find_prunable(RULES, cursor, 3, count=True)
        met += page.roots
        looks += 1
        if page.cursor is None:
            break
        cursor = page.cursor
    assert sorted(met) == sorted(task.id for task in old)
    assert looks <= 5


async def test_a_dry_run_counts_prunable_rows_and_keeps_them(store, clock):
    root = await ended(store)
    for _ in range(4):
        await ended(store, root_id=root.id)
    await finished_run(store)
    await ended(store, fail())
    await clock.advance(31 * DAY_FOR)
    before = await everything(store)
    report = await prune(store, dry_run=True)
    assert (report.trees, report.tasks, report.dry_run) == (2, 7, True)
    assert await everything(store) == before
    done = await prune(store)
    assert (done.trees, done.tasks) == (report.trees, report.tasks)


async def test_a_prune_pass_may_run_in_steps_of_few_transactions(store, clock, monkeypatch):
    root = await ended(store)
    for _ in range(9):
        await ended(store, root_id=root.id)
    for _ in range(3):
        await finished_run(store, steps=5, tasks=3, blob="b" * 64)
    left = await put_one(store)
    await clock.advance(31 * DAY_FOR)
    monkeypatch.setattr(retention, "ROWS", 3)
    monkeypatch.setattr(retention, "TRANSACTIONS", 1)
    monkeypatch.setattr(retention, "GROUP", 1)
    parts, after = [], retention.START
    while after is not None:
        parts.append(await Retention(store).prune_some(after=after))
        after = parts[-1].next_after
    counts = [(part.trees, part.tasks, part.runs, part.steps, part.blobs) for part in parts]
    assert [sum(column) for column in zip(*counts, strict=True)] == [4, 19, 3, 15, 1]
    assert len(parts) > 4
    assert (await get(store, left.id)).state == "pending"
    assert (await verify(store)).problems == ()


async def test_concurrent_pruning_removes_each_tree_once(database, store, clock):
    for _ in range(40):
        await ended(store)
    await clock.advance(31 * DAY_FOR)
    page = await store.retention.find_prunable(RULES, None, 100)
    done = await asyncio.gather(*[store.retention.prune_trees(RULES, page.roots, 1000) for _ in range(4)])
    assert sum(pruned.tasks for pruned in done) == 40
    assert await store.log.list_histories(None, 10) == []


async def test_a_concurrent_retry_and_removal_leave_a_complete_task_or_none(store, clock):
    tasks = [await ended(store, fail()) for _ in range(30)]
    await clock.advance(91 * DAY_FOR)
    roots = (await store.retention.find_prunable(RULES, None, 100)).roots
    answers, pruned = await asyncio.gather(
        store.commit([Unit(seen(task), Redrive("requeue", "ann")) for task in tasks]),
        store.retention.prune_trees(RULES, roots, 1000),
    )
    redriven = sum(answer.verdict is Verdict.DONE for answer in answers)
    assert redriven + pruned.tasks == 30
    assert (await verify(store)).checked == redriven
    assert (await verify(store)).problems == ()


async def test_dropping_expired_partitions_and_pruning_remove_only_expired_trees(store, clock):
    """The sum is the same on a store that has no such means."""
    for _ in range(2):
        await store.retention.prepare(RULES)
    await clock.advance(3 * DAY_FOR)
    old = [await ended(store) for _ in range(3)]
    failed = await ended(store, fail())
    run = await finished_run(store, state="running")
    await clock.advance(45 * DAY_FOR)
    young = await ended(store)
    dropped = [await store.retention.drop_expired(RULES, 1000)]
    while dropped[-1].more:
        dropped.append(await store.retention.drop_expired(RULES, 1000))
    parts = [*dropped, await prune(store)]
    assert (sum(part.trees for part in parts), sum(part.tasks for part in parts)) == (3, 3)
    assert [await store.tasks.find(task.id) for task in old] == [None] * 3
    assert (await get(store, failed.id), await get(store, young.id)) == (failed, young)
    assert await store.runs.find(run.id) is not None
    assert (await verify(store)).holds


async def test_pruning_an_empty_store_is_not_an_error(store):
    assert (await prune(store)).trees == 0
    assert (await store.retention.prune_trees(RULES, [], 10)).trees == 0
    assert (await put(store, new_task())).verdict == Verdict.DONE


async def test_a_big_value_reused_during_pruning_is_kept(database, store, clock):
    other = await database.open_store()
    for number in range(15):
        digest = f"d{number}"
        old = await ended(store)
        await store.commit([Unit(rows=(PutBlob(digest, '"big"', old.id),))])
        await clock.advance(31 * DAY_FOR)
        new = new_task(delay=1000)
        unit = Unit(tasks=(new,), rows=(PutBlob(digest, '"big"', new.id),))
        pruned, answers = await asyncio.gather(store.retention.prune_trees(RULES, [old.id], 100), other.commit([unit]))
        assert (pruned.trees, answers[0].verdict) == (1, Verdict.DONE)
        assert await store.runs.find_blobs([digest]) == {digest: '"big"'}
