"""Reject docstrings and names that break the language rules: `python -m build_tools.prose`.

A docstring starts with an imperative or a noun phrase, never with What, Who, Whoever, Where or Whatever. A module is named with a
noun of the field, never with a gerund; a variable after the thing that it stands for, never after what happened to it; a limit
`MAX_...`, `..._LIMIT` or `..._TIMEOUT`; a test after its promise, without free relatives.

A test without a visible assertion has a docstring that states what must not happen. A test awaits a signal or advances a clock
instead of sleeping: a sleep is the interval of a `while` loop that waits for a condition, has a constant with a docstring, or a
comment that gives the reason.

Texts for users (pages of the dashboard, help, descriptions of the API, documentation) use the words of the field, not those of the
implementation: see `REJECTED`. A line of a template has at most `MAX_TEMPLATE_COLUMNS` characters, an entry of the changelog one
sentence of at most `MAX_ENTRY` characters. Prints one line per violation and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("src/treadle", "bench", "build_tools", "conformance", "docs", "tests")

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
}

_VAGUE = {"each", "found", "known", "taken", "given", "made", "said", "told", "sought", "born", "shown", "kept", "asked"}
_LIMIT_WORD = re.compile(r"(^|_)(LONGEST|SHORTEST|MOST|FEW|FEWEST|PATIENCE)(_|$)")
_ASSERTING = ("assert", "check", "expect", "fail", "raises", "refused", "sees", "skip", "until", "validate", "warns")
"""The first words of functions that assert."""
_VIRTUAL = ("tests/simulation", "tests/pairs")
"""Tests whose sleeps pass on a virtual clock."""
_RELATIVES = {"what", "who", "whoever", "whose", "whom", "whatever"}
_NEGATIVES = {"nothing"}
"""Words with which the name of a test leaves open what stays as it is."""
_SPOKEN = {
    *("say", "says", "said", "tell", "tells", "told", "asked", "asks", "knows", "knew"),
    *("somebody", "meanwhile", "alike", "lets"),
}
"""Words of names that speak of programs as of people, or that belong to conversation."""
_PRIVATE = {
    *("attendance", "bury", "doing", "doubts", "doubtful", "keeper", "lane", "lanes", "lookout", "park", "parked"),
    *("permit", "permits", "revival", "revivals", "stir", "tend", "trial"),
}
"""Words that only this project used: see the glossary for those of the field."""

_DETERMINER = r"(?:an?|the|its|each|every|this|no|of|all|log|one|last)"
REJECTED = {
    re.compile(r"\blanes?\b", re.IGNORECASE): "queue, or: tasks by handler",
    re.compile(rf"\b{_DETERMINER} moves?\b|\bmoves (?:of|with)\b|, moves\b", re.IGNORECASE): "state change, history or event",
    re.compile(r"(?<![\w,] )(?<!-)\bletters\b(?!,? (?:and|or)? ?digits)", re.IGNORECASE): "dead letters",
    re.compile(r"\bmake up for\b", re.IGNORECASE): "backfill",
    re.compile(r"\bfor good\b", re.IGNORECASE): "permanently",
}
"""Words of the implementation, each with the word that users know."""
RETIRED = {
    re.compile(r"\blooked[_-]by\b"): "scan_on",
    re.compile(r"\bLookFailed\b"): "ScanFailed",
    re.compile(r"\blook_failed\b"): "scan_failed",
    re.compile(r"\b(?:stored|record|message)[ .]bod(?:y|ies)\b|\bbody ->>|\b(?!Request|Response)[A-Z][a-z]\w+Body\b"): "document",
    re.compile(r"`told`|\.told\b|^ *told:|[\"']told[\"']", re.MULTILINE): "accepted",
}
"""Former names, each with its successor; checked in code and documentation, code blocks included."""
_CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_TEMPLATE = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", re.DOTALL)
_LABEL = re.compile(r"\"([A-Z][^\"{}<>]*)\"")
MAX_TEMPLATE_COLUMNS = 200
MAX_ENTRY = 200
_TEXTS = {".py", ".sql", ".html", ".js", ".json", ".md", ".afl", ".yaml", ".yml", ".toml"}
_FOR_CONTRIBUTORS = ("docs/reference/ports.md", "docs/reference/states.md", "docs/explanation", "docs/adr", "docs/glossary.md")


def bad_terms(shown: Path, text: str, line: int = 0) -> Iterator[str]:
    """Words that users do not know; `line` is the line before the text, or 0 to count."""
    for pattern, better in REJECTED.items():
        for found in pattern.finditer(text):
            yield f"{shown}:{line or text.count(chr(10), 0, found.start()) + 1}: say {better!r}, not {found[0].strip()!r}"


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n") or " "


def texts_for_users(root: Path) -> Iterator[tuple[Path, str, int]]:
    """Every text for users, without its code: the file, the text, and the line where it begins, or 0 for a whole file."""
    for path in sorted((root / "src/treadle/interfaces/web/templates").glob("*.html")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(root), _TEMPLATE.sub(_blank, text), 0
        for found in _LABEL.finditer(text):
            yield path.relative_to(root), found[1], text.count("\n", 0, found.start()) + 1
    for folder in ("api", "interfaces/cli", "interfaces/mcp", "interfaces/http"):
        for path in sorted((root / "src/treadle" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                    yield path.relative_to(root), _CODE.sub(_blank, node.value), node.lineno
    for path in (*root.glob("README.md"), *sorted((root / "docs").rglob("*.md"))):
        shown = path.relative_to(root)
        if not shown.as_posix().startswith(_FOR_CONTRIBUTORS):
            yield shown, _CODE.sub(_blank, path.read_text(encoding="utf-8")), 0


def long_template_lines(root: Path) -> Iterator[str]:
    """Lines of templates that are hard to read and to compare."""
    for path in sorted((root / "src/treadle/interfaces/web/templates").glob("*.html")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if len(line) > MAX_TEMPLATE_COLUMNS:
                yield f"{path.relative_to(root)}:{number}: break the line inside a tag, or make a macro: {len(line)} characters"


def bad_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """Docstrings, of definitions and of attributes, that begin with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = node.value.value.strip()
            if _OPENING.match(text):
                yield f"{path}:{node.lineno}: start the docstring with a verb or a noun, not {text.split()[0]!r}: {text[:60]!r}"


def bad_variables(path: Path, tree: ast.Module) -> Iterator[str]:
    """Variables and constants with names that do not say what they are. Fields of records may be public; they are left out."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(line.target) for node in classes for line in node.body if isinstance(line, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if node.id.lstrip("_") in _VAGUE and id(node) not in fields:
                yield f"{path}:{node.lineno}: name the thing (`row`, `task`, `match`), not {node.id!r}"
            if node.id.isupper() and _LIMIT_WORD.search(node.id):
                yield f"{path}:{node.lineno}: say MAX_..., ..._LIMIT or ..._TIMEOUT, not {node.id!r}"


def bad_definitions(path: Path, tree: ast.Module) -> Iterator[str]:
    """Tests and definitions of the package with words that nobody searches for; tests with a free relative (`what_it_is`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_test, words = node.name.startswith("test_"), set(map(str.lower, re.findall("[A-Z]?[a-z]+", node.name)))
            if is_test or path.parts[0] == "src":
                for word in words & (_SPOKEN | _PRIVATE | (_RELATIVES | _NEGATIVES if is_test else set())):
                    yield f"{path}:{node.lineno}: {'state the promise' if is_test else 'name it'} without {word!r}: {node.name}"


def repeated_classes(root: Path) -> Iterator[str]:
    """Classes of one layer with the same name; Django finds its commands by theirs."""
    first: dict[tuple[str, str], str] = {}
    for path in sorted((root / "src/treadle").rglob("*.py")):
        layer = path.relative_to(root / "src/treadle").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "commands" not in path.parts:
                place = f"{path.relative_to(root)}:{node.lineno}"
                if (other := first.setdefault((layer, node.name), place)) != place:
                    yield f"{place}: {layer} has a class {node.name} already, in {other}; name each for what it is"


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def silent_tests(path: Path, tree: ast.Module) -> Iterator[str]:
    """Tests with neither a visible assertion nor a docstring that states what must not happen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            parts = list(ast.walk(node))
            asserts = any(isinstance(part, ast.Assert | ast.Raise) for part in parts)
            calls = any(_name_of(part).startswith(_ASSERTING) for part in parts if isinstance(part, ast.Call))
            if not (asserts or calls or ast.get_docstring(node)):
                yield f"{path}:{node.lineno}: assert, or state in a docstring what must not happen: {node.name}"


def unexplained_sleeps(path: Path, tree: ast.Module, text: str) -> Iterator[str]:
    """Sleeps on a real clock without a reason; those of zero seconds only let others run."""
    polls = {id(part) for loop in ast.walk(tree) if isinstance(loop, ast.While) for line in loop.body for part in ast.walk(line)}
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep") and node.args:
            seconds = ast.unparse(node.args[0])
            explained = id(node) in polls or seconds == "0" or seconds.isupper()
            if not explained and not any("#" in line for line in lines[node.lineno - 2 : node.end_lineno]):
                yield f"{path}:{node.lineno}: await a signal or advance a clock instead, or give the reason: sleep({seconds})"


def bad_name(path: Path) -> Iterator[str]:
    """A module named with a gerund."""
    match = _GERUND.fullmatch(path.stem.removeprefix("test_"))
    if match and match[1] not in _NOUNS:
        yield f"{path}: {path.stem!r} is a gerund; name the module with a noun"


def retired_names(root: Path) -> Iterator[str]:
    """Former public names in the code, its SQL and templates, and the documentation."""
    for folder in ("src/treadle", "docs", "examples", "editors", "deploy"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _TEXTS and "node_modules" not in path.parts:
                text = path.read_text(encoding="utf-8")
                for pattern, successor in RETIRED.items():
                    for match in pattern.finditer(text):
                        line = text.count("\n", 0, match.start()) + 1
                        yield f"{path.relative_to(root)}:{line}: {match[0].strip()!r} is now {successor!r}"


def long_entries(text: str) -> Iterator[str]:
    """Entries of the changelog below headings such as Added that are more than one short sentence; link targets do not count."""
    for part in re.finditer(r"^### .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        for entry in re.finditer(r"^- (.*?)(?=^- |^#|^$|\Z)", part[0], re.MULTILINE | re.DOTALL):
            shown = re.sub(r"\]\([^)]*\)", "]", " ".join(entry[1].split()))
            if len(shown) > MAX_ENTRY or re.search(r"\. [A-Z]", shown):
                line = text.count("\n", 0, part.start() + entry.start()) + 1
                yield f"CHANGELOG.md:{line}: one sentence of at most {MAX_ENTRY} characters per change: {shown[:60]}"


def violations(root: Path = ROOT) -> Iterator[str]:
    """Every violation below the checked folders."""
    for folder in CHECKED:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            if folder == "src/treadle":
                yield from bad_name(shown)
                yield from bad_variables(shown, tree)
            yield from bad_docstrings(shown, tree)
            yield from bad_definitions(shown, tree)
            if folder in ("tests", "conformance"):
                yield from silent_tests(shown, tree)
            if folder == "tests" and not shown.as_posix().startswith(_VIRTUAL):
                yield from unexplained_sleeps(shown, tree, text)
    for shown, text, line in texts_for_users(root):
        yield from bad_terms(shown, text, line)
    yield from long_template_lines(root)
    yield from retired_names(root)
    yield from repeated_classes(root)
    yield from (violation for path in root.glob("CHANGELOG.md") for violation in long_entries(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    found = list(violations())
    sys.stdout.write("".join(line + "\n" for line in found))
    sys.exit(bool(found))
