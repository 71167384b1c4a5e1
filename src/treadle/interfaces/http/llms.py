"""`/llms.txt` and `/llms-full.txt`: the documentation of this version for models (llmstxt.org), and its pages below `/docs/`.

A wheel contains the pages as `treadle/docs`; a checkout has them in its own `docs`.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from treadle.interfaces.http.routes import Route
from treadle.version import VERSION

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
