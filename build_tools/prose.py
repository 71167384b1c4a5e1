"""Reject docstrings and module names that break the language rules: `python -m build_tools.prose`.

A docstring starts with an imperative or a noun phrase, never with What, Who, Whoever, Where or Whatever. A module is named with a
noun of the field, never with a gerund. Prints one line per violation and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("src/treadle", "bench", "build_tools", "docs", "tests")

_OPENING = re.compile(r"(what|who|whoever|whose|whatever|where)\b", re.IGNORECASE)
_GERUND = re.compile(r"(?:\w+_)?([a-z]+ing)")
_NOUNS = {
    "encoding",
    "logging",
    "mapping",
    "pricing",
    "ring",
    "routing",
    "scheduling",
    "settings",
    "string",
    "testing",
    "tracing",
    "typing",
    "wiring",
}


def bad_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """Docstrings, of definitions and of attributes, that begin with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = node.value.value.strip()
            if _OPENING.match(text):
                yield f"{path}:{node.lineno}: start the docstring with a verb or a noun, not {text.split()[0]!r}: {text[:60]!r}"


def bad_name(path: Path) -> Iterator[str]:
    """A module named with a gerund."""
    match = _GERUND.fullmatch(path.stem.removeprefix("test_"))
    if match and match[1] not in _NOUNS:
        yield f"{path}: {path.stem!r} is a gerund; name the module with a noun"


def violations(root: Path = ROOT) -> Iterator[str]:
    """Every violation below the checked folders."""
    for folder in CHECKED:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root)
            if folder == "src/treadle":
                yield from bad_name(shown)
            yield from bad_docstrings(shown, ast.parse(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    found = list(violations())
    sys.stdout.write("".join(line + "\n" for line in found))
    sys.exit(bool(found))
