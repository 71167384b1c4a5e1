"""Operations on flows, as the API declares them: check, compile, format, draw, try, publish and read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from treadle.api.flows import (
    FlowBlock,
    FlowChecked,
    FlowCompiled,
    FlowDetail,
    FlowDiagnostic,
    FlowDryRun,
    FlowEdge,
    FlowFormatted,
    FlowGraph,
    FlowList,
    FlowNode,
    FlowParam,
    FlowReturn,
    FlowsApi,
    FlowSchema,
    FlowVersion,
    FormattedSource,
    SourceText,
    WorkflowSignature,
)
from treadle.api.wire import Instant, record_of
from treadle.kernel.runs.flows import Flows, Source, find_workflow, pairs
from treadle.kernel.runs.steps import NodeCounts, StepReads
from treadle.lang import CannotFormat, Compiled, Diagnostic, Graph, Program, format_source, graph
from treadle.lang.nodes import DocComment, Facet, Param
from treadle.lang.program import literal_of, schemas_of
from treadle.lang.types import words as type_words
from treadle.model.access import OPEN, Access
from treadle.model.errors import InvalidInput
from treadle.model.names import is_function
from treadle.model.values import Json

DryRun = Callable[..., Awaitable[FlowDryRun]]


class FlowOperations(FlowsApi):
    """The flows of one namespace."""

    def __init__(self, flows: Flows, reads: StepReads, dry_run: DryRun) -> None:
        """`dry_run` simulates a workflow in memory."""
        self._flows = flows
        self._reads = reads
        self._dry_run = dry_run

    async def list(self, *, name: str | None = None) -> FlowList:
        if name is not None:
            await self._flows.get_flow(name)
        return FlowList([record_of(FlowVersion, version) for version in await self._flows.list_versions(name)])

    async def validate(self, sources: Sequence[SourceText], *, strict: bool = False) -> FlowChecked:
        return FlowChecked(*_checked(await self._flows.check_aside(pairs(sources), strict=strict)))

    async def compile(self, sources: Sequence[SourceText], *, strict: bool = False) -> FlowCompiled:
        compiled = await self._flows.check_aside(pairs(sources), strict=strict)
        return FlowCompiled(*_checked(compiled), program=compiled.program if compiled.ok else None)

    async def format(self, sources: Sequence[SourceText]) -> FlowFormatted:
        return await self._flows.aside(_formatted, pairs(sources))

    async def draw(self, sources: Sequence[SourceText], *, workflow: str | None = None) -> FlowGraph:
        return _drawn((await self._flows.compile_aside(pairs(sources)))[1], workflow)

    async def dry_run(
        self,
        sources: Sequence[SourceText],
        workflow: str | None = None,
        inputs: dict[str, Json] | None = None,
        *,
        answers: dict[str, Json] | None = None,
        lenient: bool = False,
    ) -> FlowDryRun:
        program = (await self._flows.compile_aside(pairs(sources)))[1]
        return await self._dry_run(program, find_workflow(program, workflow), inputs or {}, answers or {}, lenient=lenient)

    async def get(self, name: str, *, version: int | None = None) -> FlowDetail:
        flow = await self._flows.get_flow(name, version)
        program = await self._flows.program(flow.id)
        versions = () if name == flow.id else await self._flows.list_versions(name)
        return FlowDetail(
            id=flow.id,
            created_at=Instant.of(flow.created_at),
            versions=[record_of(FlowVersion, flow_version) for flow_version in versions],
            workflows=[_signature(program, facet) for facet in program.workflows],
            event_facets=[facet.qualified_name for facet in program.event_facets],
            sources=[SourceText(source_name, text) for source_name, text in self._flows.sources(flow)],
            strict=program.strict,
        )

    async def graph(self, name: str, *, version: int | None = None, workflow: str | None = None) -> FlowGraph:
        flow = await self._flows.get_flow(name, version)
        return _drawn(await self._flows.program(flow.id), workflow)

    async def publish(
        self, name: str, sources: Sequence[SourceText], *, strict: bool = False, actor: str = "operator"
    ) -> FlowVersion:
        published = await self._flows.publish(name, pairs(sources), actor=actor, strict=strict)
        return record_of(FlowVersion, published)

    async def run_graph(self, run_id: str, *, access: Access = OPEN) -> FlowGraph:
        run = await self._reads.get_visible(run_id, access)
        if is_function(run.flow_id):
            raise InvalidInput(
                f"The run {run.id} belongs to a durable function, which has no graph: its steps are not known in advance."
            )
        counts = await self._reads.count_by_statement(run)
        return _graph(graph(await self._flows.program(run.flow_id), run.workflow), counts)


def _formatted(sources: Sequence[Source]) -> FlowFormatted:
    done: list[FormattedSource] = []
    problems: tuple[Diagnostic, ...] = ()
    for name, text in sources:
        try:
            formatted = format_source(text, name)
            done.append(FormattedSource(name, formatted, formatted != text))
        except CannotFormat as error:
            problems += error.diagnostics
    return FlowFormatted(not problems, done, _diagnostics(problems))


def _drawn(program: Program, workflow: str | None) -> FlowGraph:
    return _graph(graph(program, find_workflow(program, workflow).qualified_name if workflow is not None else None))


def _diagnostics(diagnostics: Iterable[Diagnostic]) -> list[FlowDiagnostic]:
    return [record_of(FlowDiagnostic, diagnostic, rendered=diagnostic.render()) for diagnostic in diagnostics]


def _checked(compiled: Compiled) -> tuple[bool, str | None, list[FlowDiagnostic], list[str], list[str]]:
    program = Program.load(compiled.program) if compiled.ok else None
    return (
        compiled.ok,
        compiled.digest or None,
        _diagnostics(compiled.diagnostics),
        [] if program is None else [facet.qualified_name for facet in program.workflows],
        [] if program is None else [facet.qualified_name for facet in program.event_facets],
    )


def _signature(program: Program, facet: Facet) -> WorkflowSignature:
    docs = dict(facet.doc.returns) if facet.doc else {}
    return WorkflowSignature(
        name=facet.qualified_name,
        params=_params(facet.params, facet.doc),
        returns=[FlowReturn(param.name, type_words(param.type), docs.get(param.name)) for param in facet.returns],
        schemas=[_schema(program, name) for name in schemas_of(program, facet)],
        open=facet.pre_script is not None,
        doc=facet.doc.description if facet.doc else None,
    )


def _schema(program: Program, name: str) -> FlowSchema:
    schema = program.schemas[name]
    return FlowSchema(name, _params(schema.fields, schema.doc), schema.doc.description if schema.doc else None)


def _params(params: Iterable[Param], doc: DocComment | None) -> list[FlowParam]:
    docs = dict(doc.params) if doc else {}
    flow_params = []
    for param in params:
        is_constant, value = (True, None) if param.default is None else literal_of(param.default)
        flow_params.append(
            FlowParam(
                name=param.name,
                type=type_words(param.type),
                required=param.default is None,
                default=value,
                computed=not is_constant,
                doc=docs.get(param.name),
            )
        )
    return flow_params


def _graph(graph: Graph, counts: Mapping[str, NodeCounts] | None = None) -> FlowGraph:
    node_counts, none = counts or {}, NodeCounts()
    nodes = [
        FlowNode(
            node.id,
            node.label,
            str(node.kind),
            node.group,
            f"n{number}",
            dict(node_counts.get(node.id, none).states),
            node.location.source if node.location else None,
            node.location.line if node.location else None,
            node.location.end_line if node.location else None,
            node_counts.get(node.id, none).about,
            node_counts.get(node.id, none).step_id,
        )
        for number, node in enumerate(graph.nodes)
    ]
    groups = [
        FlowBlock(
            group.id,
            group.label,
            group.parent,
            f"n{number}",
            dict(seen.states),
            dict(seen.items),
            seen.total if seen.total is not None else sum(seen.items.values()),
            seen.step_id,
        )
        for number, group in enumerate(graph.groups, len(nodes))
        for seen in [node_counts.get(group.id, none)]
    ]
    edges = [FlowEdge(edge.source, edge.target, edge.kind) for edge in graph.edges]
    return FlowGraph(nodes, edges, groups, graph.to_mermaid(), graph.to_dot())
