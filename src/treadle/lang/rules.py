"""The rules that diagnostics name, each with a wrong program, a right one and the reason; stored in `rules.txt`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Rule:
    """`wrong` and `right` are whole AFL programs that a test compiles; `why` is one sentence."""

    id: str
    wrong: str
    right: str
    why: str


def _read(text: str) -> dict[str, Rule]:
    rules = {}
    for entry in text.strip().split("\n\n"):
        name, wrong, right, why = entry.split("\n")
        rules[name] = Rule(name, wrong[2:].replace("¶", "\n"), right[2:].replace("¶", "\n"), why)
    return rules


RULES: dict[str, Rule] = _read(files("treadle.lang").joinpath("rules.txt").read_text(encoding="utf-8"))
