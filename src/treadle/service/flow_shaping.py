"""Programs, diagnostics and graphs as the contract shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.api import flows as shapes
from treadle.kernel.runs.flows import Source
from treadle.lang import Compiled, Diagnostic, Graph, Program
from treadle.lang.program import Doc, Facet, Param
from treadle.lang.signatures import literal_of, schemas_of, type_words
from treadle.model.errors import InvalidInput
from treadle.model.runs import FlowVersion
from treadle.service.shaping import instant

SOURCES_LIMIT = 512 * 1024
"""Characters of AFL that one call may send: compiling them takes seconds already."""


def shaped_version(version: FlowVersion) -> shapes.FlowVersion:
    """A version of a published flow."""
    return shapes.FlowVersion(version.name, version.version, version.flow_id, version.actor, instant(version.published_at))


def shaped_diagnostics(found: Iterable[Diagnostic]) -> list[shapes.FlowDiagnostic]:
    """What there is to say about sources."""
    return [
        shapes.FlowDiagnostic(
            rule=each.rule,
            severity=str(each.severity),
            source=each.source,
            line=each.line,
            column=each.column,
            end_line=each.end_line,
            end_column=each.end_column,
            message=each.message,
            valid=list(each.valid),
            suggestion=each.suggestion,
            help=each.help,
            rendered=each.render(),
        )
        for each in found
    ]


def shaped_check(compiled: Compiled) -> shapes.FlowChecked:
    """Whether sources are a program."""
    return shapes.FlowChecked(*_checked(compiled))


def shaped_compiled(compiled: Compiled) -> shapes.FlowCompiled:
    """What sources compile to."""
    return shapes.FlowCompiled(*_checked(compiled), program=compiled.program if compiled.ok else None)


def _checked(compiled: Compiled) -> tuple[bool, str | None, list[shapes.FlowDiagnostic], list[str], list[str]]:
    program = Program.load(compiled.program) if compiled.ok else None
    return (
        compiled.ok,
        compiled.digest or None,
        shaped_diagnostics(compiled.diagnostics),
        [] if program is None else [facet.qualified_name for facet in program.workflows],
        [] if program is None else [facet.qualified_name for facet in program.event_facets],
    )


def shaped_signature(program: Program, facet: Facet) -> shapes.WorkflowSignature:
    """What a workflow takes and returns."""
    said = dict(facet.doc.returns) if facet.doc else {}
    return shapes.WorkflowSignature(
        name=facet.qualified_name,
        params=_params(facet.params, facet.doc),
        returns=[shapes.FlowReturn(each.name, type_words(each.type), said.get(each.name)) for each in facet.returns],
        schemas=[_schema(program, name) for name in schemas_of(program, facet)],
        open=facet.pre_script is not None,
        doc=facet.doc.description if facet.doc else None,
    )


def _schema(program: Program, name: str) -> shapes.FlowSchema:
    schema = program.schemas[name]
    return shapes.FlowSchema(name, _params(schema.fields, schema.doc), schema.doc.description if schema.doc else None)


def _params(params: Iterable[Param], doc: Doc | None) -> list[shapes.FlowParam]:
    said = dict(doc.params) if doc else {}
    shown = []
    for each in params:
        known, value = (True, None) if each.default is None else literal_of(each.default)
        shown.append(
            shapes.FlowParam(
                name=each.name,
                type=type_words(each.type),
                required=each.default is None,
                default=value,
                computed=not known,
                doc=said.get(each.name),
            )
        )
    return shown


def shaped_graph(made: Graph, states: Mapping[str, Mapping[str, int]] | None = None) -> shapes.FlowGraph:
    """A graph, with how many of a run's rows of each node are in which state."""
    known = states or {}
    nodes = [
        shapes.FlowNode(
            node.id,
            node.label,
            str(node.kind),
            node.group,
            f"n{number}",
            dict(known.get(node.id, {})),
            node.location.source if node.location else None,
            node.location.line if node.location else None,
            node.location.end_line if node.location else None,
        )
        for number, node in enumerate(made.nodes)
    ]
    groups = [
        shapes.FlowBlock(group.id, group.label, group.parent, f"n{number}", dict(known.get(group.id, {})))
        for number, group in enumerate(made.groups, len(nodes))
    ]
    edges = [shapes.FlowEdge(edge.source, edge.target, edge.kind) for edge in made.edges]
    return shapes.FlowGraph(nodes, edges, groups, made.to_mermaid(), made.to_dot())


def pairs(sources: Sequence[shapes.SourceText]) -> list[Source]:
    """The sources as the kernel takes them; refuses none, and too many."""
    if not sources:
        raise InvalidInput("Give at least one AFL source.")
    if (size := sum(len(source.text) for source in sources)) > SOURCES_LIMIT:
        raise InvalidInput(f"The sources of one call may have {SOURCES_LIMIT} characters, not {size}.")
    return [(source.name, source.text) for source in sources]
