"""Calls about flows and functions, on an engine and over HTTP."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import lang
from treadle.api.flows import SourceText
from treadle.engine.operations import Operations
from treadle.kernel.runs.flows import SOURCES_LIMIT
from treadle.model.access import Access, Scope
from treadle.model.errors import Forbidden, IdempotencyKeyReused, InvalidFlow, InvalidInput, NotFound

TEA = """\
/** Tea. */
namespace tea {
    /** A cup. @param size how much goes in */
    schema Cup { size: Long, notes: [Note] }
    schema Note { text: String }
    event facet Boil(litres: Double) => (degrees: Long)
    /**
     * Makes a cup.
     * @param litres how much water
     * @return degrees how hot
     */
    workflow Brew(litres: Double, cup: Cup, at: Long = -3, kinds: [String] = ["green", "black"], twice: Double = $.litres * 2)
        => (degrees: Long) andThen {
        water = Boil(litres = $.litres)
        again = Boil(litres = water.degrees)
        yield Brew(degrees = again.degrees)
    }
}
"""
SOURCES = [SourceText("tea.afl", TEA)]
DOUBTFUL = [SourceText("odd.afl", 'facet F(n: Long) workflow W() andThen { f = F(n = "1") }')]
BAD = [SourceText("bad.afl", "namespace b {\n  facet F(n: Lnog)\n}\n")]


async def test_diagnostics_of_invalid_sources_are_a_regular_response(scene: Scene):
    told = await scene.api.flows.validate(BAD)
    (found,) = told.diagnostics
    assert (told.valid, told.digest, told.workflows) == (False, None, [])
    assert (found.source, found.line, found.severity, found.suggestion) == ("bad.afl", 2, "error", "Long")
    assert "bad.afl:2:" in found.rendered
    assert (await scene.api.flows.compile(BAD)).program is None
    good = await scene.api.flows.compile(SOURCES)
    assert (good.valid, good.workflows, good.event_facets) == (True, ["tea.Brew"], ["tea.Boil"])
    assert good.program["type"] == "Program"
    assert (await scene.api.flows.validate(SOURCES)).digest == good.digest
    for call in (scene.api.flows.draw, scene.api.runs.start_from_source):
        with pytest.raises(InvalidFlow, match="Lnog"):
            await call(BAD)
    with pytest.raises(InvalidInput, match="at least one"):
        await scene.api.flows.validate([])


async def test_sources_are_formatted_or_reported_as_invalid(scene: Scene):
    done = await scene.api.flows.format([SourceText("a.afl", "namespace a{facet F(n:Long)}"), SourceText("b.afl", "facet (")])
    assert (done.valid, [(each.name, each.changed) for each in done.sources]) == (False, [("a.afl", True)])
    assert [each.source for each in done.diagnostics] == ["b.afl"]
    again = await scene.api.flows.format([SourceText("a.afl", done.sources[0].text)])
    assert (again.valid, again.sources[0].changed) == (True, False)


async def test_a_flow_is_published_in_versions_and_describes_its_form_fields(scene: Scene):
    first = await scene.api.flows.publish("tea", SOURCES)
    assert (first.version, first.actor) == (1, "local")
    assert (await scene.api.flows.publish("tea", SOURCES)).version == 1
    other = [SourceText("tea.afl", TEA.replace("degrees", "heat"))]
    assert (await scene.api.flows.publish("tea", other)).version == 2
    assert [each.version for each in (await scene.api.flows.list(name="tea")).flows] == [2, 1]
    assert [(each.name, each.version) for each in (await scene.api.flows.list()).flows] == [("tea", 2)]
    shown = await scene.api.flows.get("tea", version=1)
    assert (shown.id, shown.event_facets, shown.sources) == (first.flow_id, ["tea.Boil"], SOURCES)
    (brew,) = shown.workflows
    assert (brew.name, brew.open) == ("tea.Brew", False)
    assert "Makes a cup." in (brew.doc or "")
    assert [(each.name, each.type, each.required, each.default, each.computed) for each in brew.params] == [
        ("litres", "Double", True, None, False),
        ("cup", "tea.Cup", True, None, False),
        ("at", "Long", False, -3, False),
        ("kinds", "[String]", False, ["green", "black"], False),
        ("twice", "Double", False, None, True),
    ]
    assert brew.params[0].doc == "how much water"
    assert [(each.name, each.type, each.doc) for each in brew.returns] == [("degrees", "Long", "how hot")]
    assert [(schema.name, [field.type for field in schema.fields]) for schema in brew.schemas] == [
        ("tea.Cup", ["Long", "[tea.Note]"]),
        ("tea.Note", ["String"]),
    ]
    with raises_code("flow_not_found"):
        await scene.api.flows.get("nope")
    with pytest.raises(InvalidFlow):
        await scene.api.flows.publish("tea", BAD)


async def test_publishing_needs_more_than_starting(scene: Scene):
    starter = Operations(scene.engine, Access("token:ci", frozenset([Scope.READ, Scope.WORK])))
    with pytest.raises(Forbidden):
        await starter.flows.publish("tea", SOURCES)
    with pytest.raises(Forbidden):
        await starter.runs.start_from_source(SOURCES)
    await scene.api.flows.publish("tea", SOURCES)
    inputs = {"litres": 1.0, "cup": {"size": 1, "notes": []}}
    assert (await starter.runs.start("tea", inputs=inputs)).created


async def test_a_flow_is_drawn_and_a_run_of_it_with_its_states(scene: Scene):
    await scene.api.flows.publish("tea", SOURCES)
    drawn = await scene.api.flows.graph("tea", workflow="Brew")
    assert drawn == await scene.api.flows.draw(SOURCES)
    labels = {node.id: node.label for node in drawn.nodes}
    assert ("water = tea.Boil", "again = tea.Boil", "needs") in [
        (labels[edge.source], labels[edge.target], edge.kind) for edge in drawn.edges
    ]
    water = next(node for node in drawn.nodes if node.label == "water = tea.Boil")
    assert f'{water.mermaid_id}["water' in drawn.mermaid
    assert drawn.dot.startswith("digraph")
    run = await scene.api.runs.start("tea", inputs={"litres": 1.0, "cup": {"size": 1, "notes": []}})
    await scene.api.steps.continue_step(run.id, "Brew.water", {"degrees": 42})
    states = {node.label: node.states for node in (await scene.api.flows.run_graph(run.id)).nodes}
    assert states == {
        "tea.Brew": {"running": 1},
        "water = tea.Boil": {"completed": 1},
        "again = tea.Boil": {"pending": 1},
        "yield Brew": {},
    }
    with raises_code("workflow_not_found"):
        await scene.api.flows.graph("tea", workflow="Milk")


async def test_functions_are_listed_started_and_adopted(scene: Scene):
    with raises_code("function_not_found"):
        await scene.api.functions.start("order")

    @scene.engine.function("order", version=2)
    async def order(payload: dict[str, int]) -> int:
        return payload["n"] * 2

    first = await scene.api.functions.start("order", {"n": 4}, version=1, idempotency_key="k", task_list="shop")
    assert (first.created, first.kind, first.workflow, first.task_list) == (True, "function", "order", "shop")
    assert (await scene.api.functions.start("order", {"n": 4}, idempotency_key="k", task_list="shop")).id == first.id
    with pytest.raises(IdempotencyKeyReused):
        await scene.api.functions.start("order", {"n": 4}, idempotency_key="k")
    adopted = await scene.api.functions.adopt(first.id, 2)
    assert (adopted.id, adopted.servers) == (first.id, 0)
    async with scene.engine.worker(task_lists=("shop",)):
        assert (await scene.api.runs.outputs(first.id, wait_for=30)).outputs == {"result": 8}
        known = {(each.name, each.version): each for each in (await scene.api.functions.list()).functions}
        assert (known[("order", 2)].servers, known[("order", 1)].servers) == (1, 0)
    with pytest.raises(InvalidInput, match="function"):
        await scene.api.flows.run_graph(first.id)


async def test_invalid_versions_and_texts_are_rejected(scene: Scene):
    await scene.api.flows.publish("tea", SOURCES)
    for version in (0, -1):
        with raises_code("flow_not_found"):
            await scene.api.flows.get("tea", version=version)
    for version in (2**31, 2**63):  # a server refuses such numbers before it looks
        with pytest.raises((NotFound, InvalidInput)):
            await scene.api.flows.get("tea", version=version)
    for source in (SourceText("a\0.afl", "namespace a {}"), SourceText("a.afl", "namespace a {}\0")):
        with pytest.raises(InvalidInput, match=r"U\+0000"):
            await scene.api.flows.compile([source])


async def test_more_than_a_server_compiles_in_seconds_is_refused(scene: Scene):
    large = [SourceText("a.afl", "/" * (SOURCES_LIMIT - 10)), SourceText("b.afl", "/" * 11)]
    for call in (scene.api.flows.validate, scene.api.flows.format, scene.api.runs.start_from_source):
        with pytest.raises(InvalidInput, match="characters"):
            await call(large)


async def test_compiling_does_not_block_the_event_loop_of_the_server(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    begun, told = threading.Event(), threading.Event()
    compile_them = lang.compile_sources

    def compile_slowly(sources: list[tuple[str, str]]) -> lang.Compiled:
        begun.set()
        assert told.wait(BOUND)
        return compile_them(sources)

    monkeypatch.setattr(lang, "compile_sources", compile_slowly)
    for call in (scene.api.flows.validate, partial(scene.api.flows.publish, "tea")):
        begun.clear()
        told.clear()
        calling = asyncio.create_task(call(SOURCES))  # type: ignore[operator]
        await asyncio.to_thread(begun.wait, 10)
        assert (await scene.api.tasks.list()).tasks == []
        told.set()
        await calling


async def test_a_strict_call_rejects_sources_with_warnings(scene: Scene) -> None:
    flows = scene.api.flows
    assert [each.severity for each in (await flows.validate(DOUBTFUL)).diagnostics] == ["warning"]
    checked, compiled = await flows.validate(DOUBTFUL, strict=True), await flows.compile(DOUBTFUL, strict=True)
    assert (checked.valid, [each.severity for each in checked.diagnostics]) == (False, ["error"])
    assert (compiled.valid, compiled.program) == (False, None)
    with pytest.raises(InvalidFlow):
        await flows.publish("odd", DOUBTFUL, strict=True)
    assert (await flows.publish("odd", DOUBTFUL)).version == 1
    with pytest.raises(InvalidFlow):
        await flows.publish("odd", DOUBTFUL, strict=True)
