"""RESULTS.md: each run writes its own section, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import results


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of this test's own."""
    path = tmp_path / "RESULTS.md"
    monkeypatch.setattr(results, "RESULTS", path)
    return path


def test_a_section_replaces_its_predecessor_and_keeps_the_others(page: Path):
    results.write("queue", "The queue", "old figures", "python -m bench queue")
    results.write("chaos", "Chaos", "nothing lost", "make chaos")
    results.write("queue", "The queue", "new figures", "python -m bench queue")
    text = page.read_text()
    assert "old figures" not in text
    assert text.index("new figures") < text.index("nothing lost")
    assert text.count("## ") == 2


def test_sections_are_in_page_order_regardless_of_write_order(page: Path):
    for name in reversed(results.ORDER):
        results.write(name, name, "...", name)
    places = [page.read_text().index(f"<!-- begin {name} -->") for name in results.ORDER]
    assert places == sorted(places)


def test_a_section_names_its_measurement_environment(page: Path):
    results.write("cli", "Commands", "...", "python -m bench cli")
    line = page.read_text()
    assert "## Commands: `python -m bench cli`" in line
    assert all(word in line for word in ("cores", "GiB", "CPython", "SQLite 3.", "PostgreSQL 1", "fsync on", "load"))


def test_handwritten_text_is_overwritten(page: Path):
    page.write_text("# What was measured\n\nA million, on a good day.\n")
    results.write("cli", "Commands", "...", "python -m bench cli")
    assert "good day" not in page.read_text()


def test_a_section_without_a_position_is_refused():
    with pytest.raises(ValueError, match="no place"):
        results.write("rumours", "Rumours", "...", "")


def test_numbers_are_formatted_for_people():
    assert [results.shown(each) for each in (1234.5, 45.67, 1.234, 12345, "x")] == ["1,234", "45.7", "1.23", "12,345", "x"]
