"""The TextMate grammar, the CodeMirror mode and the extension, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from build_tools.editors import EDITORS
from build_tools.editors.extension import STAMP, VSIX, build, fetch
from tests.editors.corpus import differences, programs

PROGRAMS = programs()
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.xdist_group("editors node"),
    pytest.mark.skipif(NODE is None, reason="node is not installed: TextMate, CodeMirror and VS Code cannot be tested"),
]


@pytest.fixture(scope="module")
def highlighted() -> dict[str, dict[str, list[tuple[int, int, str]]]]:
    """All programs in one process of node; offsets count UTF-16 units, so astral characters are replaced."""
    if not fetch():
        pytest.skip("npm cannot fetch the tools of editors/package.json")
    assert STAMP.is_file()
    texts = {name: _plain(text) for name, text in PROGRAMS.items()}
    command = [NODE or "", str(Path(__file__).with_name("highlight.mjs")), str(EDITORS)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, list[tuple[int, int, str]]]] = json.loads(done.stdout)
    return found


def _plain(text: str) -> str:
    return "".join(char if ord(char) < 0x10000 else "x" for char in text).replace("\ufeff", " ")


@pytest.mark.parametrize("highlighter", ["textmate", "codemirror"])
def test_highlighters_agree_with_the_compiler(
    highlighter: str, highlighted: dict[str, dict[str, list[tuple[int, int, str]]]]
) -> None:
    wrong = {}
    for name, text in PROGRAMS.items():
        theirs = [""] * len(text)
        for start, end, class_ in highlighted[highlighter][name]:
            theirs[start:end] = [class_] * (end - start)
        if found := differences(_plain(text), theirs):
            wrong[name] = found
    assert wrong == {}


def test_the_extension_is_built_with_its_client_grammar_and_snippets() -> None:
    if not fetch():
        pytest.skip("npm cannot fetch the tools of editors/package.json")
    assert build()
    with zipfile.ZipFile(VSIX) as archive:
        names = {name for name in archive.namelist() if name.startswith("extension/")}
        client = archive.read("extension/out/extension.js").decode()
        package = json.loads(archive.read("extension/package.json"))
    assert {name.removeprefix("extension/").lower() for name in names} == {
        "package.json",
        "readme.md",
        "language-configuration.json",
        "out/extension.js",
        "syntaxes/afl.tmlanguage.json",
        "snippets/afl.json",
    }
    assert "LanguageClient" in client
    assert "node_modules" not in client
    assert package["main"] == "./out/extension.js"
    checked = subprocess.run(
        [NODE or "", "--check", str(EDITORS / "vscode/out/extension.js")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
