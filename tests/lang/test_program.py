"""`Program`: what an evaluator reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lang.programs import program

from treadle.lang import InvalidProgram, Program, compile_sources
from treadle.lang import nodes as p

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.afl"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_program_round_trips_through_load_and_dump(path: Path) -> None:
    compiled = compile_sources([(path.name, path.read_text(encoding="utf-8"))])
    loaded = Program.load(compiled.program)
    assert loaded.dump() == compiled.program
    assert Program.load(loaded.dump()) == loaded


def test_look_ups_go_by_qualified_name() -> None:
    loaded = program("namespace a { facet F() workflow W() schema S { x: Long } } namespace b { workflow V() facet V2() }")
    assert loaded.find_facet("a.F") is loaded.facets["a.F"]
    assert loaded.find_facet("F") is None
    assert loaded.find_schema("a.S") is not None
    assert loaded.find_facet("a.S") is None
    assert [each.qualified_name for each in loaded.workflows] == ["a.W", "b.V"]


def test_a_workflow_is_found_by_its_short_name_if_that_is_unique() -> None:
    loaded = program("namespace a { workflow W() workflow X() facet Y() } namespace b { workflow W() facet X() }")
    assert loaded.find_workflow("a.W") is loaded.facets["a.W"]
    assert loaded.find_workflow("W") is None
    assert loaded.find_workflow("X") is loaded.facets["a.X"]
    assert loaded.find_workflow("Y") is None
    assert loaded.find_workflow("Z") is None


def test_every_statement_is_found_by_its_id() -> None:
    loaded = program("facet F() workflow W() andThen { s = F() andThen { t = F() } sys.log() yield W() } andThen script { x = 1 }")
    assert isinstance(loaded.find_node("W"), p.Facet)
    assert isinstance(loaded.find_node("W/block-0"), p.Block)
    assert isinstance(loaded.find_node("W/block-0/s/block-0/t"), p.Step)
    assert isinstance(loaded.find_node("W/block-0/s/call"), p.Call)
    assert isinstance(loaded.find_node("W/block-0/sys-0"), p.Sys)
    assert isinstance(loaded.find_node("W/block-0/yield-0"), p.Yield)
    assert isinstance(loaded.find_node("W/block-1/script"), p.Script)
    assert loaded.find_node("nothing") is None


def test_statements_of_a_block_are_ordered_steps_first_and_yields_last() -> None:
    found = program("facet F() workflow W() andThen { sys.log() s = F() yield W() }").facets["W"].blocks[0]
    assert [type(each).__name__ for each in found.statements] == ["Step", "Sys", "Yield"]


@pytest.mark.parametrize(
    "json",
    [
        {},
        {"type": "Facet"},
        {"type": "Program"},
        {"type": "Program", "id": "p", "declarations": [{"type": "Nope", "id": "x", "name": "x"}]},
        {"type": "Program", "id": "p", "declarations": [3]},
        {"type": "Program", "id": "p", "declarations": 3},
    ],
)
def test_anything_else_is_an_invalid_program(json: dict[str, object]) -> None:
    with pytest.raises(InvalidProgram):
        Program.load(json)
