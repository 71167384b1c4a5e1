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
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from treadle.api.contract import PREFIX
from treadle.api.wire import to_json
from treadle.interfaces.http.openapi import JSON
from treadle.interfaces.http.routes import HttpRoute
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
    return _template().render(style=_STYLE, info=document["info"], groups=operations(document), records=records(document))


def operations(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The operations by group, as the page shows them."""
    schemas, groups = document["components"]["schemas"], dict[str, list[dict[str, Any]]]()
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            body = _body_of(described)
            fields = _shown(described, schemas.get(_name(body), body))
            groups.setdefault(described["tags"][0], []).append({"method": method.upper(), "path": path, **fields})
    return groups


def records(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The records in answers and bodies, with their schemas; without the bodies themselves."""
    bodies = {_name(_body_of(described)) for methods in document["paths"].values() for described in methods.values()}
    schemas = document["components"]["schemas"]
    return [(name, schemas[name]) for name in sorted(schemas) if name not in bodies and "properties" in schemas[name]]


@cache
def _template() -> Template:
    environment = Environment(loader=PackageLoader("treadle.interfaces.http"), autoescape=True, trim_blocks=True)
    environment.filters.update(
        prose=_prose, line=_line, kind_of=kind_of, fields_of=fields_of, indented=lambda value: json.dumps(value, indent=2)
    )
    return environment.get_template("docs.html")


def _prose(text: str) -> Markup:
    return Markup("").join(Markup("<p>{}</p>").format(_line(part)) for part in text.split("\n\n") if part.strip())


def _line(text: str) -> Markup:
    parts = enumerate(re.split(r"`([^`]+)`", text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in parts)


def routes(make_document: Callable[[], dict[str, Any]]) -> list[HttpRoute]:
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

    return [HttpRoute("GET", f"{PREFIX}/openapi.json", openapi), HttpRoute("GET", f"{PREFIX}/docs", docs)]


def kind_of(schema: dict[str, Any]) -> str:
    """A short name of a type."""
    if "$ref" in schema:
        return _name(schema)
    if options := schema.get("anyOf"):
        return " | ".join(kind_of(option) for option in options)
    if values := schema.get("enum"):
        return " | ".join(f'"{value}"' for value in values)
    if "const" in schema:
        return f'"{schema["const"]}"'
    kind = schema.get("type", "any")
    if kind == "array":
        return f"[{kind_of(schema.get('items', {}))}]"
    return {"date-time": "instant"}.get(schema.get("format", ""), str(kind))


def _body_of(described: dict[str, Any]) -> dict[str, Any]:
    """The schema of the body of an operation; empty if it takes none."""
    content = described.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = next((media["schema"] for media in content.values()), {})
    return next((option for option in schema.get("anyOf", ()) if "$ref" in option), schema)


def _shown(described: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """An operation as the page shows it."""
    parameters = [
        {**parameter, "text": parameter.get("description", ""), "where": parameter["in"], "required": parameter.get("required")}
        for parameter in described.get("parameters", ())
    ]
    status = next(code for code in described["responses"] if code < "300")
    answers: dict[str, dict[str, Any]] = described["responses"][status].get("content", {})
    media = next(iter(answers), "")
    return {
        "text": described.get("description") or described.get("summary", ""),
        "scope": described.get("x-scope"),
        "fields": [*parameters, *fields_of(body)],
        "status": status,
        "answer": _name(answers.get(media, {}).get("schema", {})) or media,
        "example": next(iter(body.get("examples", ())), None),
        "errors": sorted(code for code in described["responses"] if code >= "400"),
    }


def fields_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a record, as the page shows them."""
    required = schema.get("required", ())
    return [
        {"name": name, "schema": field, "text": field.get("description", ""), "where": "body", "required": name in required}
        for name, field in schema.get("properties", {}).items()
    ]


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
    root = next((folder for folder in (package / "docs", package.parents[1] / "docs") if (folder / "reference").is_dir()), None)
    if root is None:
        return {}
    paths = [page for part in _PARTS for page in sorted((root / part).rglob("*.md"))]
    return {page.relative_to(root).as_posix(): _COMMENT.sub("", page.read_text("utf-8")) for page in paths}


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
        section = {path: text for path, text in pages().items() if path.startswith(f"{part}/")}
        lines += ["", f"## {title}", ""] if section else []
        lines += [f"- [{_title(text)}]({prefix}{path}): {_summary(text)}" for path, text in section.items()]
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


ROUTES = [
    HttpRoute("GET", "/llms.txt", _index),
    HttpRoute("GET", "/llms-full.txt", _full),
    HttpRoute("GET", "/docs/{page:path}", _page),
]
