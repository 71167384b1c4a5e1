"""The page of effects whose outcome is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines import make_engine
from tests.limits import BOUND
from tests.web.conftest import visiting

from treadle.api.system import StatusProblem
from treadle.interfaces.web.filters import problem_page
from treadle.model.errors import RunFailed, TaskFailed


async def test_unknown_effects_are_listed_with_links_and_a_retry() -> None:
    async with make_engine("memory://") as engine:

        def charge() -> None:
            raise ConnectionError("gone")

        @engine.function("pay")
        async def pay(payload: dict[str, Any], ctx: Any) -> None:
            await ctx.effect("charge <card>", charge, on_unknown="fail")

        @engine.handler("refund", retry=0)
        async def refund(payload: Any, ctx: Any) -> None:
            await ctx.effect("refund", charge)

        async with engine.worker():
            run = await engine.start_function("pay")
            with pytest.raises(RunFailed):
                await engine.run_result(run, timeout=BOUND)
            task = await engine.enqueue("refund")
            with pytest.raises(TaskFailed):
                await engine.result(task, timeout=BOUND)
            (known,) = (await engine.kernel.effects.list(run_id=run.id)).effects
        async with visiting(engine) as visit:
            page = await visit.page("/effects")
            for part in (
                "charge &lt;card&gt;",
                f'href="/runs/{run.id}"',
                f'action="/runs/{run.id}/retry"',
                f'action="/tasks/{task.id}/retry"',
                known.dedupe_key,
            ):
                assert part in page
            assert task.id not in await visit.page(f"/effects?run_id={run.id}")
            assert "became unknown in the last hour" in await visit.page("/")


def test_the_problem_of_unknown_effects_leads_to_their_page():
    assert problem_page(StatusProblem("effects_unknown", "2 effects", "", None)) == "/effects"
