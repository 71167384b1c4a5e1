"""The id that a start returned names the whole lineage of runs that `continue_as_new` makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.functions.driver import Process, Scene, function_scene, until
from tests.sizes import POSTGRES

from treadle.engine.operations import Operations
from treadle.kernel.store.units import PutRun
from treadle.model.access import OPEN
from treadle.model.errors import IllegalTransition


@pytest.fixture(params=["memory", POSTGRES])
async def scene(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with function_scene(url_of(request.param, request, tmp_path)) as opened:

        @opened.engine.function("listen")
        async def listen(payload: dict[str, Any], ctx: Any) -> Any:
            heard = payload.get("heard", [])
            if payload.get("links", 0):
                await ctx.continue_as_new({"heard": heard, "links": payload["links"] - 1})
            heard = [*heard, await ctx.wait_for("go")]
            if heard[-1] != "end":
                await ctx.continue_as_new({"heard": heard})
            return heard

        yield opened


async def _links(scene: Scene) -> list[Any]:
    return sorted(await scene.engine.kernel.run_reads.list_runs(workflow="listen"), key=lambda run: run.link)


@pytest.mark.postgres
@pytest.mark.parametrize("first", ["the signal", "the new run"])
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
async def test_a_signal_that_meets_a_continuation_arrives_exactly_once(scene: Scene, first: str, keyed: bool):
    """Either commits first; the other one has decided before it."""
    started = await scene.engine.start_function("listen")
    await scene.engine.signal(started, "go", 1)
    process = scene.process()
    key = "k" if keyed else None
    meetings = [True]

    def meet(submit: Any, then: Any, *, is_meant: Any) -> Any:
        async def met(unit: Any, patience: float | None = None) -> Any:
            if meetings and is_meant(unit):
                meetings.clear()
                await then()
            return await submit(unit, patience)

        return met

    async def send() -> Any:
        return await scene.engine.signal(started, "go", 2, idempotency_key=key)

    if first == "the signal":
        process.committer.submit = meet(  # type: ignore[method-assign]
            process.committer.submit, send, is_meant=lambda unit: any(isinstance(row, PutRun) for row in unit.rows)
        )
        await process.turn()
    else:
        committer = scene.engine.kernel.committer
        submit = committer.submit
        committer.submit = meet(submit, process.turn, is_meant=lambda unit: unit.guard is None)  # type: ignore[method-assign]
        await send()
        committer.submit = submit  # type: ignore[method-assign]
    assert not meetings
    if keyed:
        assert not await send()  # in whichever run it is now
    await process.quiet()
    if keyed:
        assert not await send()  # consumed by a run that has ended since
    await scene.engine.signal(started, "go", "end")
    await process.quiet()
    assert await scene.engine.run_result(started) == [1, 2, "end"]


async def _continued(scene: Scene, links: int = 3) -> tuple[str, str, Process]:
    """A lineage of finished runs and a suspended one; the ids of the first and the last."""
    started = await scene.engine.start_function("listen", {"links": links}, tags={"customer": "acme"})
    process = scene.process()
    await process.quiet()
    return started.id, (await _links(scene))[-1].id, process


async def test_every_call_that_names_the_first_run_reaches_the_current_one(scene: Scene):
    first, last, process = await _continued(scene)
    api = Operations(scene.engine, OPEN)
    assert (await api.runs.pause(first)).id == last
    assert (await api.system.why(first)).code == "paused"
    assert (await api.runs.resume(first)).id == last
    why = await api.system.why(first)
    assert (why.id, last in why.text, "the signal go" in why.text) == (last, True, True)
    assert (await scene.engine.why(first)).text == why.text
    assert (await api.runs.get(first)).awaited_signals == ["go"]
    assert (await api.runs.signal(first, "go", "x")).awaited
    await process.quiet()
    found = await api.runs.get(first)
    now = (await _links(scene))[-1]
    assert (found.state, found.continued_as, found.link) == ("completed", now.id, 0)
    assert (await api.runs.get(now.id)).lineage_id == first
    assert (await api.runs.get(now.id)).tags == {"customer": "acme"}
    middle = (await _links(scene))[1]
    assert (await api.runs.cancel(middle.id, reason="enough")).id == now.id
    assert (await api.runs.cancel(first)).state == "canceled"
    outputs = await api.runs.outputs(first)
    assert (outputs.ended_as, outputs.state) == (now.id, "canceled")
    with pytest.raises(IllegalTransition):
        await scene.engine.signal(first, "go")


async def test_pending_approvals_are_found_by_the_first_id():
    async with make_engine("memory://") as engine:

        @engine.function("ask")
        async def ask(payload: dict[str, Any], ctx: Any) -> Any:
            if not payload:
                await ctx.continue_as_new({"again": True})
            return await ctx.approval("May it?")

        started = await engine.start_function("ask")
        approvals = Operations(engine, OPEN).approvals

        async def asked() -> bool:
            return bool((await approvals.list(run_id=started.id)).approvals)

        async with engine.worker():
            await until(asked)
            (approval,) = (await approvals.list(run_id=started.id)).approvals
            assert approval.run_id != started.id


async def test_a_long_lineage_is_resolved_by_one_read(scene: Scene):
    first, last, _ = await _continued(scene, links=30)
    store = scene.engine.kernel.store
    reads: list[str] = []

    class Counted:
        @property
        def runs(self) -> Any:
            return self

        def __getattr__(self, name: str) -> Any:
            reads.append(name)
            return getattr(store.runs, name)

    scene.engine.kernel.run_reads._store = Counted()
    assert (await scene.engine.kernel.run_reads.get_current(first)).id == last
    assert reads == ["find", "find_last_link"]
