"""Tools for AFL and flows: validate, compile, format, draw, publish, list, show. Diagnostics are data that a model can act on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from treadle.api.contract import ApiRecord, Doc
from treadle.api.flows import FlowDetail, FlowDiagnostic, FlowName, FlowVersion, FormattedSource, SourceText
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp.answers import PAGE, After, Fields, Limit, Shape, page_size, shown
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope
from treadle.model.errors import InvalidFlow, InvalidInput, RestrictedToken
from treadle.model.values import Json

BRIEF = Path(__file__).with_name("brief.md").read_text("utf-8")
"""AFL on one page, for models, with examples that compile."""

MAIN = "main.afl"
"""Name of a source without a name."""
_MAX_FINDINGS = 20
_PROGRAM = 100_000
_VERSIONS = 10

Source = Annotated[
    str | None, Doc("One AFL source", "namespace tea { workflow Brew() => (ok: Boolean) andThen { yield Brew(ok = true) } }")
]
Sources = Annotated[
    Sequence[SourceText] | None,
    Doc("Several AFL sources, compiled together, instead of `source`", [{"name": "a.afl", "text": ""}]),
]
Strict = Annotated[bool, Doc("Treat warnings as errors, and fail steps whose handlers return other types than declared")]


class Finding(ApiRecord, frozen=True):
    """A diagnostic with its source line and a hint; lines and columns count from 1."""

    message: str
    line: int
    column: int
    text: str
    """The source line."""
    hint: str | None
    """How to fix it."""
    source: str
    """The source's name."""
    rule: str
    """The rule's id."""
    severity: str
    """`error` or `warning`."""


_VALIDATION: Shape = {
    "valid": bool,
    "errors": list[Finding],
    "warnings": list[Finding],
    "workflows": list[str],
    "event_facets": list[str],
}
_COMPILATION: Shape = {"success": bool, "json": Json, "errors": list[str], "diagnostics": list[Finding]}
_FORMATTED: Shape = {"valid": bool, "sources": list[FormattedSource], "errors": list[Finding]}


def texts(source: str | None, sources: Sequence[SourceText] | None) -> list[SourceText]:
    """The sources, from either argument."""
    if (source is None) == (not sources):
        raise InvalidInput("Give either `source` (one text) or `sources` (a list of name and text).")
    return list(sources) if sources else [SourceText(MAIN, source or "")]


def findings_of(diagnostics: Sequence[FlowDiagnostic], sources: Sequence[SourceText]) -> list[Finding]:
    """Diagnostics with their source lines."""
    lines = {source.name: source.text.split("\n") for source in sources}
    return [_finding(diagnostic, lines.get(diagnostic.source, [])) for diagnostic in diagnostics]


def _finding(diagnostic: FlowDiagnostic, lines: Sequence[str]) -> Finding:
    text = lines[diagnostic.line - 1].rstrip("\r") if 0 < diagnostic.line <= len(lines) else ""
    parts = [
        f"Did you mean `{diagnostic.suggestion}`?" if diagnostic.suggestion else "",
        f"Valid here: {', '.join(diagnostic.valid)}." if diagnostic.valid else "",
        diagnostic.help or "",
    ]
    hint = " ".join(part for part in parts if part) or None
    return Finding(
        diagnostic.message,
        diagnostic.line,
        diagnostic.column,
        text[:200],
        hint,
        diagnostic.source,
        diagnostic.rule,
        diagnostic.severity,
    )


def error_text(finding: Finding) -> str:
    """A finding in one line."""
    return f"{finding.source}:{finding.line}:{finding.column}: {finding.message}"


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


async def check(context: RequestContext, sources: Sequence[SourceText], *, strict: bool = False) -> None:
    """Raise `InvalidFlow` unless the sources compile; callers that are restricted to task lists may not validate."""
    try:
        answer = await context.api.flows.validate(sources, strict=strict)
    except RestrictedToken:
        return
    if not answer.valid:
        findings = _errors(findings_of(answer.diagnostics, sources))[:_MAX_FINDINGS]
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        raise InvalidFlow(f"The AFL does not compile: {'; '.join(map(error_text, findings[:3]))}{more}.", tuple(findings))


@tool(answers=_VALIDATION)
async def afl_validate(context: RequestContext, source: Source = None, sources: Sources = None, strict: Strict = True) -> Fields:
    """Validate AFL sources without storing or running anything. Warnings are errors, unless `strict` is false.

    Call it after each change: every error has its line, column, source line and a hint. A valid result lists the workflows and the
    handlers (event facets) that they need.
    """
    source_texts = texts(source, sources)
    answer = await context.api.flows.validate(source_texts, strict=strict)
    findings = findings_of(answer.diagnostics, source_texts)
    errors, warnings = _errors(findings), [finding for finding in findings if finding.severity != "error"]
    return {
        "valid": answer.valid,
        "errors": to_builtins(errors[:_MAX_FINDINGS]),
        "warnings": to_builtins(warnings[:_MAX_FINDINGS]),
        "workflows": answer.workflows,
        "event_facets": answer.event_facets,
    }


@tool(answers=_COMPILATION)
async def afl_compile(context: RequestContext, source: Source = None, sources: Sources = None, strict: Strict = True) -> Fields:
    """Compile AFL sources to the program's JSON. Use `afl_validate` to check sources: its result is shorter."""
    source_texts = texts(source, sources)
    answer = await context.api.flows.compile(source_texts, strict=strict)
    findings = findings_of(answer.diagnostics, source_texts)
    errors = _errors(findings)[:_MAX_FINDINGS]
    return {
        "success": answer.valid,
        "json": shown(answer.program, most=_PROGRAM),
        "errors": [error_text(error) for error in errors],
        "diagnostics": to_builtins(findings[:_MAX_FINDINGS]),
    }


@tool(answers=_FORMATTED)
async def flow_format(context: RequestContext, source: Source = None, sources: Sources = None) -> Fields:
    """Format AFL sources; comments and meaning are preserved. Nothing is stored."""
    source_texts = texts(source, sources)
    answer = await context.api.flows.format(source_texts)
    errors = findings_of(answer.diagnostics, source_texts)[:_MAX_FINDINGS]
    return {"valid": answer.valid, "sources": to_builtins(answer.sources), "errors": to_builtins(errors)}


@tool(answers={"mermaid": str})
async def flow_graph(
    context: RequestContext,
    name: Annotated[str | None, Doc("Name or digest of a published flow", "shop")] = None,
    version: Annotated[int | None, Doc("The version; null: the newest", 1)] = None,
    run_id: Annotated[str | None, Doc("A run, drawn with the states of its steps")] = None,
    source: Source = None,
    sources: Sources = None,
    workflow: Annotated[str | None, Doc("Only this workflow; null: all", "shop.Checkout")] = None,
) -> Fields:
    """Draw the dependencies as a Mermaid flowchart, for a published flow, a run, or sources."""
    selectors = [name is not None, run_id is not None, source is not None or bool(sources)]
    if sum(selectors) != 1:
        raise InvalidInput("Give one of: the `name` of a flow, a `run_id`, or `source`.")
    if name is not None:
        graph = await context.api.flows.graph(name, version=version, workflow=workflow)
    elif run_id is not None:
        graph = await context.api.flows.run_graph(run_id)
    else:
        source_texts = texts(source, sources)
        await check(context, source_texts)
        graph = await context.api.flows.draw(source_texts, workflow=workflow)
    return {"mermaid": graph.mermaid}


@tool(answers={"flows": list[FlowVersion], "next_after": str | None})
async def flow_list(
    context: RequestContext,
    name: Annotated[str | None, Doc("All versions of this flow; null: the newest version of every flow", "shop")] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> Fields:
    """List published flows, or the versions of one."""
    flows = (await context.api.flows.list(name=name)).flows
    place = [flow.name if name is None else str(flow.version) for flow in flows]
    begin = place.index(after) + 1 if after in place else 0
    page = flows[begin : begin + page_size(limit)]
    end = begin + len(page)
    return {"flows": to_builtins(page), "next_after": place[end - 1] if page and end < len(flows) else None}


@tool()
async def flow_show(
    context: RequestContext,
    name: FlowName,
    version: Annotated[int | None, Doc("The version; null: the newest", 1)] = None,
    with_sources: Annotated[bool, Doc("Include the AFL sources")] = True,
) -> FlowDetail:
    """Show a flow: its workflows with parameters and outputs, the handlers it needs, and its sources."""
    flow = await context.api.flows.get(name, version=version)
    return replace(flow, versions=flow.versions[:_VERSIONS], sources=flow.sources if with_sources else [])


@tool(Scope.PUBLISH, repeatable=True)
async def flow_publish(
    context: RequestContext,
    name: Annotated[str, Doc("The name of the flow", "shop")],
    source: Source = None,
    sources: Sources = None,
    strict: Strict = True,
) -> FlowVersion:
    """Publish AFL as the next version of a name; start it with `run_start`. Publishing the same flow again adds no version.

    Runs in progress keep their version.
    """
    source_texts = texts(source, sources)
    await check(context, source_texts, strict=strict)
    return await context.api.flows.publish(name, source_texts, strict=strict)


TOOLS = (afl_validate, afl_compile, flow_format, flow_graph, flow_list, flow_show, flow_publish)
