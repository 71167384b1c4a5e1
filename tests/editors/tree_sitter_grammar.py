"""Runs a tree-sitter grammar as tree-sitter does: LR tables, keywords only where they fit, tokens without text from a scanner.

The command line of tree-sitter comes from neither PyPI nor npm, so the tables are Lark's LALR ones: a grammar without conflicts
there has none in tree-sitter's LR(1) tables either. Words and signs come from the compiler's lexer, the others from scanner.c.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedInput
from lark.lexer import Lexer, Token
from tests.editors.scanner import KINDS, Scanner

from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.lexer import lex
from treadle.lang.tokens import WORDS


class _Unused(Lexer):
    __future_interface__ = 2

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, lexer_state: Any, parser_state: Any) -> Any:
        return iter(())


class Grammar:
    """The grammar of a folder."""

    def __init__(self, folder: Path, scanner: Scanner) -> None:
        self.scanner = scanner
        self.json = json.loads((folder / "src" / "grammar.json").read_text("utf-8"))
        self.literals: dict[str, str] = {}
        self.externals = {each["name"] for each in self.json["externals"]}
        rules = {name: rule for name, rule in self.json["rules"].items() if not self._is_token(name)}
        lines = [f"{self._name(name)}: {self._text(rule)}" for name, rule in rules.items()]
        tokens = sorted(
            {
                *self.literals.values(),
                *(self._name(name) for name in self.externals | set(self.json["rules"]) if self._is_token(name)),
            }
        )
        lines += [f"%declare {each}" for each in tokens]
        self.lark = Lark("\n".join(lines), parser="lalr", lexer=_Unused, start="r_source_file")

    def _is_token(self, name: str) -> bool:
        rule = self.json["rules"].get(name)
        return name in self.externals or (rule is not None and rule["type"] in ("TOKEN", "PATTERN"))

    def _name(self, name: str) -> str:
        return f"T_{name.upper()}" if self._is_token(name) else f"r_{name}"

    def _text(self, rule: dict[str, Any]) -> str:
        match rule["type"]:
            case "STRING":
                return self.literals.setdefault(rule["value"], f"L{len(self.literals)}")
            case "SYMBOL":
                return self._name(rule["name"])
            case "SEQ":
                return "(" + " ".join(self._text(each) for each in rule["members"]) + ")"
            case "CHOICE":
                parts = [self._text(each) for each in rule["members"] if each["type"] != "BLANK"]
                return f"({' | '.join(parts)})" + ("?" if len(parts) < len(rule["members"]) else "")
            case "REPEAT":
                return f"({self._text(rule['content'])})*"
            case "REPEAT1":
                return f"({self._text(rule['content'])})+"
            case "FIELD" | "ALIAS":
                return self._text(rule["content"])
        raise AssertionError(rule)

    def accepts(self, text: str) -> bool:
        """Return whether the grammar accepts a text."""
        reporter = Reporter()
        tokens = lex(Source("a", text), reporter).tokens
        if reporter.found:
            return False
        parser = self.lark.parse_interactive("")
        at = 0
        try:
            for token in tokens:
                while (kind := self._made(text, at, parser)) is not None:
                    parser.feed_token(Token(kind, ""))
                if token.kind != "end":
                    parser.feed_token(Token(self._kind(text, at, token, parser), token.text))
                    at = token.end
            parser.feed_eof(Token("$END", ""))
        except UnexpectedInput:
            return False
        return True

    def _kind(self, text: str, at: int, token: Any, parser: Any) -> str:
        """Return the keyword or sign, if it fits here, else the sort of the token."""
        if token.kind == "code":
            made = self.scanner.scan(text, at, {"code"}) if "T_CODE" in parser.accepts() else None
            assert made in (None, ("code", token.end))
            return "T_CODE" if made else self.literals["{"]
        literal = self.literals.get(token.text)
        if token.kind != "string" and literal is not None and (token.kind not in WORDS or literal in parser.accepts()):
            return literal
        return f"T_{'IDENTIFIER' if token.kind == 'name' else token.kind.upper()}"

    def _made(self, text: str, at: int, parser: Any) -> str | None:
        """Return the token without text that the scanner makes here."""
        row = parser.parser_state.parse_conf.parse_table.states[parser.parser_state.position]
        if not any(f"T_{kind.upper()}" in row for kind in KINDS[1:]):
            return None
        accepted = parser.accepts()
        valid = {kind for kind in KINDS[1:] if f"T_{kind.upper()}" in accepted}
        made = self.scanner.scan(text, at, valid) if valid else None
        return None if made is None else f"T_{made[0].upper()}"
