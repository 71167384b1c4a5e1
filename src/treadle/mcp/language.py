"""Tools for AFL: compile, validate, format, draw. What is wrong with a source is data that a model can fix it from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from treadle.api.contract import ApiRecord, Doc
from treadle.api.flows import FlowDiagnostic, FormattedSource, SourceText
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import shown
from treadle.model.errors import InvalidFlow, InvalidInput, RestrictedToken
from treadle.model.values import Json

MAIN = "main.afl"
"""What a source without a name is called."""
_MOST_FINDINGS = 20
_PROGRAM = 100_000

Source = Annotated[
    str | None, Doc("One AFL source", "namespace tea { workflow Brew() => (ok: Boolean) andThen { yield Brew(ok = true) } }")
]
Sources = Annotated[
    Sequence[SourceText] | None,
    Doc("Several AFL sources that are compiled together, instead of `source`", [{"name": "a.afl", "text": ""}]),
]


@dataclass(frozen=True, slots=True)
class Finding(ApiRecord):
    """What is wrong in one place of a source, and how to put it right; lines and columns count from 1."""

    message: str
    line: int
    column: int
    text: str
    """The line itself."""
    hint: str | None
    """What would be right there."""
    source: str
    """Which source."""
    rule: str
    """The id of the rule."""
    severity: str
    """`error` or `warning`."""


@dataclass(frozen=True, slots=True)
class Validation(ApiRecord):
    """Whether sources are a program."""

    valid: bool
    errors: list[Finding]
    """At most 20; mend these, then look again."""
    warnings: list[Finding]
    workflows: list[str]
    """Qualified names of what can be started."""
    event_facets: list[str]
    """The handlers that it needs."""


@dataclass(frozen=True, slots=True)
class Compilation(ApiRecord):
    """What sources compile to."""

    success: bool
    json: Json
    """The compiled program; null with errors."""
    errors: list[str]
    """Each error in one line: source, line, column, message."""
    diagnostics: list[Finding]
    """Errors and warnings, in full."""


@dataclass(frozen=True, slots=True)
class Formatted(ApiRecord):
    """Sources in the one layout; those with syntax errors are not among them."""

    valid: bool
    sources: list[FormattedSource]
    errors: list[Finding]


@dataclass(frozen=True, slots=True)
class Drawing(ApiRecord):
    """Steps and what they wait for."""

    mermaid: str
    """A Mermaid flowchart."""


class DoesNotCompile(InvalidFlow):
    """Sources that do not compile, with findings instead of diagnostics."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        lines = [error_text(each) for each in findings[:3]]
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        super().__init__(f"The AFL does not compile: {'; '.join(lines)}{more}.")
        self.findings = tuple(findings)


def texts(source: str | None, sources: Sequence[SourceText] | None) -> list[SourceText]:
    """The sources that were given, one way or the other."""
    if (source is None) == (not sources):
        raise InvalidInput("Give either `source` (one text) or `sources` (a list of name and text).")
    return list(sources) if sources else [SourceText(MAIN, source or "")]


def found(diagnostics: Sequence[FlowDiagnostic], sources: Sequence[SourceText]) -> list[Finding]:
    """Diagnostics with the lines that they are about."""
    lines = {each.name: each.text.split("\n") for each in sources}
    return [_finding(each, lines.get(each.source, [])) for each in diagnostics]


def _finding(each: FlowDiagnostic, lines: Sequence[str]) -> Finding:
    text = lines[each.line - 1].rstrip("\r") if 0 < each.line <= len(lines) else ""
    parts = [
        f"Did you mean `{each.suggestion}`?" if each.suggestion else "",
        f"Valid here: {', '.join(each.valid)}." if each.valid else "",
        each.help or "",
    ]
    hint = " ".join(part for part in parts if part) or None
    return Finding(each.message, each.line, each.column, text[:200], hint, each.source, each.rule, each.severity)


def error_text(each: Finding) -> str:
    """A finding in one line."""
    return f"{each.source}:{each.line}:{each.column}: {each.message}"


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity == "error"]


async def check(desk: RequestContext, sources: Sequence[SourceText]) -> None:
    """`DoesNotCompile` unless the sources are a program; who is held to task lists may not ask, and is told by who compiles."""
    try:
        answer = await desk.api.flows.validate(sources)
    except RestrictedToken:
        return
    if not answer.valid:
        raise DoesNotCompile(_errors(found(answer.diagnostics, sources))[:_MOST_FINDINGS])


@tool()
async def afl_validate(desk: RequestContext, source: Source = None, sources: Sources = None) -> Validation:
    """Check AFL sources, without storing or running anything.

    Use it after each change of a source: every error has its line, column, the line itself and a hint. What is valid names the
    workflows that can be started and the handlers (event facets) that they need.
    """
    given = texts(source, sources)
    answer = await desk.api.flows.validate(given)
    findings = found(answer.diagnostics, given)
    errors, warnings = _errors(findings), [each for each in findings if each.severity != "error"]
    return Validation(answer.valid, errors[:_MOST_FINDINGS], warnings[:_MOST_FINDINGS], answer.workflows, answer.event_facets)


@tool()
async def afl_compile(desk: RequestContext, source: Source = None, sources: Sources = None) -> Compilation:
    """Compile AFL sources to the JSON of the program. To find out whether they are right, `afl_validate` says the same in less."""
    given = texts(source, sources)
    answer = await desk.api.flows.compile(given)
    findings = found(answer.diagnostics, given)
    errors = _errors(findings)[:_MOST_FINDINGS]
    return Compilation(
        answer.valid, shown(answer.program, most=_PROGRAM), [error_text(each) for each in errors], findings[:_MOST_FINDINGS]
    )


@tool()
async def flow_format(desk: RequestContext, source: Source = None, sources: Sources = None) -> Formatted:
    """Lay AFL sources out in the one layout; comments and meaning stay. Nothing is stored."""
    given = texts(source, sources)
    answer = await desk.api.flows.format(given)
    return Formatted(answer.valid, answer.sources, found(answer.diagnostics, given)[:_MOST_FINDINGS])


@tool()
async def flow_graph(
    desk: RequestContext,
    name: Annotated[str | None, Doc("A published flow's name or digest", "shop")] = None,
    version: Annotated[int | None, Doc("A version of it; null: the newest", 1)] = None,
    run_id: Annotated[str | None, Doc("A run: its workflow, with the states of its steps")] = None,
    source: Source = None,
    sources: Sources = None,
    workflow: Annotated[str | None, Doc("Only this workflow; null: all", "shop.Checkout")] = None,
) -> Drawing:
    """Draw what waits for what as a Mermaid flowchart: of a published flow, of a run, or of sources."""
    given = [name is not None, run_id is not None, source is not None or bool(sources)]
    if sum(given) != 1:
        raise InvalidInput("Say what to draw: the `name` of a flow, a `run_id`, or `source`.")
    if name is not None:
        return Drawing((await desk.api.flows.graph(name, version=version, workflow=workflow)).mermaid)
    if run_id is not None:
        return Drawing((await desk.api.flows.run_graph(run_id)).mermaid)
    written = texts(source, sources)
    await check(desk, written)
    return Drawing((await desk.api.flows.draw(written, workflow=workflow)).mermaid)


TOOLS = (afl_validate, afl_compile, flow_format, flow_graph)
