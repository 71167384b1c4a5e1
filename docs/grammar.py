"""The grammar of AFL as EBNF, from the tree-sitter grammar (editors/tree-sitter-afl), which tests compare with the compiler.

`src/grammar.json` is that grammar as data. Rules that are named for tools alone disappear: tokens without text, the levels of
expressions inside brackets, which have the same form, and words that lead to an error.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

GRAMMAR = Path(__file__).parents[1] / "editors" / "tree-sitter-afl" / "src" / "grammar.json"
_BLOCK = re.compile(r"<!-- grammar -->\n```ebnf\n.*?```\n", re.S)
_PLACES = {"_line_end": "NEWLINE", "_field_break": "NEWLINE", "code": '"{" Python "}"'}
"""Tokens without text, and code, as readers see them."""
_ERROR = "_never"
_WIDTH = 92

Rule = dict[str, Any]


def with_grammar(text: str) -> str:
    """Return the page with the grammar in the block after `<!-- grammar -->`."""
    return _BLOCK.sub(lambda _: f"<!-- grammar -->\n```ebnf\n{ebnf()}```\n", text)


def ebnf() -> str:
    """Return one production per rule, in the order of the grammar."""
    return _Grammar(json.loads(GRAMMAR.read_text("utf-8"))).text()


class _Grammar:
    def __init__(self, made: Rule) -> None:
        self.rules: dict[str, Rule] = made["rules"]
        self.externals = {each["name"] for each in made["externals"]}
        self.skipped = {each["name"] for each in made["extras"] if each["type"] == "SYMBOL"}

    def text(self) -> str:
        shown = [name for name in self.rules if not name.startswith("_free_") and not self._is_token(name)]
        lines = []
        for name in shown:
            rule = self._loop(name) or self._plain(self.rules[name])
            if rule and rule != self._name(name):
                lines += self._production(self._name(name), rule)
        return "\n".join(lines) + "\n"

    def _production(self, name: str, rule: str) -> list[str]:
        head = f"{name:<13} = "
        return textwrap.wrap(
            f"{head}{rule} ;", _WIDTH, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
        )

    def _is_token(self, name: str) -> bool:
        rule = self.rules.get(name)
        return name in self.externals or name in self.skipped or (rule is not None and rule["type"] in ("TOKEN", "PATTERN"))

    def _name(self, name: str) -> str:
        bare = name.removeprefix("_free_").removeprefix("_")
        return bare.upper() if self._is_token(name) else bare

    def _loop(self, name: str) -> str | None:
        """Return a rule that begins with itself as a repetition: `x = y | x op y` is `y { op y }`."""
        match self.rules[name]:
            case {"type": "CHOICE", "members": [first, {"type": "SEQ", "members": [{"type": "SYMBOL", "name": again}, *rest]}]}:
                if again == name:
                    return f"{self._plain(first)} {{ {self._sequence(rest)} }}"
        return None

    def _plain(self, rule: Rule, inside: bool = False) -> str:
        """Return the text of a rule; `inside` a sequence, alternatives have parentheses."""
        match rule["type"]:
            case "STRING":
                return f'"{rule["value"]}"'
            case "SYMBOL":
                name = rule["name"]
                return _PLACES.get(name, "" if name in self.externals else self._name(name))
            case "SEQ":
                return self._sequence(rule["members"])
            case "CHOICE":
                return self._choice(rule["members"], inside)
            case "REPEAT":
                return f"{{ {self._plain(rule['content'])} }}"
            case "REPEAT1":
                return f"{self._plain(rule['content'], inside=True)} {{ {self._plain(rule['content'])} }}"
            case "FIELD" | "ALIAS" | "TOKEN":
                return self._plain(rule["content"], inside)
        raise ValueError(f"The grammar has a rule of an unknown kind: {rule['type']}.")

    def _sequence(self, members: list[Rule]) -> str:
        return " ".join(text for each in members if (text := self._plain(each, inside=True)))

    def _choice(self, members: list[Rule], inside: bool) -> str:
        kept = [each for each in members if each["type"] != "BLANK" and not _leads_to_an_error(each)]
        text = " | ".join(dict.fromkeys(self._plain(each) for each in kept))
        if len(kept) + sum(_leads_to_an_error(each) for each in members) < len(members):
            return f"[ {text} ]"
        return f"( {text} )" if inside and " | " in text else text


def _leads_to_an_error(rule: Rule) -> bool:
    return rule["type"] == "SEQ" and any(each.get("name") == _ERROR for each in rule["members"])
