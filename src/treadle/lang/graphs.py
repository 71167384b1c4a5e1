"""Workflows as graphs: statements are nodes, dependencies and nesting are edges; as JSON, DOT or Mermaid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.lang.nodes import Block, Facet, FacetKind, Location, Step, Sys, Yield
from treadle.lang.program import Program


@dataclass(frozen=True, slots=True)
class GraphNode:
    """`kind` is `workflow`, `facet`, `event`, `schema`, `external`, `value`, `yield`, `script` or `sys`.

    `group` is the id of its block; None for the workflow itself.
    """

    id: str
    label: str
    kind: str
    group: str | None
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """`kind` is `needs` between statements of a block, or `body`, `case`, `catch` from an owner into a block."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True, slots=True)
class GraphGroup:
    """A block: its label, and the enclosing block."""

    id: str
    label: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, edges and groups in program order."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    groups: tuple[GraphGroup, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": n.id, "label": n.label, "kind": n.kind, "group": n.group} for n in self.nodes],
            "edges": [{"source": e.source, "target": e.target, "kind": e.kind} for e in self.edges],
            "groups": [{"id": g.id, "label": g.label, "parent": g.parent} for g in self.groups],
        }

    def to_dot(self) -> str:
        """Return Graphviz source; blocks are clusters."""
        lines = ["digraph workflow {", "  rankdir=LR;", "  node [shape=box, style=rounded];"]
        lines += self._nested(_dot_node, _dot_open)
        lines += [f"  {_quoted(e.source)} -> {_quoted(e.target)}{_dot_style(e.kind)};" for e in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart; blocks are subgraphs. Ids are numbers, because Mermaid allows few characters in them."""
        ids = [*(node.id for node in self.nodes), *(group.id for group in self.groups)]
        names = {part_id: f"n{number}" for number, part_id in enumerate(ids)}
        lines = ["flowchart LR"]
        lines += self._nested(
            lambda node: f'{names[node.id]}["{_mermaid(node.label)}"]:::{node.kind}',
            lambda group: (f'subgraph {names[group.id]}["{_mermaid(group.label)}"]', "end"),
        )  # fmt: skip
        for edge in self.edges:
            arrow = "-->" if edge.kind == "needs" else f"-. {edge.kind} .->"
            lines.append(f"  {names[edge.source]} {arrow} {names[edge.target]}")
        lines += [f"  classDef {kind} {style}" for kind, style in _MERMAID_STYLES.items()]
        return "\n".join(lines) + "\n"

    def _nested(self, node_text: Any, group_text: Any) -> list[str]:
        """Return nodes and groups as nested lines. The language's limit on blocks bounds the nesting."""
        nodes, groups = defaultdict(list), defaultdict(list)
        for node in self.nodes:
            nodes[node.group].append(node)
        for group in self.groups:
            groups[group.parent].append(group)

        def walk(at: str | None, pad: str) -> Iterator[str]:
            for node in nodes[at]:
                yield pad + node_text(node)
            for inner in groups[at]:
                first, last = group_text(inner)
                yield pad + first
                yield from walk(inner.id, pad + "  ")
                yield pad + last

        return list(walk(None, "  "))


def graph(program: Program | Mapping[str, Any], workflow: str | None = None) -> Graph:
    """Return the graph of one workflow, or of all; raise `KeyError` for an unknown workflow."""
    loaded = program if isinstance(program, Program) else Program.load(program)
    if workflow is None:
        return _Collector(loaded).collect(loaded.workflows)
    facet = loaded.find_workflow(workflow)
    if facet is None:
        raise KeyError(workflow)
    return _Collector(loaded).collect((facet,))


class _Collector:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._nodes: list[GraphNode] = []
        self._edges: list[GraphEdge] = []
        self._groups: list[GraphGroup] = []

    def collect(self, workflows: tuple[Facet, ...]) -> Graph:
        for workflow in workflows:
            self._nodes.append(GraphNode(workflow.id, workflow.qualified_name, "workflow", None, workflow.location))
            for number, block in enumerate(workflow.blocks):
                label = workflow.qualified_name if len(workflow.blocks) == 1 else f"block {number}"
                self._block(block, workflow.id, label, None, "body")
            if workflow.catch is not None:
                self._block(workflow.catch, workflow.id, "catch", None, "catch")
        return Graph(tuple(self._nodes), tuple(self._edges), tuple(self._groups))

    def _block(self, block: Block, owner: str, label: str, parent: str | None, edge: str) -> None:
        if block.foreach is not None:
            label = f"{label}: foreach {block.foreach.variable}"
        self._groups.append(GraphGroup(block.id, label, parent))
        if block.script is not None:
            self._nodes.append(GraphNode(block.script.id, "script", "script", block.id, block.script.location))
            self._edges.append(GraphEdge(owner, block.script.id, edge))
        for number, case in enumerate(block.when):
            name = "otherwise" if case.condition is None else f"case {number}"
            self._block(case.block, owner, name, block.id, "case")
        ids: dict[str, str] = {step.name: step.id for step in block.steps}
        for statement in block.statements:
            self._statement(statement, block)
            sources = [ids[name] for name in statement.depends if name in ids]
            self._edges += [GraphEdge(source, statement.id, "needs") for source in sources]
            if not sources:
                self._edges.append(GraphEdge(owner, statement.id, edge))
        for step in block.steps:
            if step.body is not None:
                self._block(step.body, step.id, f"body of {step.name}", block.id, "body")
            if step.catch is not None:
                self._block(step.catch, step.id, f"catch of {step.name}", block.id, "catch")

    def _statement(self, statement: Step | Sys | Yield, block: Block) -> None:
        match statement:
            case Step():
                kind = self._kind(statement)
                label = statement.name if kind == "value" else f"{statement.name} = {statement.call.name}"
            case Yield():
                label, kind = f"yield {statement.call.target}", "yield"
            case Sys():
                label, kind = f"sys.{statement.kind}", "sys"
        self._nodes.append(GraphNode(statement.id, label, kind, block.id, statement.location))

    def _kind(self, step: Step) -> str:
        if step.call.is_value:
            return "value"
        facet = self._program.find_facet(step.call.name)
        if facet is not None:
            return {FacetKind.EVENT: "event", FacetKind.WORKFLOW: "workflow"}.get(facet.kind, "facet")
        return "schema" if self._program.find_schema(step.call.name) else "external"


_DOT_SHAPES = {"event": "box3d", "yield": "cds", "script": "note", "workflow": "doubleoctagon"}
_MERMAID_STYLES = {"event": "fill:#fde9c9", "yield": "fill:#dcefdc", "script": "fill:#e4e4f7", "workflow": "stroke-width:3px"}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _dot_node(node: GraphNode) -> str:
    shape = f", shape={_DOT_SHAPES[node.kind]}" if node.kind in _DOT_SHAPES else ""
    return f"{_quoted(node.id)} [label={_quoted(node.label)}{shape}];"


def _dot_open(group: GraphGroup) -> tuple[str, str]:
    return f"subgraph {_quoted('cluster ' + group.id)} {{ label={_quoted(group.label)};", "}"


def _dot_style(kind: str) -> str:
    return "" if kind == "needs" else f" [style=dashed, label={_quoted(kind)}]"


def _mermaid(text: str) -> str:
    return text.replace('"', "'")
