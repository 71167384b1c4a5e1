"""The graph of a workflow: dependencies and nesting, in three notations."""

from __future__ import annotations

import msgspec
import pytest
from tests.lang.programs import compiled

from treadle.lang import Program, graph

TEXT = (
    "namespace n { event facet E(x: Json) => (y: Long) schema S { a: Long }\n"
    "workflow W(a: Long) => (z: Long) andThen { s = E(x = $.a) andThen foreach q in $.a { k = E(x = q) } catch { c = Ext() }\n"
    "t = S(a = s.y) sys.log(a = 1) yield W(z = t.a) }\n"
    "andThen when { case $.a > 3 => { w = V() } case _ => { } } andThen script { x = 1 } workflow V() }"
)


def test_edges_are_dependencies_and_nesting() -> None:
    found = graph(compiled(TEXT).program, "n.W")
    assert {(edge.source, edge.target, edge.kind) for edge in found.edges} == {
        ("n.W", "n.W/block-0/s", "body"),
        ("n.W", "n.W/block-0/sys-0", "body"),
        ("n.W/block-0/s", "n.W/block-0/t", "needs"),
        ("n.W/block-0/t", "n.W/block-0/yield-0", "needs"),
        ("n.W/block-0/s", "n.W/block-0/s/block-0/k", "body"),
        ("n.W/block-0/s", "n.W/block-0/s/catch/c", "catch"),
        ("n.W", "n.W/block-1/when-case-0/w", "case"),
        ("n.W", "n.W/block-2/script", "body"),
    }


def test_each_node_has_its_kind() -> None:
    found = graph(Program.load(compiled(TEXT).program), "W")
    kinds = {node.label: str(node.kind) for node in found.nodes}
    assert kinds == {
        "n.W": "workflow", "s = n.E": "event", "t = n.S": "schema", "sys.log": "sys", "yield W": "yield",
        "k = n.E": "event", "c = Ext": "external", "w = n.V": "workflow", "script": "script",
    }  # fmt: skip


def test_without_a_name_all_workflows_are_drawn() -> None:
    found = graph(compiled(TEXT).program)
    assert [node.label for node in found.nodes if node.group is None] == ["n.W", "n.V"]


def test_an_unknown_workflow_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        graph(compiled(TEXT).program, "Nope")


def test_json_names_only_nodes_and_groups_that_exist() -> None:
    found = msgspec.to_builtins(graph(compiled(TEXT).program))
    nodes = {node["id"] for node in found["nodes"]}
    groups = {group["id"] for group in found["groups"]} | {None}
    assert all(edge["source"] in nodes and edge["target"] in nodes for edge in found["edges"])
    assert all(node["group"] in groups for node in found["nodes"])
    assert all(group["parent"] in groups for group in found["groups"])


def test_dot_and_mermaid_nest_blocks() -> None:
    found = graph(compiled("facet F() workflow W() andThen { s = F() }").program)
    assert found.to_dot() == (
        "digraph workflow {\n  rankdir=LR;\n  node [shape=box, style=rounded];\n"
        '  "W" [label="W", shape=doubleoctagon];\n'
        '  subgraph "cluster W/block-0" { label="W";\n    "W/block-0/s" [label="s = F"];\n  }\n'
        '  "W" -> "W/block-0/s" [style=dashed, label="body"];\n}\n'
    )
    lines = found.to_mermaid().splitlines()
    assert lines[:6] == [
        "flowchart LR",
        '  n0["W"]:::workflow',
        '  subgraph n2["W"]',
        '    n1["s = F"]:::facet',
        "  end",
        "  n0 -. body .-> n1",
    ]
    nested = graph(compiled(TEXT).program).to_dot()
    assert nested.count("{") == nested.count("}")


def test_json_has_the_names_and_kinds_of_all_parts() -> None:
    found = graph(compiled("facet F() workflow W() andThen { s = F() }").program)
    assert found.to_json() == {
        "nodes": [
            {"id": "W", "label": "W", "kind": "workflow", "group": None},
            {"id": "W/block-0/s", "label": "s = F", "kind": "facet", "group": "W/block-0"},
        ],
        "edges": [{"source": "W", "target": "W/block-0/s", "kind": "body"}],
        "groups": [{"id": "W/block-0", "label": "W", "parent": None}],
    }
