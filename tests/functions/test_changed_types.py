"""Types that change under sleeping runs: the reason names the field, and a default or a converter continues the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, model_validator
from tests.functions.driver import Scene, function_scene

from treadle import Engine


@dataclass
class Old:
    sku: str


@dataclass
class Stricter:
    sku: str
    currency: str


@dataclass
class WithDefault:
    sku: str
    currency: str = "EUR"


class Converting(BaseModel):
    sku: str
    currency: str

    @model_validator(mode="before")
    @classmethod
    def convert(cls, value: Any) -> Any:
        return {"currency": "EUR", **value} if isinstance(value, dict) else value


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as scene:
        yield scene


def by_name(engine: Engine, kind: type) -> None:
    async def order(item: Any, ctx: Any) -> Any:
        await ctx.wait_for("go")
        return item.sku

    order.__annotations__["item"] = kind
    engine.function("order")(order)


def whole(engine: Engine, kind: type) -> None:
    async def order(payload: Any, ctx: Any) -> Any:
        await ctx.wait_for("go")
        return payload.sku

    order.__annotations__["payload"] = kind
    engine.function("order")(order)


def step(engine: Engine, kind: type) -> None:
    def pick() -> Any:
        return kind(sku="lamp")

    pick.__annotations__["return"] = kind

    @engine.function("order")
    async def order(item: dict[str, Any], ctx: Any) -> Any:
        item = await ctx.step(pick, name="pick")
        await ctx.wait_for("go")
        return item.sku  # type: ignore[attr-defined]


def signal(engine: Engine, kind: type) -> None:
    @engine.function("order")
    async def order(item: dict[str, Any], ctx: Any) -> Any:
        item = await ctx.wait_for("first", type=kind)
        await ctx.wait_for("go")
        return item.sku  # type: ignore[attr-defined]


def child(engine: Engine, kind: type) -> None:
    async def pick(payload: Any) -> Any:
        return kind(sku="lamp")

    pick.__annotations__["return"] = kind
    reference = engine.function("pick")(pick)

    @engine.function("order")
    async def order(item: dict[str, Any], ctx: Any) -> Any:
        item = await (await ctx.start(reference, {})).result()
        await ctx.wait_for("go")
        return item.sku  # type: ignore[attr-defined]


SITES: dict[str, tuple[Callable[[Engine, type], None], str]] = {
    "by name": (by_name, "$.item.currency: missing"),
    "whole": (whole, "$.currency: missing"),
    "step": (step, "the step pick does not match its annotation: $.currency: missing"),
    "signal": (signal, "$.currency: missing"),
    "child": (child, "$.currency: missing"),
}


@pytest.mark.parametrize("after", [WithDefault, Converting])
@pytest.mark.parametrize("site", SITES)
async def test_a_changed_type_is_reported_and_fixed_by_a_default_or_a_converter(site: str, after: type, scene: Scene) -> None:
    register, said = SITES[site]

    async def run_with(kind: type, seconds: float = 0) -> None:
        scene.engine.kernel.function_registry._functions.clear()
        register(scene.engine, kind)
        scene.clock.advance(seconds)
        await scene.process(warm=0).quiet()

    register(scene.engine, Old)
    run = await scene.engine.start_function("order", {"sku": "lamp"} if site == "whole" else {"item": {"sku": "lamp"}})
    await scene.engine.signal(run, "first", {"sku": "lamp"})
    await run_with(Old)
    await scene.engine.signal(run, "go")
    await run_with(Stricter)
    reason = await scene.engine.kernel.run_reads.why(run.id)
    assert reason.code == "type_changed"
    assert said in reason.text
    assert "adopt" not in reason.text
    assert "give a new field a default, or convert" in reason.text
    await run_with(after, seconds=1)
    assert await scene.engine.run_result(run.id) == "lamp"
