"""The parts of Lark that `treadle.lang.parse` reads and that are not its public API.

A failure here means that a new version of Lark changed them: adapt `_tables` in parse.py, or lower the bound in pyproject.toml.
"""

from __future__ import annotations

from typing import Any

import pytest
from lark import Lark, Token, Transformer

from treadle.lang.parse import _Unused

GRAMMAR = """
start: A pair?
pair: B B
%declare A B
"""


class Build(Transformer[Token, Any]):
    def pair(self, items: list[Any]) -> str:
        return "pair"


@pytest.fixture(scope="module")
def lark() -> Lark:
    return Lark(GRAMMAR, parser="lalr", lexer=_Unused, transformer=Build())


@pytest.fixture(scope="module")
def conf(lark: Lark) -> Any:
    interactive = lark.parse_interactive()
    assert hasattr(interactive, "parser_state"), "InteractiveParser.parser_state"
    assert hasattr(interactive.parser_state, "parse_conf"), "ParserState.parse_conf"
    return interactive.parser_state.parse_conf


def test_the_module_of_the_shift_action_is_there():
    from lark.parsers.lalr_analysis import Shift

    assert Shift is not None


@pytest.mark.parametrize("part", ["states", "callbacks", "start_state", "end_state"])
def test_the_configuration_of_a_parse_has_the_part(conf, part):
    assert hasattr(conf, part), f"ParseConf.{part}"


def test_states_map_names_to_shifts_and_rules(conf):
    from lark.parsers.lalr_analysis import Shift

    assert conf.start_state in conf.states
    assert conf.end_state in conf.states
    row = conf.states[conf.start_state]
    assert {name: kind is Shift for name, (kind, _) in row.items()} == {"start": True, "A": True}, "the row of the start state"
    assert row["A"][1] in conf.states, "the target of a shift is a state"
    assert row["start"][1] == conf.end_state, "the end state follows the start rule"


def test_reductions_name_their_rule_its_size_and_its_callback(conf):
    from lark.parsers.lalr_analysis import Shift

    rules = {arg for row in conf.states.values() for kind, arg in row.values() if kind is not Shift}
    sizes = {(str(rule.origin.name), len(rule.expansion)) for rule in rules}
    assert sizes == {("start", 1), ("start", 2), ("pair", 2)}, "Rule.origin.name and Rule.expansion"
    pair = next(rule for rule in rules if rule.origin.name == "pair")
    assert conf.callbacks[pair]([Token("B", "b"), Token("B", "b")]) == "pair", "callbacks take the list of children"


def test_terminals_are_upper_case_and_rules_are_not(conf):
    names = {str(name) for row in conf.states.values() for name in row}
    assert {name for name in names if name.isupper()} == {"A", "B", "$END"}
    assert {name for name in names if not name.isupper()} == {"start", "pair"}
