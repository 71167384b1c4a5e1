"""Values between steps, list functions and optional types of AFL, through `Engine`, with a worker, on stores that keep rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND

from treadle.model.errors import RunFailed

FLOW = """namespace shop {
    schema Order { id: Long, prices: [Double], note: String?, tags: [String]? }
    event facet Load(id: Long) => (order: Order, hint: String?)
    workflow Bill(id: Long, least: Double, coupon: String?) => (text: String, note: String?, coupon: String?) andThen {
        load = Load(id = $.id)
        total = sum(load.order.prices)
        share = total / $.least
        label = join(flatten([[total, share], [count(load.order.tags)]]), "/")
        again = Load(id = count(load.order.prices))
        yield Bill(text = label ++ " " ++ again.order.id ++ load.hint ++ $.coupon, note = load.order.note)
    }
}
"""


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
async def test_a_run_evaluates_expressions_and_null_between_steps(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine = make_engine(url_of(kind, request, tmp_path))

    @engine.handler("shop.Load")
    def load(payload: dict[str, Any]) -> dict[str, Any]:
        return {"order": {"id": payload["id"], "prices": [1.5, 2, 2.5]}}

    async with engine, engine.worker():
        source = [("shop.afl", FLOW)]
        run = await engine.start_run(source, "shop.Bill", {"id": 7, "least": 2.0})
        assert await engine.run_result(run, timeout=BOUND) == {"text": "6.0/3.0/0 3", "note": None, "coupon": None}
        steps = {each.row.name: each for each in await engine.kernel.run_reads.list_steps(run.id)}
        assert (steps["total"].row.facet, steps["total"].state) == ("sys.value", "completed")
        failing = await engine.start_run(source, "shop.Bill", {"id": 7, "least": 0.0, "coupon": None})
        with pytest.raises(RunFailed, match=r"Bill\.share: division by zero"):
            await engine.run_result(failing, timeout=BOUND)
        with raises_code("invalid_inputs", match=r"coupon must be a String, not a number.*coupon: String\?"):
            await engine.start_run(source, "shop.Bill", {"id": 7, "least": 1.0, "coupon": 3})
        assert (await engine.kernel.verify()).holds
