"""The lint of texts for users: words of the implementation are found in every kind of text, and in code they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_tools.prose import bad_terms, texts_for_users


@pytest.mark.parametrize("text", ["its lanes", "Lanes", "every move of a task", "3 held", "Letters", "make up for a range"])
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
