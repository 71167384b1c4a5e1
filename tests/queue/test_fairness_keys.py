"""Fairness keys: everything that a run starts, and every run that repeats or continues it, has its key."""

from __future__ import annotations

from typing import Any

from treadle import Engine
from treadle.kernel.store.lookups import continued_id
from treadle.kernel.store.queries import TaskFilter
from treadle.settings import Settings

KEY = "tenant-7"
FLOW = [
    (
        "shop.afl",
        """
namespace shop {
    event facet Pack(n: Int) => (n: Int)
    workflow Ship(n: Int) => (n: Int) andThen {
        packed = Pack(n = $.n)
        yield Ship(n = packed.n)
    }
}
""",
    )
]


def define(engine: Engine) -> None:
    @engine.handler("shop.Pack")
    async def pack(payload: dict[str, Any]) -> dict[str, Any]:
        return {"n": payload["n"]}

    @engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        if payload.get("again"):
            return await ctx.continue_as_new({})
        child = await ctx.start("child", {})
        return {"child": await child.result(), "id": child.id}

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.call("shop.Pack", {"n": 1})


async def test_runs_and_tasks_inherit_the_fairness_key():
    async with Engine("memory://", settings=Settings()) as engine:
        define(engine)
        async with engine.worker():
            flow = await engine.start_run(FLOW, "shop.Ship", {"n": 1}, fairness_key=KEY)
            function = await engine.start_function("parent", {}, fairness_key=KEY)
            continued = await engine.start_function("parent", {"again": True}, fairness_key=KEY)
            runs = [flow.id, function.id, continued.id]
            for run_id in list(runs):
                result = await engine.run_result(run_id)
                if run_id == function.id:
                    runs.append(result["id"])
                runs.append((await engine.runs.rerun(run_id)).id)
                steps = await engine.kernel.runs.list_steps(run_id)
                if run_id == continued.id:
                    runs.append(continued_id(run_id))
                else:
                    runs.append((await engine.runs.fork(run_id, steps[-1].id)).id)
            for run_id in runs:
                await engine.run_result(run_id)
        found = [await engine.kernel.store.runs.find(run_id) for run_id in runs]
        assert [(run.workflow, run.fairness_key) for run in found if run] == [(run.workflow, KEY) for run in found if run]
        assert (len(found), None in found) == (10, False)
        packed = await engine.kernel.store.tasks.list_matching(TaskFilter(name="shop.Pack"), 100)
        assert len(packed) >= 7
        assert {task.fairness_key for task in packed} == {KEY}
