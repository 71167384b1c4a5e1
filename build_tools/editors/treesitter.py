"""The words, the highlighting query and the data of the tree-sitter grammar; editors/tree-sitter-afl/grammar.js has the rules."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from build_tools.editors.words import MARK, by_role, types
from treadle.lang.builtins import FUNCTIONS
from treadle.lang.statements import NOT_STEPS
from treadle.lang.tokens import IDENTIFIER, OPERATORS, PATTERNS, TokenRole

GRAMMAR = Path(__file__).resolve().parents[2] / "editors" / "tree-sitter-afl" / "grammar.js"
_CAPTURES = {
    TokenRole.DECLARATION: "keyword.type",
    TokenRole.CONTROL: "keyword",
    TokenRole.MODIFIER: "keyword.modifier",
    TokenRole.DIRECTIVE: "keyword.directive",
    TokenRole.OPERATOR: "keyword.operator",
    TokenRole.CONSTANT: "constant.builtin",
    TokenRole.STATEMENT: "function.builtin",
}
_BLOCK_END = r"[^*]*\*+(?:[^/*][^*]*\*+)*/"
"""The rest of a comment up to the first `*/`."""
_QUERY = """
(comment) @comment
(doc_comment) @comment.documentation
(string) @string
(integer) @number
(float) @number.float
(input) @variable.parameter
(code) @embedded

(namespace name: (_) @module)
(use name: (_) @module)
(facet name: (identifier) @function)
(schema name: (identifier) @type)
(parameter name: (identifier) @variable.parameter)
(field name: (identifier) @property)
(argument name: (identifier) @property)
(entry key: (identifier) @property)
(call target: (_) @function.call)
(mixin target: (_) @attribute)
(step name: (identifier) @variable)
(named_type (_) @type)
(function name: (identifier) @function.builtin)
"""


def files() -> dict[str, str]:
    """Return the data of the grammar and the query."""
    data = {"notSteps": sorted(NOT_STEPS - {"yield", "andThen"}), "functions": sorted(FUNCTIONS)}
    patterns = {name: PATTERNS[name] for name in ("string", "float", "integer", "input", "comment", "doc")}
    patterns |= {"identifier": IDENTIFIER, "dotted": rf"{IDENTIFIER}(?:\.{IDENTIFIER})+"}
    patterns["doc"] = r"/\*" + _BLOCK_END.replace(r"[^*]*\*+", r"\*+[^/*][^*]*\*+", 1)
    patterns["comment"] = r"//[^\n]*|/\*" + _BLOCK_END
    lines = [f"// {MARK}", *(f"exports.{name} = {json.dumps(value)};" for name, value in data.items())]
    lines += [f"exports.{name}Pattern = /{_pattern(pattern)}/;" for name, pattern in patterns.items()]
    query = [f"; {MARK}", _QUERY.strip(), ""]
    for role, words in by_role().items():
        if role is not TokenRole.CONSTANT:
            query.append(f"[{' '.join(json.dumps(word) for word in sorted(words))}] @{_CAPTURES[role]}")
    query += [
        "[(boolean) (null)] @constant.builtin",
        f"((named_type (identifier) @type.builtin) (#any-of? @type.builtin {_quoted()}))",
    ]
    query += ['["(" ")" "[" "]" "{" "}" "#{"] @punctuation.bracket', '["," ":" ";"] @punctuation.delimiter']
    query.append(f"[{' '.join(json.dumps(sign) for sign in OPERATORS)}] @operator")
    made = {"tree-sitter-afl/tokens.js": "\n".join(lines) + "\n", "tree-sitter-afl/queries/highlights.scm": "\n".join(query) + "\n"}
    if node := shutil.which("node"):
        made["tree-sitter-afl/src/grammar.json"] = _evaluated(node)
    return made


def _evaluated(node: str) -> str:
    """Return the grammar as data, in the form of tree-sitter's own grammar.json."""
    command = [node, str(Path(__file__).with_name("grammar.mjs")), str(GRAMMAR)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.dumps(json.loads(done.stdout), indent=1, ensure_ascii=False) + "\n"


def _pattern(pattern: str) -> str:
    """Return a pattern in the syntax of tree-sitter, which has neither lookahead nor lazy repetition."""
    return pattern.replace(r"[\s\S]", r"(?:.|\n)").replace("/", r"\/")


def _quoted() -> str:
    return " ".join(json.dumps(word) for word in types())
