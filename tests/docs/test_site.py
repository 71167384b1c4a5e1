"""The documentation site: every page is in its navigation, and pages written for the repository work there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from build_tools.site_hooks import links_to_repository, with_blank_lines

from treadle.version import VERSION

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text("utf-8")


def test_the_navigation_names_every_page_once():
    named = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", CONFIG.split("\nnav:\n")[1], re.M)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page != DOCS / "README.md")


def test_the_build_fails_on_dead_links_and_loads_no_files_from_other_hosts():
    checks = dict(re.findall(r"^    (\w+): (\w+)$", CONFIG.split("\nvalidation:\n")[1].split("\n\n")[0], re.M))
    assert checks.keys() >= {"omitted_files", "not_found", "anchors", "absolute_links", "unrecognized_links"}
    assert set(checks.values()) == {"warn"}
    assert "\nstrict: true\n" in CONFIG
    assert "\n  font: false" in CONFIG


def test_a_published_site_has_the_minor_version_of_the_package():
    [program] = re.findall(r"docs-release:.*?python -c '([^']+)'", (ROOT / "Makefile").read_text("utf-8"), re.S)
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"\d+\.\d+\n", printed)
    assert VERSION.startswith(printed.strip() + ".")


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../../src/treadle/settings.py", "https://git.example/blob/main/src/treadle/settings.py"),
        ("../../examples", "https://git.example/tree/main/examples"),
        ("../../CONTRIBUTING.md#layout", "https://git.example/blob/main/CONTRIBUTING.md#layout"),
        ("../../src/missing.py", "../../src/missing.py"),
        ("../reference/afl.md#layout", "../reference/afl.md#layout"),
        ("../../../elsewhere", "../../../elsewhere"),
        ("https://example.org/a", "https://example.org/a"),
    ],
)
def test_links_out_of_the_documentation_lead_to_the_repository(link: str, expected: str):
    page = DOCS / "how-to" / "http.md"
    line = links_to_repository(f"see [it]({link}), and [more]({link}).", page, DOCS, "https://git.example/")
    assert line == f"see [it]({expected}), and [more]({expected})."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two:\n- a\n  more\n- b", "Two:\n\n- a\n  more\n- b"),
        ("One:\n1. a\n2. b", "One:\n\n1. a\n2. b"),
        ("Two:\n\n- a\n- b", "Two:\n\n- a\n- b"),
        ("```\nx\n- y\n```\n- z", "```\nx\n- y\n```\n\n- z"),
        ("```python fragment\nx\n```", "```python\nx\n```"),
        ("````\n```afl wrong\n````", "````\n```afl wrong\n````"),
    ],
)
def test_lists_and_code_blocks_read_as_in_the_repository(text: str, expected: str):
    assert "\n".join(line for line, _ in with_blank_lines(text.split("\n"))) == expected
