"""The compiled JSON: its keys, its order, its ids and its digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.lang.programs import compiled, program

from treadle.lang import Program, compile_sources, digest_of


def plain(text: str) -> dict[str, Any]:
    result = compile_sources([("s.afl", text)], locations=False)
    assert result.ok, result.render()
    return result.program


def test_declarations_are_ordered_by_kind() -> None:
    found = plain(
        "workflow W()\nimplicit i = F()\nfacet F()\nevent facet E()\nfacet G()\n"
        "namespace n { schema S { a: Long }\nworkflow W2()\nfacet F2()\nimplicit j = F2() }"
    )
    assert [each["type"] for each in found["declarations"]] == [
        "Namespace", "FacetDecl", "FacetDecl", "EventFacetDecl", "WorkflowDecl", "ImplicitDecl",
    ]  # fmt: skip
    inner = found["declarations"][0]["declarations"]
    assert [each["type"] for each in inner] == ["FacetDecl", "WorkflowDecl", "ImplicitDecl", "SchemaDecl"]


def test_empty_and_absent_parts_are_left_out() -> None:
    assert plain("facet F()") == {
        "type": "Program",
        "id": "program",
        "declarations": [{"type": "FacetDecl", "id": "F", "name": "F"}],
    }
    assert plain("") == {"type": "Program", "id": "program"}
    assert plain("namespace n { schema S { } }")["declarations"][0]["declarations"][0]["fields"] == []


def test_a_whole_workflow_in_json() -> None:
    found = plain('facet F(a: Long = -1)\nworkflow W(x: [Long]) => (y: Json) andThen { s = F(a = $.x[0]) yield W(y = "a" ++ s.a) }')
    facet, workflow = found["declarations"]
    minus = {"type": "UnaryExpr", "operator": "-", "operand": {"type": "Int", "value": 1}}
    assert facet["params"] == [{"name": "a", "type": "Long", "default": minus}]
    assert workflow["params"] == [{"name": "x", "type": {"type": "ArrayType", "elementType": "Long"}}]
    index = {"type": "IndexExpr", "target": {"type": "InputRef", "path": ["x"]}, "index": {"type": "Int", "value": 0}}
    text = [{"type": "String", "value": "a"}, {"type": "StepRef", "path": ["s", "a"]}]
    assert workflow["body"] == {
        "type": "AndThenBlock",
        "id": "W/block-0",
        "steps": [
            {
                "type": "StepStmt",
                "id": "W/block-0/s",
                "name": "s",
                "call": {
                    "type": "CallExpr",
                    "id": "W/block-0/s/call",
                    "target": "F",
                    "resolved": "F",
                    "args": [{"name": "a", "value": index}],
                },
            }
        ],
        "yield": {
            "type": "YieldStmt",
            "id": "W/block-0/yield-0",
            "call": {
                "type": "CallExpr",
                "id": "W/block-0/yield-0/call",
                "target": "W",
                "resolved": "W",
                "args": [{"name": "y", "value": {"type": "ConcatExpr", "operands": text}}],
            },
            "depends": ["s"],
        },
    }


def test_several_blocks_are_a_list_and_several_yields_too() -> None:
    text = "event facet M() => (y: Long) workflow W() => (x: Long) with M() andThen { yield W(x = 1) yield M(y = 2) } andThen { }"
    body = plain(text)["declarations"][1]["body"]
    assert [each["id"] for each in body] == ["W/block-0", "W/block-1"]
    assert [each["id"] for each in body[0]["yields"]] == ["W/block-0/yield-0", "W/block-0/yield-1"]


def test_locations_have_lines_columns_and_the_source() -> None:
    found = compiled("facet F()\n  facet G()").program["declarations"][1]["location"]
    assert found == {"line": 2, "column": 3, "endLine": 2, "endColumn": 12, "sourceId": "s1.afl"}


def test_ids_depend_on_the_path_and_not_on_the_surrounding_text() -> None:
    text = "namespace n { facet F(a: Json = 1)\nworkflow W() andThen { s = F() t = F(a = s.a) andThen { u = F() } yield W() } }"
    more = f"// comment\nfacet Other()\n{text.replace('s = F()', 'r = F()  s = F()')}\nfacet Last()"
    assert set(program(text).nodes) < set(program(more).nodes)


def test_every_id_is_unique() -> None:
    text = "namespace n { facet F()\nimplicit i = F()\nimplicit i = F() }\n"
    text += "namespace n { workflow W() andThen { s = F() } andThen { s = F() } }"
    ids: list[str] = []

    def collect(node: object) -> None:
        if isinstance(node, dict):
            ids.extend([node["id"]] if "id" in node else [])
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    collect(plain(text))
    assert len(ids) == len(set(ids))


def test_the_digest_depends_on_meaning_only() -> None:
    text = "facet F(a: Long = 1)\nworkflow W() andThen { s = F(a = 2) }"
    same = "// c\n\nfacet F( a : Long=1 )\n\n\nworkflow W()\nandThen {\n s = F(a = (2))\n}"
    assert compiled(text).digest == compile_sources([("other.afl", same)]).digest
    assert compiled(text).digest != compiled(text.replace("2", "3")).digest
    bare = compile_sources([("s.afl", text)], locations=False)
    assert bare.digest == digest_of(bare.program) == compiled(text).digest


def test_the_program_is_plain_json() -> None:
    found = compiled('facet F(a: Json = #{k: [1, 2.5, true, null, "é😀"]})').program
    assert json.loads(json.dumps(found)) == found
    assert Program.load(json.loads(json.dumps(found))).dump() == found


@pytest.mark.parametrize(
    "default",
    [
        '"plain / text"',
        '"é 😀"',
        '"\\x7f\\x01\\n"',
        "1.5",
        "2.5e17",
        "0.1",
        "1.0e10",
        "123456789012345.678",
        "1.0e-7",
        "1",
        "9" * 30,
        "18446744073709551615",
        "null",
        '#{b: 1, "a": 2}',
    ],
)
def test_the_digest_is_that_of_canonical_json(default: str) -> None:
    result = compile_sources([("a.afl", f"facet A(x: Json = {default}, y: Double = 1)")], locations=False)
    text = json.dumps(result.program, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert result.digest == hashlib.sha256(text.encode("ascii")).hexdigest()
