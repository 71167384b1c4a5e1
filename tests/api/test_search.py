"""Search, tags and short ids are the same on an engine and over HTTP, and show a caller only what it may see."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.conftest import Scene, make_engine

from treadle.api.facade import all_calls
from treadle.engine.operations import Operations
from treadle.kernel import guard
from treadle.kernel.search import service
from treadle.kernel.store.lookups import is_short
from treadle.kernel.store.records import RecordFilter
from treadle.model.access import Access, Scope
from treadle.model.errors import AmbiguousId, InvalidQuery, InvalidTag, NotFound, RunNotFound, TaskNotFound

EXACT = {"worker_id", "server_id", "job_id"}
"""Ids that `guard.ENTITIES` does not list: of workers that hold tasks, of servers (`Reads.get_server`), and by group."""


async def test_runs_and_tasks_have_tags_and_are_found_by_them(scene: Scene) -> None:
    tags = {"customer": "acme", "amount": 12.5, "paid": True, "due": "2026-11-01T09:00:00.000Z"}
    run = await scene.api.functions.start("none", {"order": {"id": 7}}, version=1, tags=tags)
    task = await scene.api.tasks.enqueue("greet", {"name": "Ada"}, tags={"customer": "acme"})
    await scene.api.functions.start("none", version=1)
    assert (await scene.api.runs.get(run.id)).tags == tags
    assert (await scene.api.tasks.get(task.id)).tags == {"customer": "acme"}
    page = await scene.api.runs.list(where="tag.customer = acme and tag.amount > 12 and input.order.id = 7")
    assert ([each.id for each in page.runs], page.runs[0].tags, page.searched, page.next_before) == ([run.id], tags, 1, None)
    tasks = await scene.api.tasks.list(where="tag.customer = acme")
    assert [(each.id, each.tags) for each in tasks.tasks] == [(task.id, {"customer": "acme"})]
    assert (await scene.api.runs.list()).searched is None
    assert (await scene.api.runs.list(where="tag.customer exists", state=["failed"])).runs == []
    with pytest.raises(InvalidQuery, match="did you mean state"):
        await scene.api.runs.list(where="stat = failed")
    with pytest.raises(InvalidTag):
        await scene.api.tasks.enqueue("greet", {"name": "Ada"}, tags={"a b": 1})
    repeated = await scene.api.runs.rerun(run.id)
    assert repeated.tags == tags


async def test_a_short_id_means_the_one_record_that_it_fits(scene: Scene) -> None:
    runs = [await scene.api.functions.start("none", version=1) for _ in range(3)]
    task = await scene.api.tasks.enqueue("greet", {"name": "Ada"})
    assert (await scene.api.runs.get("last")).id == runs[-1].id
    assert (await scene.api.tasks.why("last")).id == task.id
    assert (await scene.api.system.why(task.id[:-2])).id == task.id
    assert (await scene.api.runs.get(runs[0].id[:-1].upper())).id == runs[0].id
    assert (await scene.api.runs.cancel(runs[1].id[:-2])).state == "canceled"
    assert (await scene.api.tasks.list(run_id=runs[0].id[:-2])).tasks != []
    common = runs[0].id[:8]
    with pytest.raises(AmbiguousId) as caught:
        await scene.api.runs.get(common)
    assert all(run.id in str(caught.value) for run in runs)
    with pytest.raises(RunNotFound):
        await scene.api.runs.get("ffffff")
    with pytest.raises(TaskNotFound):
        await scene.api.tasks.cancel("ffffff")


async def test_a_restricted_caller_resolves_only_tasks_of_its_lists() -> None:
    async with make_engine() as engine:
        everyone = Operations(engine, Access("ada", frozenset(Scope)))
        night = await everyone.tasks.enqueue("greet", {"name": "Ada"}, task_list="night")
        await everyone.tasks.enqueue("greet", {"name": "Ada"}, task_list="day")
        mine = Operations(engine, Access("bob", frozenset({Scope.READ}), ("night",)))
        assert (await mine.tasks.get("last")).id == night.id
        assert (await mine.tasks.get(night.id[:8])).id == night.id
        with pytest.raises(TaskNotFound):
            await Operations(engine, Access("eve", frozenset({Scope.READ}), ("nowhere",))).tasks.get("last")
        assert [each.id for each in (await mine.tasks.list(where="name = greet")).tasks] == [night.id]


def test_every_id_in_a_path_can_be_short() -> None:
    names = {each.name for call in all_calls() for each in call.path}
    assert {name for name in names if name.endswith("_id")} - EXACT <= guard.ENTITIES.keys()


@pytest.mark.parametrize(
    ("text", "short"), [("last", True), ("01", False), ("0198", True), ("0198c3de-7a1", True), ("x1", False), ("", False)]
)
def test_a_short_id_is_the_beginning_of_one(text: str, short: bool) -> None:
    assert is_short(text) is short
    assert not is_short("0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77")


REMOVALS: dict[str, dict[str, Any]] = {
    "alerts.remove": {"when": "problem", "to": "https://example.org"},
    "schedules.remove": {"cron": "0 3 * * *", "task": "greet"},
    "tokens.revoke": {"scopes": ["read"]},
    "watchers.remove": {"directory": "/none", "task": "greet"},
}
ENTITIES = {"alerts": "alert_rule", "schedules": "schedule", "tokens": "token", "watchers": "watcher"}
BY_NAME_ONLY = {"handlers.remove"}
"""Removals of things without ids."""


def test_every_removal_is_checked() -> None:
    found = {f"{call.group}.{call.name}" for call in all_calls() if call.route.method == "DELETE"}
    assert found == REMOVALS.keys() | BY_NAME_ONLY


@pytest.mark.parametrize("call", REMOVALS)
async def test_a_removal_needs_a_name_or_a_complete_id_and_is_safe_to_repeat(scene: Scene, call: str) -> None:
    group_name, _, name = call.partition(".")
    group = getattr(scene.api, group_name)
    remove, options = getattr(group, name), REMOVALS[call]
    made = {each: (await group.create(each, **options)).id for each in ("kept", "last", "abcd", "dead")}
    live = dict(made)
    for each in ("last", "abcd"):
        assert (await remove(each)).id == live.pop(each)
    for repeated in ("last", "abcd", "LAST", made["kept"][:8], made["kept"][:-1], made["dead"][:30]):
        with pytest.raises(NotFound):
            await remove(repeated)
        records = await scene.engine.kernel.store.records.list_matching(
            RecordFilter(ENTITIES[group_name], "default", live=True), 10
        )
        assert {each.id for each in records} == set(live.values())
    assert (await remove(made["dead"])).id == made["dead"]


NEWER = 30
"""Records after the one that is searched for; one call looks at ten."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("ROWS_LIMIT", 10), ("VALUES_LIMIT", 10), ("_FIRST_BATCH", 5)):
        monkeypatch.setattr(service, name, limit)


async def old_task(scene: Scene) -> str:
    """Return the id of a task of a run, and with an end, a name, a tag and a payload of its own, that is older than many others."""
    run = await scene.api.functions.start("none", {"n": "rare"}, version=1)
    (own,) = (await scene.api.tasks.list(run_id=run.id)).tasks
    task = await scene.api.tasks.enqueue("fail", {"n": "rare"}, tags={"customer": "acme"})
    await scene.api.tasks.cancel(task.id)
    for number in range(NEWER):
        await scene.api.tasks.enqueue("greet", {"n": number})
        await scene.api.functions.start("other", {"n": number}, version=1)
    assert own.run_id == run.id
    return task.id


@pytest.mark.parametrize("where", ["state = canceled", "name = fail", "tag.customer = acme", "state in (canceled, failed)"])
async def test_an_index_finds_an_old_task_with_one_call(scene: Scene, short: None, where: str) -> None:
    task_id = await old_task(scene)
    page = await scene.api.tasks.list(where=where)
    assert ([task.id for task in page.tasks], page.complete, page.next_before) == ([task_id], True, None)


async def test_the_tasks_of_a_run_are_found_with_one_call(scene: Scene, short: None) -> None:
    await old_task(scene)
    run = (await scene.api.runs.list(where="name = none")).runs[0]
    page = await scene.api.tasks.list(where=f"run = {run.id}", every=True)
    assert ({task.run_id for task in page.tasks}, page.complete) == ({run.id}, True)
    assert (await scene.api.tasks.list(where="run = ghost", every=True)).complete


@pytest.mark.parametrize("group", ["tasks", "runs"])
async def test_a_response_reports_a_search_that_stopped_before_the_end(scene: Scene, short: None, group: str) -> None:
    await old_task(scene)
    listing, found, calls, before = getattr(scene.api, group).list, [], 0, None
    while True:
        page = await listing(where="input.n = rare", before=before)
        found, calls, before = [*found, *getattr(page, group)], calls + 1, page.next_before
        assert page.complete is (before is None)
        if page.complete:
            break
    assert (len(found), calls > 2) == (1, True)
    assert (await listing(where="input.n exists", limit=3)).complete
    assert (await listing(limit=3)).complete
