"""Words and patterns in the forms that the editors' grammars share."""

from __future__ import annotations

from treadle.interfaces.lsp.scan import CALLED, NAMING, NAMING_LIKE_TYPE
from treadle.lang.tokens import KEYWORDS, TYPES, TokenRole

MARK = "Derived from src/treadle/lang/tokens.py by `python -m build_tools.editors`; do not edit."
NOT_CALLED = NAMING.replace(r"|\(", "")


def by_role() -> dict[TokenRole, list[str]]:
    """Return the keywords of each role, longer ones first, so that none hides another."""
    found: dict[TokenRole, list[str]] = {}
    for word in sorted(KEYWORDS, key=lambda word: (-len(word), word)):
        found.setdefault(KEYWORDS[word], []).append(word)
    return dict(sorted(found.items()))


def types() -> list[str]:
    return sorted(TYPES)


def keyword_pattern(words: list[str]) -> str:
    """Return a regular expression of keywords where they do not name anything."""
    groups = (([word for word in words if word in CALLED], NOT_CALLED), ([word for word in words if word not in CALLED], NAMING))
    return rf"(?<![\w.$])(?:{'|'.join(_unless(some, naming) for some, naming in groups if some)})"


def type_pattern() -> str:
    return rf"(?<![\w.$]){_unless(types(), NAMING_LIKE_TYPE)}"


def _unless(words: list[str], naming: str) -> str:
    either = "|".join(word.replace(".", r"\.") for word in words)
    return rf"(?:{either})(?![\w.])(?!{naming})"
