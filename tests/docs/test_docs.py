"""The documentation is true: what is made from code is up to date, everything has its place, and every snippet works."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from docs import generate, sql_features
from treadle.lang import RULES, compile_sources
from treadle.model import errors, states

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [*generate.texts(), *sorted((ROOT / "examples").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
_BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.S | re.M)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_MAX_FRAGMENTS = 3


def blocks(lang: str) -> Iterator[tuple[str, str, list[str]]]:
    """(place, code, marks) of every code block in that language; generated rules are tested elsewhere."""
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text("utf-8")), 1):
            word, *marks = match["info"].split() or [""]
            performed = page.parent.name == "tutorial" and lang == "python"  # by tests/examples/test_tutorial.py
            if word == lang and page.name != "diagnostics.md" and not performed:
                yield f"{page.relative_to(ROOT)}#{number}", match["code"], marks


AFL, PYTHON = list(blocks("afl")), list(blocks("python"))


def text_of(page: str) -> str:
    return (REFERENCE / page).read_text("utf-8")


# --- what is made from code ---


def test_generated_pages_and_snippets_are_up_to_date():
    behind = [str(path.relative_to(ROOT)) for path in generate.outdated()]
    assert behind == [], "run `python -m docs.generate`"


def test_every_listed_feature_of_sql_is_used():
    rows = [line.split(" | ")[0].removeprefix("| ") for line in sql_features.table().splitlines()[2:]]
    assert sorted(rows) == sorted(sql_features.FEATURES), "remove features that no statement uses"


@pytest.mark.parametrize(
    ("feature", "sql", "used"),
    [
        ("`unnest` with several arrays", "select * from unnest($1::uuid[], $2::text[])", True),
        ("`unnest` with several arrays", "select * from unnest(array(select f(a, b) from c), $2)", True),
        ("`unnest` with several arrays", "select f(unnest(array(select f(a, b) from c)), d)", False),
        ("`on conflict`", "insert into a values (1) -- on conflict", False),
        ("data-modifying `with`", "with a as materialized (\n  update b set c = 1 returning d\n) select * from a", True),
        ("partial indexes", "create index a on b (c);\nselect 1 where true;", False),
        ("partial indexes", "create unique index a on b (c)\n  where d is null;", True),
    ],
)
def test_features_of_sql_are_recognised(feature: str, sql: str, used: bool):
    assert (sql_features.find_use(sql_features.FEATURES[feature], [("a.sql", sql)], []) is not None) is used


@pytest.mark.parametrize("machine", states.MACHINES.values(), ids=lambda machine: machine.entity)
def test_a_diagram_has_every_transition_of_its_table_and_no_other(machine: states.StateMachine):
    section = text_of("states.md").split(f"## {machine.entity.capitalize()}\n")[1]
    drawn = {
        (source, transition): target
        for source, target, transitions in re.findall(r"^    (\w+) --> (\w+): (.+)$", section.split("```")[1], re.M)
        for transition in transitions.split(", ")
    }
    assert drawn == {(str(source), transition): str(target) for (source, transition), target in machine.transitions.items()}


# --- everything has its place ---


def test_every_state_has_a_heading():
    text = text_of("states.md")
    for machine in states.MACHINES.values():
        for state in machine.states:
            assert f"### {machine.entity} `{state}`" in text
    for state in states.TaskState:
        assert f"`{state}`" in text


def test_every_setting_has_a_heading():
    from treadle.settings import Settings

    text = text_of("settings.md")
    for name in Settings.__dataclass_fields__:
        assert f"## `TREADLE_{name.upper()}`" in text or (
            name.startswith(("afl_", "anthropic_")) and f"## `{name.upper()}`" in text
        )


def test_every_metric_has_a_heading():
    from treadle.engine.metric_table import METRICS

    text = text_of("metrics.md")
    for metric in METRICS:
        assert f"## `{metric.shown_name}`\n" in text


def test_every_command_has_a_heading():
    text = text_of("commands.md")
    names = [name for name, _ in generate.commands()]
    assert len(names) > 25
    for name in names:
        assert f"## `treadle {name}`\n" in text


def test_every_tool_resource_and_prompt_has_a_heading():
    from treadle.interfaces.mcp.catalog import TOOLS
    from treadle.interfaces.mcp.prompts import PROMPTS_BY_NAME
    from treadle.interfaces.mcp.resources import RESOURCES

    text = text_of("mcp.md")
    assert len(TOOLS) > 30
    for name in (*TOOLS, *(each.uri for each in RESOURCES), *PROMPTS_BY_NAME):
        assert f"### `{name}`\n" in text


def test_every_route_has_a_heading():
    from treadle.api.contract import PREFIX
    from treadle.api.facade import all_calls

    text = text_of("http.md")
    for call in all_calls():
        assert f"## `{call.route.method} {PREFIX}{call.route.path}`\n" in text
    for route in ("GET /health", "GET /metrics", "GET /v1/events/stream", "POST /login"):
        assert f"## `{route}`\n" in text


def test_every_error_code_has_a_row():
    text = text_of("errors.md")
    for each in generate.error_classes():
        assert f"| `{each.code}` |" in text
    codes = {code for codes in errors.CODES.values() for code in codes}
    assert generate.given_codes() - codes == set(), "say what they mean in treadle.model.errors.CODES"
    assert all(f"| `{code}` |" in text for code in codes)
    assert generate.used_codes("Problem") - set(generate.PROBLEMS) == set(), "say what they mean in docs/generate.py"
    assert generate.used_codes("Reason") - set(generate.REASONS) == set(), "say what they mean in docs/generate.py"


def test_every_rule_has_a_heading():
    text = text_of("diagnostics.md")
    for rule in RULES:
        assert f"## `{rule}` (" in text


def test_every_word_of_the_language_is_in_its_reference():
    text = text_of("afl.md")
    words = (
        "namespace use facet event workflow implicit schema with as andThen yield foreach in prompt system template model script"
    )
    for word in [
        *words.split(),
        "catch",
        "when",
        "case",
        "contains",
        "startsWith",
        "endsWith",
        "not in",
        "sys.log",
        "sys.assert",
        "Timeout",
    ]:
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text), word


def test_every_link_leads_somewhere():
    for page in PAGES:
        text = _BLOCK.sub("", page.read_text("utf-8"))
        for match in _LINK.finditer(text):
            target, _, anchor = match["target"].partition("#")
            if target.startswith(("http:", "https:")):
                continue
            place = (page.parent / target).resolve() if target else page
            assert place.exists(), f"{page.name}: {match['target']}"
            if anchor and place.suffix == ".md":
                heads = {_anchor(head) for head in re.findall(r"^#+ (.+)$", place.read_text("utf-8"), re.M)}
                assert anchor in heads, f"{page.name}: {match['target']}"


def _anchor(head: str) -> str:
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")


def test_every_page_is_found_from_the_readme_or_the_index():
    linked = set()
    for index in (ROOT / "README.md", ROOT / "docs/README.md", ROOT / "docs/adr/README.md", ROOT / "docs/reference/python.md"):
        linked |= {
            (index.parent / match["target"].partition("#")[0]).resolve() for match in _LINK.finditer(index.read_text("utf-8"))
        }
    lost = [page for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked and page.name != "README.md"]
    assert lost == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 700


# --- snippets work ---


@pytest.mark.parametrize(("place", "code", "marks"), AFL, ids=[each[0] for each in AFL])
def test_afl_snippets_compile_without_a_warning(place: str, code: str, marks: list[str]):
    if "fragment" in marks:
        pytest.skip("a fragment")
    compiled = compile_sources([(place, code)])
    assert compiled.diagnostics == (), compiled.render()


@pytest.mark.parametrize(("place", "code", "marks"), PYTHON, ids=[each[0] for each in PYTHON])
def test_python_snippets_run(place: str, code: str, marks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if "fragment" in marks:
        pytest.skip("a fragment")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_STORE", raising=False)
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    exec(compile(code, place, "exec"), vars(program))


def test_documentation_has_few_fragments():
    assert sum("fragment" in marks for _, _, marks in [*AFL, *PYTHON]) <= _MAX_FRAGMENTS


def test_files_named_in_pages_and_in_package_json_exist():
    places = [ROOT / "package.json", *(ROOT / "src/treadle/interfaces/web").rglob("*.html")]
    named = {path for place in places for path in re.findall(r"\b(?:examples|build_tools|build)/[\w/.-]+\w", place.read_text())}
    assert "build_tools/assets.py" in named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_place_in_the_table_of_places_exists():
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines() if line.startswith("| W")]
    places = [place for row in rows for place in re.findall(r"`([\w.-]+(?:/[\w.-]+)*/[\w.-]*)`", row)]
    assert len(places) > 40
    assert [place for place in places if not (ROOT / place).exists() and not (ROOT / "src/treadle" / place).exists()] == []
