"""Calls about flows, on an engine."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.api.flows import (
    FlowChecked,
    FlowCompiled,
    FlowDetail,
    FlowFormatted,
    FlowGraph,
    FlowList,
    FlowsApi,
    FlowVersion,
    FormattedSource,
    SourceText,
)
from treadle.kernel.functions.rows import is_function
from treadle.kernel.runs.flows import Source, find_workflow
from treadle.lang import CannotFormat, Diagnostic, Program, format_source, graph
from treadle.model.errors import InvalidInput
from treadle.service.flow_shaping import (
    pairs,
    shaped_check,
    shaped_compiled,
    shaped_diagnostics,
    shaped_graph,
    shaped_signature,
    shaped_version,
)
from treadle.service.run_group import RunGroup
from treadle.service.shaping import instant


class Flows(RunGroup, FlowsApi):
    """See `FlowsApi`."""

    async def list(self, *, name: str | None = None) -> FlowList:
        if name is not None:
            await self.engine.flows.get_flow(name)
        return FlowList([shaped_version(each) for each in await self.engine.flows.list_versions(name)])

    async def validate(self, sources: Sequence[SourceText]) -> FlowChecked:
        return shaped_check(await self.engine.flows.check_aside(pairs(sources)))

    async def compile(self, sources: Sequence[SourceText]) -> FlowCompiled:
        return shaped_compiled(await self.engine.flows.check_aside(pairs(sources)))

    async def format(self, sources: Sequence[SourceText]) -> FlowFormatted:
        return await self.engine.flows.aside(_formatted, pairs(sources))

    async def draw(self, sources: Sequence[SourceText], *, workflow: str | None = None) -> FlowGraph:
        return _drawn((await self.engine.flows.compile_aside(pairs(sources)))[1], workflow)

    async def get(self, name: str, *, version: int | None = None) -> FlowDetail:
        flow = await self.engine.flows.get_flow(name, version)
        program = await self.engine.flows.program(flow.id)
        versions = () if name == flow.id else await self.engine.flows.list_versions(name)
        return FlowDetail(
            id=flow.id,
            created_at=instant(flow.created_at),
            versions=[shaped_version(each) for each in versions],
            workflows=[shaped_signature(program, facet) for facet in program.workflows],
            event_facets=[facet.qualified_name for facet in program.event_facets],
            sources=[SourceText(each, text) for each, text in self.engine.flows.sources(flow)],
        )

    async def graph(self, name: str, *, version: int | None = None, workflow: str | None = None) -> FlowGraph:
        flow = await self.engine.flows.get_flow(name, version)
        return _drawn(await self.engine.flows.program(flow.id), workflow)

    async def publish(self, name: str, sources: Sequence[SourceText]) -> FlowVersion:
        return shaped_version(await self.engine.flows.publish(name, pairs(sources), actor=self.actor))

    async def run_graph(self, run_id: str) -> FlowGraph:
        run = await self.find_run(run_id)
        if is_function(run.flow_id):
            raise InvalidInput(f"The run {run.id} is one of a durable function: its steps are known only as it makes them.")
        states = await self.engine.kernel.run_services.step_reads.states_by_statement(run)
        return shaped_graph(graph(await self.engine.flows.program(run.flow_id), run.workflow), states)


def _formatted(sources: Sequence[Source]) -> FlowFormatted:
    done: list[FormattedSource] = []
    problems: tuple[Diagnostic, ...] = ()
    for name, text in sources:
        try:
            formatted = format_source(text, name)
            done.append(FormattedSource(name, formatted, formatted != text))
        except CannotFormat as error:
            problems += error.diagnostics
    return FlowFormatted(not problems, done, shaped_diagnostics(problems))


def _drawn(program: Program, workflow: str | None) -> FlowGraph:
    return shaped_graph(graph(program, find_workflow(program, workflow).qualified_name if workflow is not None else None))
