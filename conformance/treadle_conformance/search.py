"""Search: tags, words of errors and beginnings of ids; every query returns exactly the records that match it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from treadle.kernel.core import Core
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.search import service
from treadle.kernel.search.plan import Subject, error_text, matches
from treadle.kernel.search.query import parse
from treadle.kernel.search.service import Search
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.database import ScanRange
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.store.queries import NEWEST, Place, Rules, RunFilter, TaskFilter
from treadle.kernel.store.units import Finish, PutRun, PutTags, RunTransition, Unit
from treadle.kernel.store.value_store import ValueStore
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.tags import check_tags
from treadle.model.values import encode
from treadle_conformance.run_steps import new_run
from treadle_conformance.suite import StoreClock
from treadle_conformance.task_steps import claim, new_task

ERRORS = (
    "Connection timeout to host-7",
    "disk full: ENOSPC at /var/Lib",
    "timeouts: 3; naïve ÜBER-retry",
    "a" * 80 + " tail",
    None,
)
NAMES = ("import.Files", "import.Rows", "shop.Checkout", "Import")
RUNS = 60


def tagged(number: int) -> dict[str, str]:
    given: dict[str, Any] = {"customer": ("acme", "b & c", "ACME")[number % 3], "n": number % 7 - 2.5, "paid": number % 2 == 0}
    if number % 5 == 0:
        given["due"] = f"2026-11-{number % 28 + 1:02}T09:00:00Z"
    return {} if number % 11 == 0 else check_tags(given)


async def fill(store: Store, clock: StoreClock) -> dict[str, Subject]:
    """Store runs of all kinds, some created in the same millisecond; return their searchable records, by id."""
    subjects: dict[str, Subject] = {}
    for number in range(RUNS):
        error, inputs = ERRORS[number % len(ERRORS)], {"order": {"id": number % 4, "lines": [{"sku": f"s{number % 3}"}, None]}}
        run = new_run(workflow=NAMES[number % len(NAMES)], inputs=encode(inputs), namespace=DEFAULT_NAMESPACE)
        state, transition = ("running", None) if number % 3 == 0 else ("failed", "fail") if error else ("completed", "succeed")
        outputs = encode({"total": number}) if state == "completed" else None
        text = encode({"code": "handler_error", "message": error}) if state == "failed" else None
        rows: list[Any] = [PutRun(run), RunTransition(run.id, "start", "pending", "running")]
        if transition:
            rows.append(RunTransition(run.id, transition, "running", state, outputs=outputs, error=text))
        tags = tagged(number)
        await store.commit([Unit(rows=(*rows, PutTags("run", run.id, tuple(tags.items()))))])
        stored = await store.runs.find(run.id)
        assert stored is not None
        facts = {"state": state, "name": run.workflow, "kind": "workflow", "list": run.task_list, "id": run.id}
        if state == "running":
            facts["activity"] = "stuck"
        found = None if text is None else error_text({"code": "handler_error", "message": error})
        values = {"input": inputs} | ({} if outputs is None else {"output": {"total": number}})
        subjects[run.id] = Subject(facts, stored.created_at, stored.finished_at, found, tags, **values)
        if number % 4 == 0:
            await clock.advance(1000)
    return subjects


def make_condition(random: Random, started: int) -> str:
    at = f"{random.randrange(20)}s ago"
    return random.choice(
        [
            f"state {random.choice(['=', '!='])} {random.choice(['running', 'failed', 'completed', 'paused'])}",
            "state in (failed, completed)",
            f"name = {random.choice([*NAMES, 'import*', 'imp*', 'nothing*', 'I*'])}",
            f"tag.customer {random.choice(['=', '!=', '<', '>='])} {random.choice(['acme', 'ACME', chr(34) + 'b & c' + chr(34)])}",
            "tag.customer in (acme, ACME)",
            f"tag.n {random.choice(['=', '>', '<=', '!='])} {random.choice(['0.5', '-2.5', '3', '1e2'])}",
            f"tag.paid = {random.choice(['true', 'false'])}",
            f"tag.due {random.choice(['>', '<='])} 2026-11-10",
            f"tag.{random.choice(['due', 'customer', 'other'])} exists",
            f"created {random.choice(['>', '>=', '<', '<='])} {at}",
            f"finished {random.choice(['>', '<'])} {at}",
            'error ~ "'
            + random.choice(["timeout", "TIMEOUT host", "time*", "enospc var", "über*", "naïve", "a" * 80, "7", "x"])
            + '"',
            f"input.order.id {random.choice(['=', '>'])} {random.randrange(4)}",
            f"input.order.lines[0].sku = s{random.randrange(3)}",
            "input.order.lines[1] = null",
            f"output.total >= {random.randrange(RUNS)}",
            "activity = stuck",
            "error exists",
        ]
    )


def make_query(random: Random, started: int, depth: int = 0) -> str:
    roll = random.random()
    if depth > 2 or roll < 0.35:
        return make_condition(random, started)
    if roll < 0.45:
        return f"not ({make_query(random, started, depth + 1)})"
    joint = " and " if roll < 0.8 else " or "
    parts = [make_query(random, started, depth + 1) for _ in range(random.choice([2, 2, 3]))]
    return joint.join(f"({part})" for part in parts)


def search_of(store: Store) -> Search:
    values, clock = ValueStore(store, None), SystemClock()
    core = Core(store, Committer(store, clock), values, SystemIds(), clock)
    return Search(core, RunReads(core).list_by_activity, encoded=False)


async def pages(search: Search, where: str, limit: int) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await search.list_runs(where, before_id=cursor, limit=limit)
        found += [run.id for run in page.records]
        if (cursor := page.cursor) is None:
            return found


async def test_a_query_finds_exactly_the_runs_that_match_it_newest_first(
    store: Store, clock: StoreClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = await fill(store, clock)
    search, random = search_of(store), Random(19)
    order = sorted(subjects, key=lambda each: (subjects[each].created_at, each), reverse=True)
    monkeypatch.setattr(service, "VALUES_LIMIT", 25)
    for turn in range(120):
        if turn == 60:
            monkeypatch.setattr(service, "ROWS_LIMIT", 25)
        where = make_query(random, 0)
        query, now = parse(where), await store.now()
        wanted = [each for each in order if matches(query, subjects[each], now)]
        assert await pages(search, where, random.choice([3, 7, 100])) == wanted, where


async def test_tasks_are_found_by_tags_and_words_whether_live_or_finished(store: Store, clock: StoreClock) -> None:
    made = [new_task(), new_task(), new_task()]
    rows = tuple(PutTags("task", task.id, tuple(check_tags({"customer": "acme"}).items())) for task in made[:2])
    await store.commit([Unit(tasks=tuple(made), rows=rows)])
    (held,) = [task for task in await claim(store) if task.id == made[0].id]
    error = encode({"code": "handler_error", "message": "Disk full"})
    late = PutTags("task", held.id, tuple(check_tags({"customer": "b", "tries": 2}).items()))
    await store.commit([Unit(held.claim, Finish("fail", "failed", error=error, error_code="handler_error"), rows=(late,))])
    search = search_of(store)

    async def found(where: str) -> list[int]:
        ids = [task.id for task in made]
        return sorted(ids.index(task.id) for task in (await search.list_tasks(where)).records)

    assert (await found("tag.customer = acme"), await found("tag.customer = b")) == ([1], [0])
    assert (await found("tag = acme"), await found("tag in (2, x)"), await found("tag = 2 and tag = acme")) == ([1], [0], [])
    assert await found("not tag = b") == [1, 2]
    assert await store.search.list_tag_keys("task", DEFAULT_NAMESPACE, 10) == ["customer", "tries"]
    assert await store.search.list_tag_keys("task", DEFAULT_NAMESPACE, 1) == ["customer"]
    assert await store.search.list_tag_keys("run", DEFAULT_NAMESPACE, 10) == []
    assert (await found("tag.tries = 2"), await found('error ~ "full disk"')) == ([0], [0])
    assert await found("not tag.customer exists") == [2]
    assert await found("state = failed or not tag.customer exists") == [0, 2]
    assert await store.search.list_tags([task.id for task in made]) == {
        made[0].id: check_tags({"customer": "b", "tries": 2}),
        made[1].id: check_tags({"customer": "acme"}),
    }
    await clock.advance(10_000)
    await store.retention.prune_trees(Rules(DEFAULT_NAMESPACE, 0, 0), [made[0].id], 1000)
    assert (await store.search.list_tags([made[0].id]), await found("error exists")) == ({}, [])


async def test_tags_of_a_record_that_does_not_exist_are_not_stored_and_their_number_is_bounded(store: Store) -> None:
    run = new_run(namespace=DEFAULT_NAMESPACE)
    await store.commit([Unit(rows=(PutTags("run", run.id, (("a", "s1"),)),))])
    assert await store.search.list_tags([run.id]) == {}
    await store.commit([Unit(rows=(PutRun(run),))])
    for first in range(0, 100, 20):
        await store.commit([Unit(rows=(PutTags("run", run.id, tuple((f"k{each}", "s1") for each in range(first, first + 20))),))])
    await store.commit([Unit(rows=(PutTags("run", run.id, (("k0", "s2"), ("other", "s1"))),))])
    tags = (await store.search.list_tags([run.id]))[run.id]
    assert (len(tags), tags["k0"], "other" in tags) == (80, "s2", False)


async def test_lists_are_sorted_by_creation_time_and_not_by_id(store: Store, clock: StoreClock) -> None:
    old_id = "00000000-0000-7000-8000-000000000000"
    first, late = new_run(), new_run(id=old_id, root_id=old_id)
    first_task, late_task = new_task(), new_task(id=old_id)
    for run, task in ((first, first_task), (late, late_task)):
        await store.commit([Unit(tasks=(task,), rows=(PutRun(run),))])
        await clock.advance(1000)
    runs, tasks = await store.runs.list_matching(RunFilter(), 10), await store.tasks.list_matching(TaskFilter(), 10)
    assert ([run.id for run in runs], [task.id for task in tasks]) == ([old_id, first.id], [old_id, first_task.id])
    assert [run.id for run in await store.runs.list_matching(RunFilter(before_id=old_id), 10)] == [first.id]
    assert [task.id for task in await store.tasks.list_matching(TaskFilter(before_id=old_id), 10)] == [first_task.id]


async def test_ids_are_listed_by_range(store: Store) -> None:
    run, task = new_run(namespace=DEFAULT_NAMESPACE), new_task()
    await store.commit([Unit(tasks=(task,), rows=(PutRun(run),))])
    first, last = "00000000-0000-0000-0000-000000000000", NEWEST.id
    assert await store.search.list_ids("run", DEFAULT_NAMESPACE, first, last, 10) == [run.id]
    assert await store.search.list_ids("task", DEFAULT_NAMESPACE, task.id, task.id, 10) == [task.id]
    assert await store.search.list_ids("run", "elsewhere", first, last, 10) == []
    assert await store.search.list_ids("approval", DEFAULT_NAMESPACE, first, last, 10) == []
    assert await store.search.list_run_names("shop", 10) == ["shop.Checkout"]
    assert await store.search.list_failing_tasks(ScanRange("task", DEFAULT_NAMESPACE, Place(2**62, last)), 10) == []
