"""Every form of the dashboard: a value that an operation refuses is reported at its field, with everything that was typed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import count

import httpx
import pytest
import pytest_asyncio
from tests.web.conftest import visiting
from tests.web.scene import Scene, set_scene

pytestmark = [pytest.mark.xdist_group("web every form"), pytest.mark.asyncio(loop_scope="module")]

LONG = "9" * 400
TEXTS = ["no such \x01 value (", LONG]
INVALID = {
    "text": TEXTS,
    "search": TEXTS,
    "number": ["abc", "1e999", "-1", LONG],
    "textarea": ["{broken", "[1,"],
    "datetime-local": ["yesterday", "0000-99-99T00:00"],
}
"""Values of fields, by type; a field may accept some of them. Boxes and selections send what the page offers."""

START = {"kind": "task", "target": "later"}
VALID = {
    "/alerts": {"name": "rule", "when": "problem", "to": "https://ops.example.org"},
    "/approvals/ID": {"decision": "approve"},
    "/flows/checkout/start": {"in-lines": "[]", "in-address": "Loom Street", "in-card": "4242"},
    "/handlers": {"facet_name": "shop.Send", "module_uri": "billing"},
    "/limits": {"key": "customer:1", "max_running": "3"},
    "/lists/LIST/backlog": {"name": "later", "backlog_limit": "10"},
    "/lists/LIST/rate": {"name": "later", "rate": "5"},
    "/objectives": {"title": "it works"},
    "/schedules": {"name": "nightly", "cron": "0 3 * * *", **START},
    "/settings/retention": {"task_list": "default", "completed": "60"},
    "/settings/tokens": {"name": "ci", "scope": "read"},
    "/tasks": {"name": "later"},
    "/watchers": {"name": "inbox", "what": "directory", "place": "/srv/in", **START},
}
"""Valid values of fields that are required, by the form's action, so that one field at a time is invalid."""


NUMBERS = count()


@dataclass
class Form:
    """A form of a page: its fields with their types, and the values that it sends as it is."""

    page: str
    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The action without ids."""
        return re.sub(r"^/lists/[^/]+", "/lists/LIST", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", self.action))

    def filled(self, name: str, value: str) -> list[tuple[str, str]]:
        """The values with one that is chosen, the others valid."""
        chosen = {key: text for key, text in VALID.get(self.kind, {}).items() if self.method == "post"} | {name: value}
        return [(key, text) for key, text in self.values if key not in chosen] + [
            (key, f"{text}-{next(NUMBERS)}" if key == "name" != name else text) for key, text in chosen.items()
        ]


class Forms(HTMLParser):
    """The forms of a page."""

    def __init__(self, path: str, page: str) -> None:
        super().__init__()
        self.path, self.forms, self.selection, self.area = path, list[Form](), "", ""
        self.is_inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        name, value = attributes.get("name", ""), attributes.get("value", "")
        if tag == "form" and "data-ask-many" not in attributes:  # which sends the records that are selected
            self.is_inside = True
            self.forms.append(Form(self.path, attributes.get("action", self.path), attributes.get("method", "get")))
        elif self.is_inside and tag in ("input", "textarea", "select") and name:
            kind = attributes.get("type", "text") if tag == "input" else tag
            self.forms[-1].fields.append((name, kind))
            self.selection, self.area = (name if tag == "select" else ""), (name if tag == "textarea" else "")
            if tag == "input" and (kind not in ("checkbox", "radio") or "checked" in attributes):
                self.forms[-1].values.append((name, value))
        elif self.is_inside and tag == "option" and self.selection and "selected" in attributes:
            self.forms[-1].values.append((self.selection, value))

    def handle_data(self, data: str) -> None:
        if self.area:
            self.forms[-1].values.append((self.area, data))
            self.area = ""

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = self.is_inside and tag != "form"
        self.area = "" if tag == "textarea" else self.area


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with set_scene(tmp_path_factory.mktemp("scene")) as scene:
        yield scene


def complaint(answer: httpx.Response, name: str, value: str) -> str | None:
    """The reason that the answer to an invalid value of the field is not good; None if it is."""
    if answer.status_code in (200, 303):
        flash = next((text.strip('"') for key, text in answer.cookies.items() if "flash" in key), "")
        return f"a message apart: {bytes.fromhex(flash[1:]).decode()}" if flash.startswith("!") else None
    marks = re.findall(r'class="field-error"(?: id="error-([^"]*)")? role="alert">([^<]*)', answer.text)
    if answer.status_code != 422 or [mark for mark, _ in marks] != [name]:
        return f"{answer.status_code} {marks}"
    return None if name in answer.text else "the field is lost"


async def test_an_invalid_value_is_reported_at_its_field(scene: Scene) -> None:
    complaints, tried = [], set[str]()
    async with visiting(scene.engine) as visit:
        browser = visit.browser
        browser.headers["Authorization"] = f"Bearer {scene.secret}"
        for path in scene.paths.values():
            for form in Forms(path, (await browser.get(path)).text).forms:
                if form.method == "dialog" or (key := f"{form.method} {form.kind} {form.fields}") in tried:
                    continue
                tried.add(key)
                for name, value in [(name, value) for name, kind in form.fields for value in INVALID.get(kind, [])]:
                    browser.cookies.clear()
                    if form.method == "get":
                        answer = await browser.get(form.action, params=form.filled(name, value))
                    else:
                        data: dict[str, list[str]] = {}
                        for each, text in form.filled(name, value):
                            data.setdefault(each, []).append(text)
                        answer = await browser.post(form.action, data=data, headers={"referer": f"http://127.0.0.1{path}"})
                    if (reason := complaint(answer, name, value)) is not None:
                        complaints.append(f"{form.method} {form.kind} of {path}: {name}={value[:22]!r}: {reason[:150]}")
    assert {kind for key in tried for kind in VALID if f"post {kind} " in key} == VALID.keys()
    assert not complaints, "\n".join(complaints)
