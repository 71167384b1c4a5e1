"""Streams: offsets without gaps, writers fenced by their claims, generations, limits, and pruning with the tree."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from treadle.kernel.store.ports import STREAM, Store
from treadle.kernel.store.records import AppendStream
from treadle.kernel.store.retention import Retention
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.tasks import Claim, Task
from treadle_conformance.task_steps import MINUTE, UNKNOWN_ID, claim_one, put_and_claim, settle, succeed


def append(task: Task, *entries: Any, session: str | None = None, start: int = 0, **fields: Any) -> AppendStream:
    """Entries of an attempt, by default the first ones."""
    values: dict[str, Any] = {
        "owner_id": task.id,
        "name": "tokens",
        "namespace": task.namespace,
        "root_id": task.root_id,
        "writer": task.id,
        "session": str(task.claim_version) if session is None else session,
        "start": start,
        "entries": json.dumps(list(entries), ensure_ascii=False, separators=(",", ":")),
        "count": len(entries),
        "limit": 1000,
    }
    return AppendStream(**values | fields)


async def write(store: Store, guard: Claim, *rows: AppendStream) -> Verdict:
    return (await store.commit([Unit(guard, rows=rows)]))[0].verdict


async def shown(store: Store, owner_id: str, name: str = "tokens", offset: int = 0) -> list[tuple[int, str, int, Any]]:
    """Everything from an offset on: offset, kind, generation, and the entries."""
    found = await store.streams.list_chunks(owner_id, name, offset, 1000)
    return [(chunk.first_offset, chunk.kind, chunk.generation, json.loads(chunk.entries)) for chunk in found]


async def take_over(store: Store, clock: Any) -> Task:
    await clock.advance(MINUTE + 1)
    await store.tasks.wake(1000, expire_leases=True)
    return await claim_one(store, owner="owner-2")


async def test_entries_of_a_stream_are_appended_in_order(store: Store) -> None:
    task = await put_and_claim(store)
    assert await store.streams.list_of([task.id]) == []
    assert await write(store, task.claim, append(task, "a", {"ü": 1})) == "done"
    await store.commit([Unit(task.claim, rows=(append(task, "b", start=2), append(task, 1.5, name="other")))])
    assert await shown(store, task.id) == [(0, "entries", 1, ["a", {"ü": 1}]), (2, "entries", 1, ["b"])]
    assert await shown(store, task.id, "other") == [(0, "entries", 1, [1.5])]
    assert [(each.name, each.next_offset, each.truncated) for each in await store.streams.list_of([task.id, UNKNOWN_ID])] == [
        ("other", 1, False),
        ("tokens", 3, False),
    ]
    assert await store.streams.count_entries(task.id, "tokens", task.id) == 3
    assert await store.streams.count_entries(task.id, "tokens", "nobody") == 0


async def test_a_stream_is_read_from_any_offset_in_pages(store: Store) -> None:
    task = await put_and_claim(store)
    for start in range(0, 9, 3):
        await write(store, task.claim, append(task, start, start + 1, start + 2, start=start))
    for offset in range(9):
        assert (await shown(store, task.id, offset=offset))[0][0] == offset // 3 * 3
    assert [chunk.first_offset for chunk in await store.streams.list_chunks(task.id, "tokens", 4, 1)] == [3]
    assert [chunk.first_offset for chunk in await store.streams.list_chunks(task.id, "tokens", 9, 10)] == [6]


async def test_resent_entries_are_appended_once(store: Store) -> None:
    task = await put_and_claim(store)
    for _ in range(2):
        await write(store, task.claim, append(task, "a", "b"))
    await store.commit([Unit(task.claim, rows=(append(task, "c", start=2),))] * 2)
    assert await shown(store, task.id) == [(0, "entries", 1, ["a", "b"]), (2, "entries", 1, ["c"])]


async def test_a_writer_that_lost_its_claim_cannot_append(store: Store, clock: Any) -> None:
    lost = await put_and_claim(store)
    await write(store, lost.claim, append(lost, "a"))
    now = await take_over(store, clock)
    assert await write(store, lost.claim, append(lost, "late", start=1)) == "claim_lost"
    assert await write(store, now.claim, append(now, "b")) == "done"
    assert await write(store, lost.claim, append(lost, "later", start=1)) == "claim_lost"
    assert [row[3] for row in await shown(store, now.id)] == [["a"], {"generation": 1, "since": 0}, ["b"]]


async def test_another_attempt_begins_a_generation_with_a_notice(store: Store, clock: Any) -> None:
    first = await put_and_claim(store)
    await write(store, first.claim, append(first, "a", "b"), append(first, "x", writer="step"))
    second = await take_over(store, clock)
    await write(store, second.claim, append(second, "A"))
    await write(store, second.claim, append(second, "B", start=1))
    assert await shown(store, first.id) == [
        (0, "entries", 1, ["a", "b"]),
        (2, "entries", 1, ["x"]),
        (3, "abandoned", 2, {"generation": 1, "since": 0}),
        (4, "entries", 2, ["A"]),
        (5, "entries", 2, ["B"]),
    ]
    third = await take_over(store, clock)
    for _ in range(2):  # it has written nothing yet
        await write(store, third.claim, append(third))
    assert (await shown(store, first.id)) == [
        (2, "entries", 1, ["x"]),
        (3, "abandoned", 2, {"generation": 1, "since": 0}),
        (4, "entries", 2, ["A"]),
        (5, "entries", 2, ["B"]),
        (6, "abandoned", 3, {"generation": 2, "since": 3}),
    ]


async def test_a_session_that_continues_is_not_replaced(store: Store) -> None:
    task = await put_and_claim(store)
    await write(store, task.claim, append(task, "a", continues=True))
    await write(store, task.claim, append(task, "b", session="2"))
    await write(store, task.claim, append(task, session="2", start=1, continues=True))
    await write(store, task.claim, append(task, "c", session="3"))
    await write(store, task.claim, append(task, "d", session="4"))
    assert [(row[1], row[2]) for row in await shown(store, task.id)] == [
        ("entries", 1),
        ("entries", 1),
        ("entries", 1),
        ("abandoned", 2),
        ("entries", 2),
    ]


async def test_a_full_stream_drops_entries_until_some_are_abandoned(store: Store) -> None:
    task = await put_and_claim(store)
    big = "x" * 600
    await write(store, task.claim, append(task, big))
    await write(store, task.claim, append(task, big, start=1))
    await write(store, task.claim, append(task, "small", start=2), append(task, "too", writer="step"))
    (stream,) = await store.streams.list_of([task.id])
    assert (stream.next_offset, stream.truncated) == (2, True)
    assert await shown(store, task.id) == [(0, "entries", 1, [big]), (1, "truncated", 1, None)]
    await write(store, task.claim, append(task, big, session="2"), append(task, "b", session="2", start=1, truncated=True))
    (stream,) = await store.streams.list_of([task.id])
    assert (stream.truncated, stream.bytes < 1000) == (True, True)
    assert [row[1] for row in await shown(store, task.id, offset=2)] == ["abandoned", "entries", "entries", "truncated"]


async def test_attempts_of_one_run_append_to_one_stream_concurrently(store: Store) -> None:
    tasks = [await put_and_claim(store) for _ in range(4)]
    owner = tasks[0].id
    for start in range(3):
        await asyncio.gather(*(write(store, each.claim, append(each, each.id, owner_id=owner, start=start)) for each in tasks))
    chunks = await store.streams.list_chunks(owner, "tokens", 0, 100)
    assert [chunk.first_offset for chunk in chunks] == list(range(12))
    assert sorted(chunk.writer for chunk in chunks) == sorted(each.id for each in tasks for _ in range(3))


async def test_the_last_entries_are_stored_with_the_end_or_not_at_all(store: Store) -> None:
    task = await put_and_claim(store)
    ended = Unit(task.claim, succeed(), rows=(append(task, "last"),))
    for _ in range(2):
        assert (await store.commit([ended]))[0].verdict == "done"
    assert [row[3] for row in await shown(store, task.id)] == [["last"]]
    other = await put_and_claim(store)
    await settle(store, other.claim, succeed())
    await store.commit([Unit(other.claim, succeed(), rows=(append(other, "late"),))])
    assert await shown(store, other.id) == []


async def test_streams_go_with_their_tree_in_bounded_transactions(store: Store, clock: Any) -> None:
    kept, task = await put_and_claim(store), await put_and_claim(store)
    await write(store, kept.claim, append(kept, "kept"))
    for start in range(5):
        await write(store, task.claim, append(task, start, start=start))
    await settle(store, task.claim, succeed())
    await clock.advance(1)
    retention = Retention(store, keep_completed_for=0)
    pruned = [await store.retention.prune_trees(retention.rules, [task.id], 3)]
    assert (pruned[0].more, pruned[0].chunks) == (True, 2)
    while pruned[-1].more:
        pruned.append(await store.retention.prune_trees(retention.rules, [task.id], 3))
    assert (sum(each.chunks for each in pruned), sum(each.trees for each in pruned)) == (5, 1)
    assert (await store.streams.list_of([task.id, kept.id]))[0].owner_id == kept.id
    assert await shown(store, task.id) == []
    assert len(await shown(store, kept.id)) == 1


async def test_subscribers_are_notified_of_entries(store: Store) -> None:
    heard: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
    stop = await store.subscribe(heard.put_nowait)
    await store.notify((STREAM,))
    while (queue_ids := await heard.get()) not in ((STREAM,), ()):
        pass
    stop()
    assert queue_ids in ((STREAM,), ())
