"""Documentation: `/v1/openapi.json` for programs, `/v1/docs` for people, and `/llms.txt` with the pages of this version for models.

`/v1/docs` is a page without scripts or external files. A wheel contains the pages for models as `treadle/docs`; a checkout has
them in its own `docs`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from treadle.api.contract import PREFIX
from treadle.api.wire import to_json
from treadle.interfaces.http.openapi import JSON
from treadle.interfaces.http.routes import Route
from treadle.version import VERSION

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { padding: .6rem .8rem; overflow-x: auto; border: 1px solid #8884; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; }
td, th { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8883; }
h2 { margin-top: 3rem; } h3 { margin-top: 2rem; font-size: 1rem; }
.scope { float: right; font-weight: normal; opacity: .7; }
nav a { margin-right: 1rem; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'; base-uri 'none'"
"""Only the style of this page, by its hash."""


def page(document: dict[str, Any]) -> str:
    """The page for a document."""
    found = operations(document)
    groups = list(dict.fromkeys(each.group for each in found))
    parts = [f"<h1>Treadle {escape(document['info']['version'])}</h1>", _prose(document["info"]["description"])]
    parts.append("<nav>" + "".join(f'<a href="#{group}">{group}</a>' for group in groups) + '<a href="#records">records</a></nav>')
    for group in groups:
        parts.append(f'<h2 id="{group}">{group}</h2>')
        parts += [_operation_html(each) for each in found if each.group == group]
    parts.append('<h2 id="records">records</h2>')
    parts += [
        f'<h3 id="{each.name}">{each.name}</h3>{_prose(each.text)}{_table(each.fields, where=False)}' for each in records(document)
    ]
    head = f'<meta charset="utf-8"><title>Treadle: HTTP</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _operation_html(operation: Operation) -> str:
    scope = f'<span class="scope">scope {escape(operation.scope)}</span>' if operation.scope else ""
    parts = [f"<h3>{scope}<code>{operation.method} {escape(operation.path)}</code></h3>", _prose(operation.text)]
    if operation.fields:
        parts.append(_table(operation.fields, where=True))
    if operation.example is not None:
        parts.append(f"<pre>{escape(json.dumps(operation.example, indent=2))}</pre>")
    answer = f' <a href="#{operation.answer}">{escape(operation.answer)}</a>' if operation.answer else ""
    parts.append(f"<p>Returns {operation.status}{answer}.</p>")
    return "".join(parts)


def _table(fields: tuple[Field, ...], *, where: bool) -> str:
    rows = []
    for each in fields:
        place = f"<td>{each.where}</td>" if where else ""
        needed = " *" if where and each.required else ""
        rows.append(
            f"<tr><td><code>{escape(each.name)}</code>{needed}</td>{place}<td>{escape(each.kind)}</td><td>{_line(each.text)}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _prose(text: str) -> str:
    return "".join(f"<p>{_line(part)}</p>" for part in text.split("\n\n") if part.strip())


def _line(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def routes(make_document: Callable[[], dict[str, Any]]) -> list[Route]:
    """The document and the page; both are public, as they are the same on every server. They are made once, in a thread."""
    lock = threading.Lock()

    @cache
    def render() -> tuple[bytes, bytes]:
        document = make_document()
        return to_json(document), page(document).encode()

    def rendered() -> tuple[bytes, bytes]:
        with lock:
            return render()

    async def openapi(request: Request) -> Response:
        return Response((await asyncio.to_thread(rendered))[0], media_type=JSON)

    async def docs(request: Request) -> Response:
        return HTMLResponse((await asyncio.to_thread(rendered))[1], headers={"Content-Security-Policy": POLICY})

    return [Route("GET", f"{PREFIX}/openapi.json", openapi), Route("GET", f"{PREFIX}/docs", docs)]


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a record."""

    name: str
    kind: str
    text: str
    where: str = "body"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation."""

    method: str
    path: str
    group: str
    text: str
    scope: str | None
    fields: tuple[Field, ...]
    status: int
    answer: str
    """The record that it returns, or the media type; empty: nothing."""
    example: Any = None
    """An example of the body."""
    errors: tuple[int, ...] = ()
    """The statuses of errors."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the contract."""

    name: str
    text: str
    fields: tuple[Field, ...]


def operations(document: dict[str, Any]) -> list[Operation]:
    """All operations, group by group."""
    schemas = document["components"]["schemas"]
    found = [
        _operation(method.upper(), path, described, schemas)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
    ]
    groups = list(dict.fromkeys(each.group for each in found))
    return sorted(found, key=lambda each: groups.index(each.group))


def records(document: dict[str, Any]) -> list[Record]:
    """The records in answers and bodies, without the bodies themselves."""
    bodies = {
        _name(content["schema"])
        for methods in document["paths"].values()
        for described in methods.values()
        for content in described.get("requestBody", {}).get("content", {}).values()
    }
    schemas = document["components"]["schemas"]
    return [
        Record(name, schema.get("description", ""), _fields(schema))
        for name, schema in sorted(schemas.items())
        if name not in bodies and "properties" in schema
    ]


def kind_of(schema: dict[str, Any]) -> str:
    """A short name of a type."""
    if "$ref" in schema:
        return _name(schema)
    if options := schema.get("anyOf"):
        return " | ".join(kind_of(each) for each in options)
    if values := schema.get("enum"):
        return " | ".join(f'"{each}"' for each in values)
    if "const" in schema:
        return f'"{schema["const"]}"'
    kind = schema.get("type", "any")
    if kind == "array":
        return f"[{kind_of(schema.get('items', {}))}]"
    return {"date-time": "instant"}.get(schema.get("format", ""), str(kind))


def _operation(method: str, path: str, described: dict[str, Any], schemas: dict[str, Any]) -> Operation:
    parameters = tuple(
        Field(each["name"], kind_of(each["schema"]), each.get("description", ""), each["in"], bool(each.get("required")))
        for each in described.get("parameters", ())
    )
    content: dict[str, dict[str, Any]] = described.get("requestBody", {}).get("content", {})
    body: dict[str, Any] = next((each["schema"] for each in content.values()), {})
    body = next((each for each in body.get("anyOf", ()) if "$ref" in each), body)
    schema = schemas.get(_name(body), body)
    status = next(int(each) for each in described["responses"] if each < "300")
    answers: dict[str, dict[str, Any]] = described["responses"][str(status)].get("content", {})
    media = next(iter(answers), "")
    answer: dict[str, Any] = answers.get(media, {})
    return Operation(
        method,
        path,
        described["tags"][0],
        described.get("description") or described.get("summary", ""),
        described.get("x-scope"),
        (*parameters, *_fields(schema)),
        status,
        _name(answer.get("schema", {})) or media,
        next(iter(schema.get("examples", ())), None),
        tuple(sorted(int(each) for each in described["responses"] if each >= "400")),
    )


def _fields(schema: dict[str, Any]) -> tuple[Field, ...]:
    required = schema.get("required", ())
    return tuple(
        Field(name, kind_of(each), each.get("description", ""), "body", name in required)
        for name, each in schema.get("properties", {}).items()
    )


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


_PARTS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "patterns": "Patterns",
    "coming-from": "Coming from",
    "operations": "Operations",
    "reference": "Reference",
    "explanation": "Explanation",
}
_MARKDOWN = "text/markdown"
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


@cache
def pages() -> dict[str, str]:
    """The pages by path, such as `how-to/llm.md`, in reading order; empty in an installation without them."""
    package = Path(__file__).parents[2]
    root = next((each for each in (package / "docs", package.parents[1] / "docs") if (each / "reference").is_dir()), None)
    if root is None:
        return {}
    found = [page for part in _PARTS for page in sorted((root / part).rglob("*.md"))]
    return {page.relative_to(root).as_posix(): _COMMENT.sub("", page.read_text("utf-8")) for page in found}


def index(prefix: str = "") -> str:
    """The text of `/llms.txt`: every page with its title and first sentence."""
    lines = [
        "# Treadle",
        "",
        f"> A durable work engine for agents and long-running jobs, in Python. Documentation of version {VERSION}.",
        "",
        "Coding agents: `treadle skill show` prints short instructions for this version. [Everything in one file](llms-full.txt).",
    ]
    for part, title in _PARTS.items():
        shown = {path: text for path, text in pages().items() if path.startswith(f"{part}/")}
        lines += ["", f"## {title}", ""] if shown else []
        lines += [f"- [{_title(text)}]({prefix}{path}): {_summary(text)}" for path, text in shown.items()]
    return "\n".join(lines) + "\n"


def full() -> str:
    """The text of `/llms-full.txt`: all pages."""
    return f"# Treadle {VERSION}\n\n" + "\n\n".join(f"<!-- {path} -->\n\n{text.strip()}" for path, text in pages().items()) + "\n"


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")


def _summary(text: str) -> str:
    """The first sentence of the first paragraph, without links."""
    plain = next((part for part in text.split("\n\n")[1:] if part[:1].isalnum() or part[:1] in "`*"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split()))
    return re.split(r"(?<=[.:]) ", plain)[0].rstrip(":")


async def _index(request: Request) -> Response:
    return PlainTextResponse(await asyncio.to_thread(index, "docs/"))


async def _full(request: Request) -> Response:
    return PlainTextResponse(await asyncio.to_thread(full))


async def _page(request: Request) -> Response:
    text = (await asyncio.to_thread(pages)).get(request.path_params["page"])
    if text is None:
        raise HTTPException(404, "There is no such page; `/llms.txt` lists them.")
    return Response(text, media_type=_MARKDOWN)


ROUTES = [Route("GET", "/llms.txt", _index), Route("GET", "/llms-full.txt", _full), Route("GET", "/docs/{page:path}", _page)]
