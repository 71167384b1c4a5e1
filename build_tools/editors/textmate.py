"""The TextMate grammar and the language configuration of VS Code."""

from __future__ import annotations

import json
import re
from typing import Any

from build_tools.editors.words import MARK, by_role, keyword_pattern, type_pattern
from treadle.lang.tokens import BRACKETS, IDENTIFIER, OPERATORS, PATTERNS, SEPARATORS, TokenRole

SCOPES = {
    TokenRole.DECLARATION: "storage.type.afl",
    TokenRole.CONTROL: "keyword.control.afl",
    TokenRole.MODIFIER: "keyword.other.modifier.afl",
    TokenRole.DIRECTIVE: "keyword.other.directive.afl",
    TokenRole.OPERATOR: "keyword.operator.word.afl",
    TokenRole.CONSTANT: "constant.language.afl",
    TokenRole.STATEMENT: "support.function.statement.afl",
}


def _rule(pattern: str, name: str) -> dict[str, Any]:
    return {"match": pattern, "name": name}


def _region(begin: str, end: str, name: str, *patterns: dict[str, Any]) -> dict[str, Any]:
    return {"begin": begin, "end": end, "name": name, "patterns": list(patterns)}


def _script() -> dict[str, Any]:
    """Return the rule of raw Python: up to the matching brace outside of its strings and comments."""
    escape = _rule(r"\\[\s\S]", "constant.character.escape.python")
    strings = [_region(mark, mark, "string.quoted.python", escape) for mark in ('"""', "'''")]
    strings += [_region(mark, f"{mark}|$", "string.quoted.python", escape) for mark in ('"', "'")]
    inside = [_rule("#.*$", "comment.line.number-sign.python"), *strings, {"include": "#braces"}, {"include": "source.python"}]
    return {
        "script": {
            "begin": rf"(?<![\w.$])(script)(?:[ \t]+({IDENTIFIER}))?[ \t]*(\{{)",
            "beginCaptures": {
                "1": {"name": SCOPES[TokenRole.CONTROL]},
                "2": {"name": "variable.other.language.afl"},
                "3": {"name": "punctuation.section.embedded.begin.afl"},
            },
            "end": r"\}",
            "endCaptures": {"0": {"name": "punctuation.section.embedded.end.afl"}},
            "contentName": "meta.embedded.block.python",
            "patterns": inside,
        },
        "braces": {"begin": r"\{", "end": r"\}", "patterns": inside},
    }


def grammar() -> dict[str, Any]:
    """Return the grammar; rules that are listed first win where two match at the same place."""
    operators = "|".join(re.escape(sign) for sign in OPERATORS)
    brackets = {*BRACKETS, *BRACKETS.values(), *SEPARATORS}
    signs = "|".join(re.escape(sign) for sign in sorted(brackets, key=lambda sign: (-len(sign), sign)))
    doc_tag = {"match": rf"(@(?:param|return)s?)\s+({IDENTIFIER})", "captures": {"1": {"name": "storage.type.class.afl"}}}
    rules: dict[str, Any] = {
        "doc": _region(r"/\*\*(?!/)", r"\*/", "comment.block.documentation.afl", doc_tag),
        "comment": _region(r"/\*", r"\*/", "comment.block.afl"),
        "line": _rule("//.*$", "comment.line.double-slash.afl"),
        "string": _region('"', '"', "string.quoted.double.afl", _rule(r"\\(?:u[0-9A-Fa-f]{4}|.)", "constant.character.escape.afl")),
        **_script(),
        "float": _rule(rf"(?<![\w.]){PATTERNS['float']}", "constant.numeric.float.afl"),
        "integer": _rule(rf"(?<![\w.]){PATTERNS['integer']}", "constant.numeric.integer.afl"),
        "input": _rule(rf"\$(?:\.{IDENTIFIER})*", "variable.other.input.afl"),
        **{role.value: _rule(keyword_pattern(words), SCOPES[role]) for role, words in by_role().items()},
        "type": _rule(type_pattern(), "support.type.afl"),
        "call": _rule(rf"{PATTERNS['word']}(?=[ \t]*\()", "entity.name.function.afl"),
        "word": _rule(PATTERNS["word"], "variable.other.afl"),
        "bracket": _rule(r"#\{", "punctuation.section.map.begin.afl"),
        "sign": _rule(operators, "keyword.operator.afl"),
        "punctuation": _rule(signs, "punctuation.afl"),
    }
    order = [{"include": f"#{name}"} for name in rules if name != "braces"]
    return {"name": "AFL", "scopeName": "source.afl", "comment": MARK, "fileTypes": ["afl"], "patterns": order, "repository": rules}


def configuration() -> dict[str, Any]:
    """Return what VS Code needs to know about comments, brackets, words and indentation."""
    pairs = [[opening, closing] for opening, closing in BRACKETS.items() if opening != "#{"]
    closing = [
        *({"open": one, "close": other} for one, other in pairs),
        {"open": '"', "close": '"', "notIn": ["string", "comment"]},
    ]
    return {
        "comments": {"lineComment": "//", "blockComment": ["/*", "*/"]},
        "brackets": pairs,
        "autoClosingPairs": [*closing, {"open": "/**", "close": " */", "notIn": ["string"]}],
        "surroundingPairs": [*pairs, ['"', '"']],
        "wordPattern": IDENTIFIER,
        "indentationRules": {"increaseIndentPattern": r"[{(\[][^})\]]*$", "decreaseIndentPattern": r"^\s*[})\]]"},
        "onEnterRules": [
            {"beforeText": r"^\s*/\*\*(?!/)([^*]|\*(?!/))*$", "action": {"indent": "none", "appendText": " * "}},
            {"beforeText": r"^\s*\*(?!/).*$", "action": {"indent": "none", "appendText": "* "}},
        ],
    }


def files() -> dict[str, str]:
    return {
        "vscode/syntaxes/afl.tmLanguage.json": json.dumps(grammar(), indent=2) + "\n",
        "vscode/language-configuration.json": json.dumps(configuration(), indent=2) + "\n",
    }
