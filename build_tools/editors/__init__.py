"""Write the editors' files that are derived from the description of the tokens in `treadle.lang.tokens`, or from
the version.

`python -m build_tools.editors` writes them, `--check` only reports those that are out of date, `--build` also builds the extension
for VS Code. Other files below `editors/` are written by hand.
"""

from __future__ import annotations

from pathlib import Path

from build_tools.editors import codemirror, emacs, manifests, snippets, textmate, treesitter, vim

ROOT = Path(__file__).resolve().parents[2]
EDITORS = ROOT / "editors"


def files() -> dict[Path, str]:
    """Return the derived files with their contents."""
    made: dict[str, str] = {}
    for module in (codemirror, emacs, manifests, snippets, textmate, treesitter, vim):
        made |= module.files()
    return {EDITORS / name: text for name, text in made.items()}


def outdated() -> list[Path]:
    """Return the files that differ from what would be written."""
    return [path for path, text in files().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def write() -> list[Path]:
    """Write the outdated files and return them; repeat it, because the data of a grammar is evaluated from written files."""
    written: list[Path] = []
    while changed := outdated():
        made = files()
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        written += changed
    return written
