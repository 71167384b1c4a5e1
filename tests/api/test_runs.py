"""Calls about runs and their steps, on an engine and over HTTP."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.api.flows import SourceText
from treadle.api.runs import RunStarted
from treadle.engine.operations import Operations
from treadle.kernel.search import service as search
from treadle.model.access import Access, Scope
from treadle.model.errors import IdempotencyKeyReused, IllegalTransition, InvalidFlow, InvalidInput, RunNotFound
from treadle.model.runs import ActivityKind

NOBODY = "01935b8e-7c3a-7000-8000-000000000000"
TEA = """
namespace tea {
    event facet Boil(litres: Double) => (degrees: Long)
    workflow Brew(litres: Double, cups: [String]) => (degrees: Long) andThen {
        water = Boil(litres = $.litres)
        poured = Pour(cups = $.cups)
        sys.log(degrees = water.degrees)
        yield Brew(degrees = water.degrees)
    }
    facet Pour(cups: [String]) andThen foreach cup in $.cups {
        one = Boil(litres = 1.0)
    }
}
"""
SOURCES = [SourceText("tea.afl", TEA)]


def serve_tea(scene: Scene) -> None:
    @scene.engine.handler("tea.Boil")
    async def boil(payload: dict[str, float], ctx: object) -> dict[str, int]:
        ctx.log("hot")  # type: ignore[attr-defined]
        if payload["litres"] < 0:
            raise RuntimeError("the kettle is broken")
        return {"degrees": 100}


async def brew(scene: Scene, litres: float = 0.5, cups: int = 2, **options: object) -> RunStarted:
    inputs = {"litres": litres, "cups": [f"c{n}" for n in range(cups)]}
    return await scene.api.runs.start_from_source(SOURCES, "tea.Brew", inputs, **options)  # type: ignore[arg-type]


async def test_a_run_is_started_done_and_shown(scene: Scene):
    serve_tea(scene)
    started = await brew(scene)
    assert (started.created, started.workflow, started.kind, started.state) == (True, "tea.Brew", "workflow", "running")
    assert (started.missing_handlers, started.workers) == (["tea.Boil"], 0)
    assert not (await scene.api.runs.outputs(started.id)).finished
    async with scene.engine.worker():
        ended = await scene.api.runs.outputs(started.id, wait_for=30)
        assert (await brew(scene)).missing_handlers == []
    assert (ended.state, ended.finished, ended.outputs, ended.ended_as) == ("completed", True, {"degrees": 100}, started.id)
    shown = await scene.api.runs.get(started.id)
    assert (shown.inputs, shown.outputs) == ({"litres": 0.5, "cups": ["c0", "c1"]}, {"degrees": 100})
    assert (shown.why.code, shown.usage.requests, shown.budget_micros) == ("finished_completed", 0, None)
    transitions = (await scene.api.runs.transitions(started.id)).transitions
    assert [(transition.transition, transition.actor) for transition in transitions] == [("start", "local"), ("succeed", None)]
    assert (await scene.api.runs.tasks(started.id)).tasks == []


async def test_inputs_are_validated_by_default(scene: Scene):
    with raises_code("invalid_inputs", match="litres"):
        await scene.api.runs.start_from_source(SOURCES, "Brew", {})
    with pytest.raises(InvalidFlow):
        await scene.api.runs.start_from_source([SourceText("bad.afl", "workflow W(")])
    with pytest.raises(InvalidInput, match="source"):
        await scene.api.runs.start_from_source([])
    assert (await scene.api.runs.start_from_source(SOURCES, "Brew", {}, lenient=True)).created


async def test_a_key_identifies_the_first_run_and_a_published_flow_is_started_by_name(scene: Scene):
    await scene.engine.kernel.flows.publish("tea", [("tea.afl", TEA)])
    inputs = {"litres": 0.5, "cups": []}
    first = await scene.api.runs.start("tea", inputs=inputs, idempotency_key="k", task_list="kitchen", priority=2)
    second = await scene.api.runs.start("tea", inputs=inputs, idempotency_key="k", task_list="kitchen")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert (second.task_list, second.priority, second.idempotency_key) == ("kitchen", 2, "k")
    with pytest.raises(IdempotencyKeyReused, match=first.id):
        await scene.api.runs.start("tea", inputs=inputs, idempotency_key="k")
    assert [run.id for run in (await scene.api.runs.list(flow="tea")).runs] == [first.id]


async def test_runs_are_filtered_by_state_search_and_activity(scene: Scene):
    runs = [await brew(scene, idempotency_key=f"Order-{n}", task_list=f"l{n}") for n in range(3)]
    canceled = await scene.api.runs.cancel(runs[0].id, reason="not now")
    assert (canceled.state, canceled.error["message"]) == ("canceled", "not now")

    async def found(**which: object) -> list[int]:
        page = await scene.api.runs.list(**which)  # type: ignore[arg-type]
        return [int(run.task_list[1:]) for run in page.runs]

    assert await found() == [2, 1, 0]
    assert await found(state=["canceled"]) == [0]
    assert await found(search="order-1") == [1]
    assert await found(search="tea.br") == [2, 1, 0]
    assert await found(search=runs[2].id.upper()) == [2]
    assert await found(search=runs[2].id[9:]) == []
    assert await found(workflow="tea.Other") == []
    assert await found(kind="function") == []
    assert (await found(activity="waiting_for_worker"), await found(activity="sleeping")) == ([2, 1], [])
    assert (await scene.api.runs.counts()).activities == dict.fromkeys(map(str, ActivityKind), 0) | {"waiting_for_worker": 2}
    assert await found(search=runs[0].id, activity="waiting_for_worker") == []  # a finished run does nothing
    assert await found(task_list="l1") == [1]
    assert await found(root_id=runs[1].id) == [1]
    later = runs[-1].created_at + timedelta(seconds=1)
    assert (await found(since=later), await found(until=later)) == ([], [2, 1, 0])
    page = await scene.api.runs.list(limit=2)
    rest = await scene.api.runs.list(limit=2, before=page.next_before)
    assert ([run.id for run in rest.runs], rest.next_before) == ([runs[0].id], None)
    counts = await scene.api.runs.counts()
    assert (counts.total, counts.counts["canceled"], counts.counts["running"], counts.counts["failed"]) == (3, 1, 2, 0)
    assert (await scene.api.runs.counts(search="order-2")).total == 1
    with pytest.raises(InvalidInput, match="Unknown state"):
        await scene.api.runs.list(state=["happy"])
    with pytest.raises(RunNotFound, match=NOBODY):
        await scene.api.runs.get(NOBODY)


async def test_operators_pause_resume_retry_rerun_and_fork(scene: Scene):
    serve_tea(scene)
    started = await brew(scene, litres=-1)
    assert (await scene.api.runs.pause(started.id)).state == "paused"
    assert (await scene.api.runs.resume(started.id)).state == "running"
    async with scene.engine.worker():
        ended = await scene.api.runs.outputs(started.id, wait_for=30)
        assert (ended.state, ended.outputs) == ("failed", None)
        assert "the kettle is broken" in ended.error["message"]
        again = await scene.api.runs.retry(started.id, step="Brew.water")
        assert again.state == "running"
        assert (await scene.api.runs.outputs(started.id, wait_for=30)).state == "failed"
        with pytest.raises(IllegalTransition):
            await scene.api.runs.resume(started.id)
        with raises_code("invalid_inputs"):
            await scene.api.runs.rerun(started.id, inputs={"litres": "much"})
        new = await scene.api.runs.rerun(started.id, inputs={"litres": 1.0})
        assert new.parent_id == started.id
        assert (await scene.api.runs.outputs(new.id, wait_for=30)).outputs == {"degrees": 100}
        forked = await scene.api.runs.fork(started.id, "Brew.water", inputs={"litres": 2.0})
        assert (await scene.api.runs.outputs(forked.id, wait_for=30)).outputs == {"degrees": 100}
    by = [(transition.transition, transition.actor) for transition in (await scene.api.runs.transitions(started.id)).transitions]
    assert ("pause", "local") in by
    assert ("retry", "local") in by


async def test_steps_are_paged_in_the_order_of_the_program_and_folded(scene: Scene):
    serve_tea(scene)
    run_id = (await brew(scene, cups=3)).id
    async with scene.engine.worker():
        await scene.api.runs.outputs(run_id, wait_for=30)
    steps = scene.api.steps
    everything = (await steps.list(run_id)).steps
    assert [step.path for step in everything if step.is_step] == [
        "Brew",
        "Brew.water",
        "Brew.poured",
        "Brew.poured[0].one",
        "Brew.poured[1].one",
        "Brew.poured[2].one",
    ]
    paged, after = [], None
    while True:
        page = await steps.list(run_id, blocks=False, limit=2, after=after, values=False)
        paged += page.steps
        after = page.next_after
        if after is None:
            break
    assert [step.path for step in paged] == [step.path for step in everything if step.is_step]
    assert all(step.params == {} for step in paged)
    stored, after = [], None
    while True:
        page = await steps.list(run_id, order="stored", limit=4, after=after)
        stored += page.steps
        after = page.next_after
        if after is None:
            break
    from treadle.api.steps import in_order

    assert [step.id for step in in_order(stored)] == [step.id for step in everything]

    assert {step.name for step in everything if not step.folds} == {"water", "one"}

    async def tree(below: str) -> list[object]:
        return [(step.name, await tree(step.id)) for step in (await steps.list(run_id, below=below)).steps]

    items = [(f"foreach-{n}", [("one", [])]) for n in range(3)]
    assert await tree(run_id) == [("Brew", [("block-0", [("water", []), ("poured", [("block-0", items)])])])]
    with raises_code("step_not_found"):
        await steps.list(run_id, after=NOBODY)
    with pytest.raises(InvalidInput, match="limit"):
        await steps.list(run_id, limit=0)


async def test_a_step_is_shown_in_full_and_a_timeline_shows_where_time_was_spent(scene: Scene):
    serve_tea(scene)
    run_id = (await brew(scene, litres=-1, cups=0)).id
    waiting = await scene.api.steps.timeline(run_id)
    assert [(step.path, [span.kind for span in step.spans]) for step in waiting.steps][1] == ("Brew.water", ["waiting"])
    async with scene.engine.worker():
        await scene.api.runs.outputs(run_id, wait_for=30)
    step = await scene.api.steps.get(run_id, "Brew.water")
    assert (step.state, step.params, step.facet) == ("failed", {"litres": -1.0}, "tea.Boil")
    assert step.error is not None
    assert (step.error.cause, step.error.step_id) == ("the kettle is broken", step.id)
    assert step.task is not None
    assert (step.task.state, step.task.attempt, step.task.payload) == ("failed", 1, {"litres": -1.0})
    assert (await scene.api.steps.get(run_id, step.id)).path == "Brew.water"
    times = {each.path: each for each in (await scene.api.steps.timeline(run_id)).steps}
    water = times["Brew.water"]
    assert [span.kind for span in water.spans if span.kind != "waiting"] == ["running"]
    assert water.ended_at is not None
    with raises_code("step_not_found"):
        await scene.api.steps.get(run_id, "Brew.milk")


async def test_lines_about_a_run_are_paged_both_ways(scene: Scene):
    serve_tea(scene)
    run_id = (await brew(scene, cups=3)).id
    async with scene.engine.worker():
        await scene.api.runs.outputs(run_id, wait_for=30)
    lines = (await scene.api.runs.logs(run_id)).lines
    hot = [line for line in lines if line.message == "hot"]
    assert sorted(line.path or "" for line in hot) == [*(f"Brew.poured[{n}].one" for n in range(3)), "Brew.water"]
    numbers = [line.number for line in lines]
    assert numbers == sorted(set(numbers))
    last = await scene.api.runs.logs(run_id, limit=2)
    before = await scene.api.runs.logs(run_id, limit=2, before=last.next_before)
    assert [line.number for line in (*before.lines, *last.lines)] == numbers[-4:]
    since = await scene.api.runs.logs(run_id, after=numbers[0])
    assert ([line.number for line in since.lines], since.next_after) == (numbers[1:], numbers[-1])
    assert (await scene.api.runs.logs(run_id, after=numbers[-1])).next_after == numbers[-1]


async def test_agents_complete_or_fail_a_waiting_step(scene: Scene):
    run_id = (await brew(scene, cups=0)).id
    said = await scene.api.steps.continue_step(run_id, "Brew.water", {"degrees": 42})
    assert (said.done, said.path) == (True, "Brew.water")
    assert not (await scene.api.steps.continue_step(run_id, "Brew.water", {"degrees": 43})).done
    assert (await scene.api.runs.outputs(run_id)).outputs == {"degrees": 42}
    other = (await brew(scene, cups=0)).id
    assert (await scene.api.steps.fail_step(other, "Brew.water", "no gas", code="gas")).done
    assert "no gas" in (await scene.api.runs.outputs(other)).error["message"]


async def test_the_run_of_a_step_is_found_by_the_steps_id_alone(scene: Scene):
    here, there = await brew(scene, task_list="kitchen"), await brew(scene, task_list="bar")
    for run in (here, there):
        (step,) = [each for each in (await scene.api.steps.list(run.id)).steps if each.path == "Brew.water"]
        found = await scene.api.steps.find(step.id)
        assert (found.run_id, found.step_id, found.path) == (run.id, step.id, "Brew.water")
        assert step.statement_id == "tea.Brew/block-0/water"
    cook = Operations(scene.engine, Access("token:cook", frozenset([Scope.READ]), ("kitchen",)))
    for caller, step_id in ((scene.api, NOBODY), (cook, step.id)):
        with raises_code("step_not_found"):
            await caller.steps.find(step_id)


async def test_a_count_of_matches_beyond_its_limit_is_marked_as_incomplete(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    for _ in range(5):
        await brew(scene, task_list="bulk")
    where = "state = running"
    counts, matched = await scene.api.runs.counts(where=where), await scene.api.runs.bulk("pause", dry_run=True, where=where)
    assert (counts.total, counts.complete, matched.matched, matched.complete) == (5, True, 5, True)
    monkeypatch.setattr(search, "RUNS_LIMIT", 3)
    monkeypatch.setattr(search, "_BATCH", 2)
    counts, matched = await scene.api.runs.counts(where=where), await scene.api.runs.bulk("pause", dry_run=True, where=where)
    assert (counts.total, counts.complete, matched.matched, matched.complete) == (4, False, 4, False)


async def test_many_runs_are_operated_page_by_page_and_counted_first(scene: Scene):
    runs = [await brew(scene, task_list="bulk") for _ in range(5)]
    await brew(scene, task_list="other")
    told = await scene.api.runs.bulk("pause", dry_run=True, task_list="bulk")
    assert (told.matched, told.done, told.dry_run) == (5, [], True)
    assert (await scene.api.runs.counts(task_list="bulk")).counts["running"] == 5
    first = await scene.api.runs.bulk("pause", task_list="bulk", limit=3)
    assert (first.done, first.matched, first.next_before) == ([run.id for run in runs[:1:-1]], 5, runs[2].id)
    second = await scene.api.runs.bulk("pause", task_list="bulk", limit=3, before=first.next_before)
    assert (second.done, second.next_before) == ([runs[1].id, runs[0].id], None)
    assert (await scene.api.runs.counts()).counts == {
        "pending": 0,
        "running": 1,
        "paused": 5,
        "completed": 0,
        "failed": 0,
        "canceled": 0,
    }
    assert (await scene.api.runs.bulk("retry")).matched == 0
    ended = await scene.api.runs.bulk("cancel", state=["paused"], reason="too late")
    assert len(ended.done) == 5
    assert (await scene.api.runs.get(runs[0].id)).error["message"] == "too late"


async def test_a_signal_that_was_sent_is_no_longer_awaited(scene: Scene):
    @scene.engine.function("order")
    async def order(payload: dict[str, int], ctx: object) -> object:
        return await ctx.gather(ctx.wait_for("go"), ctx.wait_for("go"), ctx.wait_for("more"))  # type: ignore[attr-defined]

    async with scene.engine.worker():
        run_id = (await scene.engine.start_function("order", {})).id
        while not (await scene.api.runs.get(run_id)).awaited_signals:
            await scene.engine.kernel.clock.sleep(0.01)
    for sent, left in (("go", {"go", "more"}), ("more", {"go"}), ("go", set())):
        await scene.api.runs.signal(run_id, sent)
        assert set((await scene.api.runs.get(run_id)).awaited_signals) == left


async def test_a_signal_reports_its_waiter(scene: Scene):
    @scene.engine.function("order")
    async def order(payload: dict[str, int], ctx: object) -> object:
        return [await ctx.wait_for("go"), await ctx.wait_for("more")]  # type: ignore[attr-defined]

    async with scene.engine.worker():
        run_id = (await scene.engine.start_function("order", {})).id
        early = await scene.api.runs.signal(run_id, "more", 2, idempotency_key="k")
        assert (early.accepted, early.awaited) == (True, False)
        assert not (await scene.api.runs.signal(run_id, "more", 2, idempotency_key="k")).accepted
        while not (await scene.api.runs.get(run_id)).awaited_signals:
            await scene.engine.kernel.clock.sleep(0.01)
        sent = await scene.api.runs.signal(run_id, "go", 1)
        assert (sent.accepted, sent.awaited, sent.awaited_signals) == (True, True, [])
        ended = await scene.api.runs.outputs(run_id, wait_for=30)
    assert ended.outputs == {"result": [1, 2]}
    lines = [line.message for line in (await scene.api.runs.logs(run_id)).lines]
    assert [line for line in lines if line.startswith("Signal")] == ["Signal more from local", "Signal go from local"]


async def test_a_list_restricted_token_sees_and_starts_only_runs_of_its_list(scene: Scene):
    here = await brew(scene, task_list="kitchen")
    there = await brew(scene, task_list="bar")
    cook = Operations(scene.engine, Access("token:cook", frozenset([Scope.OPERATE, Scope.PUBLISH]), ("kitchen",)))
    assert [run.id for run in (await cook.runs.list()).runs] == [here.id]
    assert (await cook.runs.counts()).total == 1
    assert (await cook.runs.get(here.id)).id == here.id
    for call in (cook.runs.get, cook.steps.list, cook.runs.logs, cook.runs.transitions):
        with pytest.raises(RunNotFound):
            await call(there.id)
    secret = await brew(scene, task_list="bar", idempotency_key="k")
    with pytest.raises(IdempotencyKeyReused) as reused:  # the key of a run that it may not see tells nothing else of that run
        await cook.runs.start_from_source(
            SOURCES, "tea.Brew", {"litres": 1.0, "cups": []}, task_list="kitchen", idempotency_key="k"
        )
    assert secret.created
    assert "bar" not in str(reused.value)
    with pytest.raises(Exception, match="bar"):
        await cook.runs.start_from_source(SOURCES, "tea.Brew", {"litres": 1.0, "cups": []}, task_list="bar")


@pytest.mark.parametrize("call", ["get", "outputs", "transitions", "logs", "tasks", "usage"])
async def test_a_call_reads_the_row_of_its_run_once(scene: Scene, monkeypatch: pytest.MonkeyPatch, call: str):
    started = await brew(scene)
    runs = scene.engine.kernel.store.runs
    find, read_ids = runs.find, list[str]()

    async def counted(run_id: str) -> object:
        read_ids.append(run_id)
        return await find(run_id)

    monkeypatch.setattr(runs, "find", counted)
    await getattr(scene.api.runs, call)(started.id)
    assert read_ids == [started.id]
