"""`/v1/docs`: the calls for people, in one page that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from typing import Any

from treadle.http.reference import Field, Operation, operations, records

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
"""Nothing but its own style, and that only as it is written here."""


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    found = operations(document)
    groups = list(dict.fromkeys(each.group for each in found))
    parts = [f"<h1>Treadle {escape(document['info']['version'])}</h1>", _prose(document["info"]["description"])]
    parts.append("<nav>" + "".join(f'<a href="#{group}">{group}</a>' for group in groups) + '<a href="#records">records</a></nav>')
    for group in groups:
        parts.append(f'<h2 id="{group}">{group}</h2>')
        parts += [_shown(each) for each in found if each.group == group]
    parts.append('<h2 id="records">records</h2>')
    parts += [
        f'<h3 id="{each.name}">{each.name}</h3>{_prose(each.text)}{_table(each.fields, where=False)}' for each in records(document)
    ]
    head = f'<meta charset="utf-8"><title>Treadle: HTTP</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _shown(operation: Operation) -> str:
    scope = f'<span class="scope">scope {escape(operation.scope)}</span>' if operation.scope else ""
    parts = [f"<h3>{scope}<code>{operation.method} {escape(operation.path)}</code></h3>", _prose(operation.text)]
    if operation.fields:
        parts.append(_table(operation.fields, where=True))
    if operation.example is not None:
        parts.append(f"<pre>{escape(json.dumps(operation.example, indent=2))}</pre>")
    answer = f' <a href="#{operation.answer}">{escape(operation.answer)}</a>' if operation.answer else ""
    parts.append(f"<p>Answers {operation.status}{answer}.</p>")
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
