"""Servers that report themselves, and the lines that handlers write."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.kernel.store.queries import Membership, Sighting, Touch
from treadle.model.tasks import LogLine, Server
from treadle_conformance.task_steps import new_task, put_and_claim, put_one


def a_server(**fields: Any) -> Server:
    values = {"id": "s-1", "name": "one", "host": "h", "pid": 1, "version": "0.1.0", "state": "running"}
    return Server(**values | fields)


async def test_servers_are_listed_by_namespace_and_those_without_one_in_every_namespace(store):
    for server_id, namespace in (("a", "one"), ("b", "two"), ("c", None)):
        await store.servers.save(a_server(id=server_id, namespace=namespace))
    assert {each.id: each.namespace for each in await store.servers.list_all()} == {"a": "one", "b": "two", "c": None}
    assert {each.id for each in await store.servers.list_all("one")} == {"a", "c"}
    assert {each.id for each in await store.servers.list_all("two")} == {"b", "c"}
    assert {each.id for each in await store.servers.list_all("three")} == {"c"}


async def test_a_heartbeat_keeps_the_namespace_of_a_server(store):
    await store.servers.save(a_server(namespace="one"))
    (touched,) = await store.servers.touch([Touch("s-1", None, 1, 0)])
    assert touched.namespace == "one"
    await store.servers.save(a_server(namespace="two"))
    assert [each.namespace for each in await store.servers.list_all()] == ["two"]


async def test_a_saved_server_is_listed_with_all_its_fields(store, clock):
    server = a_server(
        handlers=["a.B", "c"],
        task_lists=["default"],
        concurrency=8,
        heartbeat_every_for=5_000,
        handled=3,
        failed=2,
        running=1,
    )
    await store.servers.save(server)
    (found,) = await store.servers.list_all()
    assert (found.started_at, found.heartbeat_at) == (clock.now(), clock.now())
    for name in Server.__struct_fields__:
        if name not in ("started_at", "heartbeat_at"):
            assert getattr(found, name) == getattr(server, name), name


async def test_saving_a_server_again_updates_it_and_keeps_when_it_started(store, clock):
    await store.servers.save(a_server(state="starting"))
    started_at = clock.now()
    await clock.advance(3_000)
    await store.servers.save(a_server(state="stopped", handlers=["x"], running=7))
    (found,) = await store.servers.list_all()
    assert (found.state, found.handlers, found.running) == ("stopped", ["x"], 7)
    assert (found.started_at, found.heartbeat_at) == (started_at, clock.now())


async def test_touching_servers_notes_that_they_live_and_adds_to_their_counts(store, clock):
    for number in range(3):
        await store.servers.save(a_server(id=f"s-{number}", handled=3, failed=1, running=5, handlers=["a.*"]))
    await clock.advance(3_000)
    touches = [Touch("s-1", handled=2, failed=1), Touch("s-0", state="stopped", running=0), Touch("s-9")]
    found = {server.id: server for server in await store.servers.touch(touches)}
    assert sorted(found) == ["s-0", "s-1"]
    after = {server.id: server for server in await store.servers.list_all()}
    assert (found["s-0"], found["s-1"]) == (after["s-0"], after["s-1"])
    assert (after["s-1"].handled, after["s-1"].failed, after["s-1"].running, after["s-1"].state) == (5, 2, 5, "running")
    assert (after["s-0"].state, after["s-0"].running, after["s-0"].handled) == ("stopped", 0, 3)
    assert [after[each].heartbeat_at for each in ("s-0", "s-1", "s-2")] == [clock.now(), clock.now(), clock.now() - 3_000]


async def test_a_server_that_has_stopped_is_not_touched(store, clock):
    await store.servers.save(a_server(state="stopped"))
    before = await store.servers.list_all()
    await clock.advance(1_000)
    assert await store.servers.touch([Touch("s-1", handled=1)]) == []
    assert await store.servers.touch([]) == []
    assert await store.servers.list_all() == before


async def test_servers_are_listed_newest_first(store, clock):
    for number in range(3):
        await store.servers.save(a_server(id=f"s-{number}"))
        await clock.advance(1_000)
    await store.servers.save(a_server(id="s-0"))
    assert [server.id for server in await store.servers.list_all()] == ["s-2", "s-1", "s-0"]


async def test_a_heartbeat_counts_the_observable_servers(store, clock, line):
    await store.servers.save(a_server(id="s-0", process="k 1:1"))
    await store.servers.save(a_server(id="s-1", process="k 2:1", state="stopped"))
    await store.servers.save(a_server(id="s-2"))
    await store.servers.save(a_server(id="s-3", process="k 3:1", heartbeat_every_for=1_000))
    assert await line.beat(a_server(id="s-4", process="k 4:1")) == Membership(2)
    await clock.advance(3_000)
    assert await line.beat(a_server(id="s-4", process="k 4:1")) == Membership(2)
    await clock.advance(1)
    assert await line.beat(a_server(id="s-4", process="k 4:1")) == Membership(1)


async def test_servers_that_have_not_ended_are_sighted_except_remote_workers(store, clock):
    for number, state in enumerate(("starting", "running", "draining", "stopped", "error")):
        await store.servers.save(a_server(id=f"s-{number}", state=state, process=f"k {number}:1", heartbeat_every_for=4_000))
    await store.servers.save(a_server(id="remote", pid=0))
    await clock.advance(2_000)
    await store.servers.save(a_server(id="s-1", name="two"))
    found = sorted(await store.servers.list_sightings(), key=lambda each: each.server_id)
    assert found == [
        Sighting("s-0", "one", "k 0:1", 2_000, 4_000),
        Sighting("s-1", "two", None, 0, 10_000),
        Sighting("s-2", "one", "k 2:1", 2_000, 4_000),
    ]


async def test_the_end_of_a_server_is_recorded_once_with_its_evidence(store, clock):
    for number in range(4):
        await store.servers.save(a_server(id=f"s-{number}", running=3))
    await store.servers.save(a_server(id="s-3", state="stopped"))
    await clock.advance(1_000)
    assert sorted(await store.servers.end({"s-0": "process", "s-1": None, "s-3": "session", "s-9": "process"})) == ["s-0", "s-1"]
    assert await store.servers.end({"s-0": "session"}) == []
    assert await store.servers.end({}) == []
    found = {each.id: each for each in await store.servers.list_all()}
    assert [(found[f"s-{n}"].state, found[f"s-{n}"].evidence, found[f"s-{n}"].running) for n in range(4)] == [
        ("stopped", "process", 0),
        ("stopped", None, 0),
        ("running", None, 3),
        ("stopped", None, 0),
    ]
    assert found["s-0"].heartbeat_at == clock.now() - 1_000
    assert [each.server_id for each in await store.servers.list_sightings()] == ["s-2"]


async def test_a_heartbeat_revives_a_server_declared_dead_and_informs_it(store, line):
    server = a_server(process="k 1:1")
    assert await line.beat(server) == Membership(0)
    await store.servers.end({server.id: "process"})
    assert await store.servers.touch([Touch(server.id)]) == []
    assert await line.beat(server) == Membership(0, "process")
    assert await line.beat(server) == Membership(0)
    (found,) = await store.servers.list_all()
    assert (found.state, found.evidence, found.process) == ("running", None, "k 1:1")


async def test_attending_changes_no_field_of_a_server(store):
    await store.servers.save(a_server(process="k 1:1"))
    before = await store.servers.list_all()
    for _ in range(2):
        await store.servers.acquire_liveness_lock("s-1")
    (after,) = await store.servers.list_all()
    assert [msgspec.structs.replace(after, session=None)] == before
    assert [each.has_session for each in await store.servers.list_sightings()] == [None]  # its own session is new, or there is none
    for _ in range(2):
        await store.servers.release_liveness_lock("s-1")
    await store.servers.release_liveness_lock("nobody")


async def test_no_server_has_beaten_in_an_empty_store(store):
    assert await store.servers.list_all() == []


def a_line(task_id: str, number: int, **fields: Any) -> LogLine:
    return LogLine(**{"task_id": task_id, "at": 1_000 + number, "level": "info", "message": f"line {number}"} | fields)


async def test_the_last_lines_of_a_task_are_listed_oldest_first(store):
    task, other = await put_one(store), new_task()
    await store.log.append_lines([a_line(task.id, number) for number in range(5)])
    await store.log.append_lines([a_line(other.id, 99), a_line(task.id, 5)])
    assert [line.message for line in await store.log.list_lines(task.id, 3)] == ["line 3", "line 4", "line 5"]
    assert [line.message for line in await store.log.list_lines(task.id, 100)] == [f"line {number}" for number in range(6)]


async def test_the_last_lines_about_a_run_are_listed_in_the_order_of_writing(store):
    run_id, other_id = (f"0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a7{n}" for n in (3, 4))
    first, second = new_task(), new_task()
    await store.log.append_lines([a_line(first.id, 0, run_id=run_id), a_line(second.id, 1, run_id=run_id)])
    await store.log.append_lines([a_line(first.id, 9, run_id=other_id), a_line(first.id, 8), a_line(first.id, 2, run_id=run_id)])
    lines = await _list_run_lines(store, run_id, 100)
    assert [(line.message, line.task_id, line.run_id) for line in lines] == [
        ("line 0", first.id, run_id),
        ("line 1", second.id, run_id),
        ("line 2", first.id, run_id),
    ]
    assert [line.message for line in await _list_run_lines(store, run_id, 2)] == ["line 1", "line 2"]
    assert (await _list_run_lines(store, new_task().id, 10), await _list_run_lines(store, run_id, 0)) == ([], [])


async def _list_run_lines(store, run_id, limit):
    return [line for _, line in await store.log.page_run_lines(run_id, limit)]


async def test_lines_about_a_run_are_paged_both_ways_by_their_numbers(store):
    run_id = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a73"
    task = new_task()
    lines = [a_line(task.id, number, run_id=run_id) for number in range(5)]
    await store.log.append_lines([*lines, a_line(task.id, 9)])
    found = await store.log.page_run_lines(run_id, 100)
    numbers = [number for number, _ in found]
    assert [line for _, line in found] == lines
    assert numbers == sorted(set(numbers))
    assert await store.log.page_run_lines(run_id, 2) == found[3:]
    assert await store.log.page_run_lines(run_id, 2, before=numbers[3]) == found[1:3]
    assert await store.log.page_run_lines(run_id, 2, after=numbers[0]) == found[1:3]
    assert (await store.log.page_run_lines(run_id, 2, after=numbers[-1]), await store.log.page_run_lines(run_id, 0)) == ([], [])


async def test_a_log_line_round_trips(store):
    run_id, step_id = (f"0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a7{n}" for n in (1, 2))
    line = a_line(new_task().id, 1, level="error", message='ä "x"\n🙂', details='{"a":1}', run_id=run_id, step_id=step_id)
    await store.log.append_lines([line])
    assert await store.log.list_lines(line.task_id, 10) == await _list_run_lines(store, run_id, 10) == [line]


async def test_lines_are_not_fenced(store):
    taken = await put_and_claim(store)
    await store.log.append_lines([a_line(taken.id, 1)])
    assert len(await store.log.list_lines(taken.id, 10)) == 1


async def test_an_empty_list_of_lines_stores_no_row(store):
    await store.log.append_lines([])
    assert await store.log.list_lines(new_task().id, 10) == []
