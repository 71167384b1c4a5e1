"""An engine that is used before it is open, or after it was closed, says so immediately, whatever was called."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from tests.engines import ALL, url_of

from treadle import Engine
from treadle.api.tasks import TaskSpec
from treadle.kernel.telemetry.events import TelemetryEvent
from treadle.model.errors import NotOpen

ID = "01900000-0000-7000-8000-000000000000"
FLOW = [("a.afl", "facet F() => (n: Long)\nworkflow W() => (n: Long) andThen {\n    f = F()\n    yield W(n = f.n)\n}\n")]


async def nothing() -> None:
    """A durable function."""


FUNCTION = Engine("memory://").function("nothing")(nothing)
CALLS: dict[str, tuple[Any, ...]] = {
    "enqueue": ("greet",),
    "enqueue_many": ([TaskSpec(name="greet", payload={})],),
    "result": (ID,),
    "cancel": (ID,),
    "retry": (ID,),
    "pause": (ID,),
    "resume": (ID,),
    "why": (ID,),
    "start_run": (FLOW, "W"),
    "run_result": (ID,),
    "start": (FUNCTION,),
    "start_function": ("greet",),
    "start_plan": ([{"name": "a", "handler": "greet"}],),
    "signal": (ID, "go"),
}


def test_every_call_of_an_engine_is_tried() -> None:
    calls = {name for name, _ in inspect.getmembers(Engine, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert calls - {"open", "close"} == set(CALLS)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_every_call_on_a_closed_engine_raises_not_open_with_a_remedy(
    kind: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    seen: list[TelemetryEvent] = []
    engine = Engine(url_of(kind, request, tmp_path), emit=seen.append)

    async def refuse_everything() -> None:
        for name, arguments in CALLS.items():
            with pytest.raises(NotOpen, match="async with engine"):
                await getattr(engine, name)(*arguments)
        with pytest.raises(NotOpen, match="async with engine"):
            await anext(engine.events())
        for group in (engine.tasks, engine.runs, engine.approvals, engine.schedules, engine.watchers, engine.alerts):
            with pytest.raises(NotOpen, match="async with engine"):
                await group.list()
        with pytest.raises(NotOpen, match="async with engine"):
            async with engine.worker():
                pass

    await refuse_everything()
    async with engine:
        await engine.enqueue("greet")
    await refuse_everything()
    assert [str(each) for each in seen if "retry in" in str(each)] == []
