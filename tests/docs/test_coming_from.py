"""The pages for users of other systems: our side of each runs, their side parses, and every name that a table promises exists."""

from __future__ import annotations

import ast
import contextlib
import inspect
import keyword
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

import treadle
from treadle.lang.tokens import KEYWORDS
from treadle.testing import BlockingEnvironment
from treadle.workers.context import HandlerOptions

DOCS = Path(__file__).parents[2] / "docs"
SNIPPETS = DOCS / "snippets" / "coming_from"
OURS = sorted(SNIPPETS.glob("from_*.py"))
THEIRS = sorted((SNIPPETS / "theirs").glob("*.py"))
PAGES = sorted((DOCS / "coming-from").rglob("*.md"))
_EMBEDDED = re.compile(r"<!-- snippet: docs/snippets/coming_from/(\S+?)#(\S+) -->")


@pytest.mark.parametrize("program", OURS, ids=lambda path: path.stem)
def test_the_treadle_code_of_a_page_runs_and_passes_its_tests(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_STORE", raising=False)
    names = runpy.run_path(str(program), run_name="__main__")
    assert list(tmp_path.glob("*.db")), "it uses SQLite"
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        with BlockingEnvironment(names["engine"]) as environment:
            test(environment)


@pytest.mark.parametrize("program", THEIRS, ids=lambda path: path.stem)
def test_the_code_of_the_other_library_parses_and_names_its_version(program: Path):
    text = program.read_text("utf-8")
    assert re.search(r"checked with \S+ [\d.]+\d", ast.get_docstring(ast.parse(text)) or "")


def test_every_section_of_a_program_is_shown_on_a_page():
    shown = {(path, section) for page in PAGES for path, section in _EMBEDDED.findall(page.read_text("utf-8"))}
    hidden = {"rest", "end", "last"}
    for program in [*OURS, *THEIRS]:
        sections = set(re.findall(r"^ *# --- (\S+) ---$", program.read_text("utf-8"), re.M)) - hidden
        assert {(str(program.relative_to(SNIPPETS)), section) for section in sections} <= shown


def test_every_section_that_a_page_shows_exists():
    for page in PAGES:
        text = page.read_text("utf-8")
        for path, section in _EMBEDDED.findall(text):
            assert f"# --- {section} ---\n" in (SNIPPETS / path).read_text("utf-8"), page.name


def rows(page: Path) -> list[tuple[str, str]]:
    """The terms and the import paths in the last column of the tables of a page that have such a column."""
    found = []
    importable = False
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            importable = False
        elif cells[-1] == "import path":
            importable = True
        elif importable:
            found += [(cells[0], path) for path in re.findall(r"`([^`]+)`", cells[-1])]
    return found


IMPORTS = [(page.stem, term, path) for page in PAGES for term, path in rows(page)]


def test_every_import_path_of_a_table_leads_to_something():
    missing = [(page, term, path) for page, term, path in IMPORTS if not _exists(path)]
    assert missing == []


def _exists(path: str) -> bool:
    """Whether `package.module.Class.attribute` can be imported; fields of dataclasses and structs count as attributes."""
    parts = path.removesuffix("()").split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name is not None and ".".join(parts).startswith(error.name):
                continue
            raise
        for part in parts[length:]:
            fields = {name for base in getattr(found, "__mro__", ()) for name in getattr(base, "__annotations__", {})}
            if hasattr(found, part):
                found = getattr(found, part)
            elif part in fields:
                found = None
            else:
                return False
        return True
    return False


def ours(page: Path) -> list[str]:
    """The code in our column of the tables of a page, without commands."""
    codes: list[str] = []
    column: int | None = None
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            column = None
        elif column is None:
            column = cells.index("Treadle") if "Treadle" in cells else len(cells)
        elif column < len(cells):
            codes += [code for code in re.findall(r"`([^`]+)`", cells[column]) if not code.startswith("treadle ")]
    return codes


EXAMPLES = {"connection", "ctx", "id", "name", "order_workflow", "session", "sys"}
"""Names of values in examples, which users choose."""
NOT_OURS = {"delay_on_commit", "close_stream", "as_completed", "asyncio", "django"}
"""Names of other libraries that our column mentions."""


def _public_names() -> set[str]:
    """Every word of the public interface: names, options, parameters, and keywords of Python and AFL."""
    names = set(re.findall(r"\w+", (Path(__file__).parents[1] / "golden" / "public_surface.txt").read_text("utf-8")))
    for name in treadle.__all__:
        kind = getattr(treadle, name)
        members = vars(kind) if isinstance(kind, type) else {}
        names.update(members)
        for member in (kind, *members.values()):
            with contextlib.suppress(TypeError, ValueError):
                names.update(inspect.signature(getattr(member, "__func__", member)).parameters)
    return names | HandlerOptions.__annotations__.keys() | {*keyword.kwlist, *KEYWORDS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_in_our_column_exists(page: Path) -> None:
    names = _public_names() | EXAMPLES | NOT_OURS
    missing = {
        (code, word)
        for code in ours(page)
        for word in re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", code))
        if word not in names
    }
    assert missing == set()
    contexts = (treadle.FunctionContext, treadle.Context)
    members = [(code, name) for code in ours(page) for name in re.findall(r"\bctx\.(\w+)", code)]
    assert [code for code, name in members if not any(hasattr(context, name) for context in contexts)] == []
