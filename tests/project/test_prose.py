"""The lint of texts for users: words of the implementation are found in every kind of text, and in code they are not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from build_tools.prose import (
    MAX_TEMPLATE_COLUMNS,
    bad_definitions,
    bad_terms,
    bad_variables,
    long_entries,
    long_template_lines,
    repeated_classes,
    retired_names,
    silent_tests,
    texts_for_users,
    unexplained_sleeps,
)


@pytest.mark.parametrize("text", ["its lanes", "Lanes", "every move of a task", "Letters", "make up for a range"])
def test_words_of_the_implementation_are_rejected(text: str):
    assert list(bad_terms(Path("x.md"), text))


@pytest.mark.parametrize("text", ["dead letters", "a lease held by a worker", "letters, digits and dots", "time moves on"])
def test_plain_english_is_accepted(text: str):
    assert list(bad_terms(Path("x.md"), text)) == []


def test_templates_help_descriptions_and_documents_are_read_without_their_code(tmp_path: Path):
    for name, text in {
        "src/treadle/interfaces/web/templates/a.html": '{% call card("Lanes") %}<p>{{ list.lanes }} the moves</p>',
        "src/treadle/api/b.py": '"""See `lanes`."""\nX = "all lanes here"\n',
        "docs/how-to/c.md": "```\nlanes\n```\nuse the lane\n",
        "docs/adr/d.md": "lanes",
        "README.md": "`lanes`",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [each for shown, text, line in texts_for_users(tmp_path) for each in bad_terms(shown, text, line)]
    assert [each.partition(": ")[0] for each in found] == [
        "src/treadle/interfaces/web/templates/a.html:1",
        "src/treadle/interfaces/web/templates/a.html:1",
        "src/treadle/api/b.py:2",
        "docs/how-to/c.md:4",
    ]


def test_long_lines_of_templates_are_rejected(tmp_path: Path):
    folder = tmp_path / "src/treadle/interfaces/web/templates"
    folder.mkdir(parents=True)
    (folder / "a.html").write_text("x" * MAX_TEMPLATE_COLUMNS + "\n" + "x" * (MAX_TEMPLATE_COLUMNS + 1) + "\n")
    (violation,) = long_template_lines(tmp_path)
    assert violation.startswith("src/treadle/interfaces/web/templates/a.html:2: ")


@pytest.mark.parametrize(
    "code", ["found = 1", "for each in ():\n    pass", "MOST_ROWS = 3", "_PATIENCE = 5", "if (known := 1):\n    pass"]
)
def test_vague_variables_and_odd_limits_are_rejected(code: str):
    assert list(bad_variables(Path("module.py"), ast.parse(code)))


@pytest.mark.parametrize("code", ["row = 1", "MAX_ROWS = 3", "class Progress:\n    known: int = 0"])
def test_names_of_things_and_fields_are_accepted(code: str):
    assert not list(bad_variables(Path("module.py"), ast.parse(code)))


@pytest.mark.parametrize(
    ("code", "accepted"),
    [
        ("def test_what_a_waiting_task_does(): ...", False),
        ("def test_a_retry_says_when(): ...", False),
        ("def test_a_dry_run_changes_nothing(): ...", False),
        ("def tell_error(): ...", False),
        ("class LaneLookout: ...", False),
        ("def test_a_waiter_is_woken(): ...", True),
        ("def what_is_missing(): ...", True),
    ],
)
def test_names_of_definitions_use_the_words_of_the_field(code: str, accepted: bool) -> None:
    assert accepted is not any(bad_definitions(Path("src/module.py"), ast.parse(code)))


def test_two_classes_of_one_layer_with_the_same_name_are_rejected(tmp_path: Path) -> None:
    for name in ("kernel/a.py", "kernel/b/c.py", "workers/d.py"):
        path = tmp_path / "src/treadle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("class Plan: ...\n")
    (violation,) = repeated_classes(tmp_path)
    assert violation.startswith("src/treadle/kernel/b/c.py:1: kernel has a class Plan already, in src/treadle/kernel/a.py:1")


@pytest.mark.parametrize(
    ("body", "is_silent"),
    [
        ("run()", True),
        ("assert run()", False),
        ('"""Nothing is left."""\n    run()', False),
        ("with pytest.raises(ValueError):\n        run()", False),
        ("await until(done)", False),
    ],
)
def test_a_test_asserts_or_has_a_docstring(body: str, is_silent: bool):
    tree = ast.parse(f"async def test_it():\n    {body}\n")
    assert bool(list(silent_tests(Path("x.py"), tree))) == is_silent


@pytest.mark.parametrize(
    ("code", "is_unexplained"),
    [
        ("time.sleep(0.5)", True),
        ("asyncio.sleep(seconds)", True),
        ("asyncio.sleep(0)", False),
        ("asyncio.sleep(LOOK_EVERY)", False),
        ("time.sleep(0.5)  # the absence of an event takes time", False),
        ("while not done():\n    time.sleep(0.01)", False),
        ("clock.sleep(0.5)", False),
    ],
)
def test_a_sleep_polls_or_has_a_reason(code: str, is_unexplained: bool):
    assert bool(list(unexplained_sleeps(Path("x.py"), ast.parse(code), code))) == is_unexplained


@pytest.mark.parametrize(
    ("entry", "is_long"),
    [
        ("A change of one sentence.", False),
        ("A sentence with a [link](" + "x" * 200 + ").", False),
        ("One sentence. Another one.", True),
        ("x" * 201, True),
        ("x" * 100 + "\n  " + "x" * 100, True),
    ],
)
def test_an_entry_of_the_changelog_is_one_short_sentence(entry: str, is_long: bool):
    assert bool(list(long_entries(f"## [1.0.0]\n\n**Notes.**\n\n- {'x' * 300}\n\n### Added\n\n- {entry}\n- Another.\n"))) == is_long


@pytest.mark.parametrize("text", ["a stored body", "stored bodies", "record.body", "class TokenBody:", "body ->> '$.due_at'"])
def test_a_stored_document_is_not_called_body(tmp_path: Path, text: str):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text(f"The request body.\n{text}\n")
    (violation,) = retired_names(tmp_path)
    assert violation.startswith("docs/a.md:2: ")
    assert violation.endswith("is now 'document'")
