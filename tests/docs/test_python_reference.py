"""The Python reference: every public name has its place, and docstrings state the meaning of arguments."""

from __future__ import annotations

import re
from pathlib import Path

import griffe
import pytest
from docs.python_reference import described, exports, find, marked, members, options_table, with_python

ROOT = Path(__file__).parents[2]
PAGES = {page: page.read_text("utf-8") for page in sorted((ROOT / "docs/reference/python").glob("*.md"))}
MARKED = {path for text in PAGES.values() for path in marked(text)}
MODULES = (
    "treadle",
    "treadle.agents",
    "treadle.client",
    "treadle.dispatch",
    "treadle.integrations.enqueue",
    "treadle.integrations.enqueue.asyncpg",
    "treadle.integrations.enqueue.psycopg",
    "treadle.integrations.enqueue.sqlalchemy",
    "treadle.integrations.django",
    "treadle.integrations.fastapi",
    "treadle.integrations.flask",
    "treadle.integrations.langgraph",
    "treadle.integrations.openai_agents",
    "treadle.integrations.pydantic_ai",
    "treadle.integrations.sqlalchemy",
    "treadle.lang",
    "treadle.llm",
    "treadle.testing",
    "treadle.testing.pytest_plugin",
    "treadle.integrations.webhooks",
)
OTHERWISE = {"Wish", "make_wish", "StepOptions", "ToolOptions"}
"""Former names, and options that have a table."""


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_on_a_page(module: str):
    names = exports(module)
    assert names
    constants = {name for name in names if name.isupper()}
    lost = {name for name in names if f"{module}.{name}" not in MARKED} - OTHERWISE - constants
    assert lost == set()
    text = "\n".join(PAGES.values())
    assert [name for name in constants if f"`{name}`" not in text] == []


def test_every_integration_is_in_the_list():
    places = (ROOT / "src/treadle/integrations").iterdir()
    own = {"__init__", "__pycache__", "agent_steps", "mount", "processes", "store_url", "worker"}
    assert {f"treadle.integrations.{each.stem}" for each in places if each.stem not in own} <= set(MODULES)


@pytest.mark.parametrize("name", ["Engine", "Context", "FunctionContext", "Handle"])
def test_docstrings_state_the_meaning_of_arguments(name: str):
    cls = find(f"treadle.{name}")
    assert isinstance(cls, griffe.Class)
    hidden = {each[2:] for text in PAGES.values() for each in _flags(text, f"treadle.{name}") if each.startswith(" -")}
    silent = []
    for key, method in members(cls).items():
        if isinstance(method, griffe.Function) and key not in hidden:
            text = method.docstring.value if method.docstring else ""
            shown = {each.name for one in method.overloads or [method] for each in one.parameters}
            shown -= {"self", "args", "kwargs", "options", "two", "three", "four", "five", "six"}
            silent += [f"{key}({each})" for each in sorted(shown) if not re.search(rf"\b{each}\b", text)]
    assert silent == []


def _flags(text: str, path: str) -> list[str]:
    return re.findall(r" -\w+", "".join(re.findall(rf"<!-- python: {re.escape(path)}((?: \S+)*) -->", text)))


def test_members_that_a_page_hides_exist():
    for text in PAGES.values():
        for path in marked(text):
            cls = find(path)
            for flag in _flags(text, path):
                assert isinstance(cls, griffe.Class)
                assert flag[2:] in members(cls) or flag == " -__init__", f"{path}{flag}"


def test_a_block_has_signature_docstring_and_members_and_is_idempotent():
    text = "<!-- python: treadle.Winner fields -->\n<!-- /python -->\n"
    filled = with_python(text)
    assert "## `Winner`" in filled
    assert "| `index` | int |" in filled
    assert with_python(filled) == filled


def test_specialists_scopes_tokens_and_callbacks_are_covered():
    engine, handlers = described("treadle.Engine", []), described("treadle.Context", [])
    assert "### `Engine.specialist`" in engine
    for each in ("dispatch_token", "callback_url", "append_produced"):
        assert each in handlers
    assert "| `scope` |" in options_table("treadle.api.options.EnqueueOptions")
    assert "treadle.goals.gates.Judgement" in MARKED
