"""Flows: the published ones, one with its source, graph, versions and start form, and an editor that checks as you type."""

from __future__ import annotations

from typing import Any

import msgspec
from markupsafe import Markup, escape
from starlette.datastructures import FormData
from starlette.responses import JSONResponse, Response

from treadle.api.flows import FlowGraph, FlowParam, SourceText, WorkflowSignature
from treadle.api.options import FunctionOptions
from treadle.api.wire import to_builtins
from treadle.interfaces.lsp.scan import Class, scan
from treadle.interfaces.web.forms import described, each_field, number, parse_typed, whole
from treadle.interfaces.web.schema_form import input_fields
from treadle.interfaces.web.site import HEADERS, Visit, act, action, page
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput, not_found

NEW = """\
namespace hello {
  event facet Greet(name: String) => (greeting: String)

  workflow Main(name: String = "world") => (greeting: String) andThen {
    greeted = Greet(name = $.name)
    yield Main(greeting = greeted.greeting)
  }
}
"""
"""The initial text of the editor."""


_FUNCTION_FIELDS = described(FunctionOptions, ("version",))


@page("/flows")
async def flows(visit: Visit) -> Response:
    flow_list = await visit.api.flows.list()
    functions = await visit.api.functions.list()
    return await visit.render("flows.html", flows=flow_list.flows, functions=functions.functions)


@page("/editor")
async def editor(visit: Visit) -> Response:
    name = visit.query.get("flow")
    sources = (await visit.api.flows.get(name)).sources if name else [SourceText("main.afl", NEW)]
    return await _edit(visit, name or "", sources)


@action("/editor")
async def edited(visit: Visit) -> Response:
    """Check, format or publish the sources; the page shows the diagnostics."""
    form = await visit.form()
    name, sources, strict = str(form.get("flow") or "").strip(), sources_of(form), _strict(form)
    match str(form.get("do") or "check"):
        case "publish":
            checked = await visit.api.flows.validate(sources, strict=strict)
            if not checked.valid:
                return await _edit(visit, name, sources, strict=strict)
            published = await visit.api.flows.publish(name, sources, strict=strict)
            return visit.back(f"{published.name} version {published.version} is published.", to=f"/flows/{published.name}")
        case "format":
            formatted = await visit.api.flows.format(sources)
            fresh = {source.name: source.text for source in formatted.sources}
            sources = [SourceText(source.name, fresh.get(source.name, source.text)) for source in sources]
    return await _edit(visit, name, sources, strict=strict)


@action("/editor/check")
async def check(visit: Visit) -> Response:
    """The diagnostics alone, for checks while typing."""
    form = await visit.form()
    return await _edit(visit, "", sources_of(form), "editor_check.html", strict=_strict(form))


@action("/editor/complete")
async def complete(visit: Visit) -> Response:
    return await _helped(visit, "completions")


@action("/editor/hover")
async def hover(visit: Visit) -> Response:
    return await _helped(visit, "hover")


@page("/flows/{name}")
async def flow(visit: Visit) -> Response:
    name, version = visit.path["name"], whole(visit.query, "version")
    flow = await visit.api.flows.get(name, version=version)
    drawn = await visit.api.flows.graph(name, version=version)
    highlighted = [(source.name, highlight(source.text)) for source in flow.sources]
    return await visit.render(
        "flow.html",
        name=name,
        version=version,
        flow=flow,
        graph=graph_data(drawn),
        drawn=drawn,
        sources=highlighted,
    )


@page("/functions/{name}/start")
async def function(visit: Visit) -> Response:
    visit.api.access.check(Scope.ENQUEUE)
    name = visit.path["name"]
    versions = [function for function in (await visit.api.functions.list()).functions if function.name == name]
    if not versions:
        raise not_found("function", name)
    inputs = await input_fields(visit.api, "functions.start", {"name": name, "version": whole(visit.query, "version")})
    return await visit.render("function_start.html", name=name, versions=versions, fields=_FUNCTION_FIELDS, inputs=inputs)


act("/functions/{name}/start", "functions.start", "{workflow} has started.", to="/runs/{id}")


@page("/flows/{name}/start")
async def form(visit: Visit) -> Response:
    name, version = visit.path["name"], whole(visit.query, "version")
    flow = await visit.api.flows.get(name, version=version)
    chosen = _signature(flow.workflows, visit.query.get("workflow"))
    return await visit.render("flow_start.html", name=name, version=version, workflow=chosen)


@action("/flows/{name}/start")
async def start(visit: Visit) -> Response:
    name, form = visit.path["name"], await visit.form()
    version = whole(form, "version")
    chosen = _signature((await visit.api.flows.get(name, version=version)).workflows, str(form.get("workflow") or ""))
    started = await visit.api.runs.start(
        name,
        chosen.name,
        inputs_of(form, chosen.params),
        version=version,
        idempotency_key=str(form.get("idempotency_key") or "") or None,
        deadline=None if (hours := number(form, "deadline")) is None else hours * 3600,
    )
    rest = f" No live worker has {', '.join(started.missing_handlers)}: it will wait there." if started.missing_handlers else ""
    return visit.back(f"{started.workflow} has started.{rest}", to=f"/runs/{started.id}")


async def _helped(visit: Visit, what: str) -> Response:
    """Return the language server's answer for a place in the sources, as JSON; null without the extra `lsp`."""
    form = await visit.form()
    texts = [source.text for source in sources_of(form)]
    number, line, column = (whole(form, name) or 0 for name in ("source", "line", "column"))
    visit.api.access.check(Scope.READ, lists=False)
    if not (0 <= number < len(texts) and line >= 0 and column >= 0):
        raise InvalidInput("There is no such place in the sources.")
    try:
        from treadle.interfaces.lsp import page_editor
    except ImportError:
        return JSONResponse(None, headers=HEADERS)
    work = getattr(page_editor, what)
    return JSONResponse(await visit.api.engine.kernel.flows.aside(work, (texts, number, line, column)), headers=HEADERS)


def _strict(form: FormData) -> bool:
    """Whether warnings prevent publishing, unless the form accepts them."""
    return form.get("lenient") is None


async def _edit(
    visit: Visit,
    name: str,
    sources: list[SourceText],
    template: str = "editor.html",
    *,
    strict: bool = True,
) -> Response:
    checked = await visit.api.flows.validate(sources, strict=strict)
    drawn = await visit.api.flows.draw(sources) if checked.valid and checked.workflows else None
    return await visit.render(
        template,
        name=name,
        sources=sources,
        checked=checked,
        strict=strict,
        graph=None if drawn is None else graph_data(drawn),
        may_publish=visit.api.access.may(Scope.PUBLISH),
    )


def graph_data(drawn: FlowGraph) -> dict[str, Any]:
    """The graph as the script draws it."""
    return {
        "nodes": [to_builtins(node) for node in drawn.nodes],
        "edges": [msgspec.structs.asdict(edge) for edge in drawn.edges],
        "groups": [msgspec.structs.asdict(group) for group in drawn.groups],
    }


def sources_of(form: FormData) -> list[SourceText]:
    """The sources in a form."""
    names = [str(entry).strip() or f"part{number}.afl" for number, entry in enumerate(form.getlist("name"), 1)]
    texts = [str(entry).replace("\r\n", "\n") for entry in form.getlist("text")]
    return [SourceText(name, text) for name, text in zip(names, texts, strict=False)] or [SourceText("main.afl", "")]


def inputs_of(form: FormData, params: list[FlowParam]) -> dict[str, Any]:
    """The inputs in a form; empty fields keep their defaults."""
    inputs: dict[str, Any] = {}
    with each_field() as check:
        for param in params:
            typed = str(form.get(f"in-{param.name}") or "")
            with check:
                if typed or (param.required and param.type == "String"):
                    inputs[param.name] = parse_typed(param.name, param.type, typed)
    return inputs


def _signature(workflows: list[WorkflowSignature], name: str | None) -> WorkflowSignature:
    matches = [workflow for workflow in workflows if not name or workflow.name == name]
    if not matches:
        raise InvalidInput(f"The flow has no workflow {name!r}.")
    return matches[0]


_CSS = {
    Class.COMMENT: "comment",
    Class.STRING: "string",
    Class.NUMBER: "number",
    Class.KEYWORD: "keyword",
    Class.TYPE: "type",
    Class.INPUT: "ref",
}


def highlight(text: str) -> list[Markup]:
    """The lines of the source with their tokens marked up."""
    markup, at = Markup(""), 0
    for token in scan(text):
        markup += text[at : token.start]
        at = token.end
        css = _CSS.get(token.class_)
        pieces = [
            Markup('<span class="tok-{}">{}</span>').format(css, piece) if css and piece else escape(piece)
            for piece in token.text.split("\n")
        ]
        markup += Markup("\n").join(pieces)
    return (markup + text[at:]).split("\n")
