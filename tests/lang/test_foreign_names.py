"""Words that get a hint where they are a mistake, and capitals, name steps, inputs and loop variables like any other word."""

from __future__ import annotations

import pytest
from tests.lang.programs import compiled

from treadle.lang import builtins, hints
from treadle.lang.cursor import KEYWORDS
from treadle.lang.statements import NOT_STEPS

FOREIGN = {*hints.WORDS, *hints.VALUES, *hints.DECLARATIONS, *hints.BLOCKS, *hints.OPERATORS, *hints.SYNONYMS}
FOREIGN |= {*hints.NOISE, *hints.MODIFIERS, *hints.IMPORTS, *builtins.FUNCTIONS, *builtins.WORDS, *KEYWORDS}
WORDS = sorted(word for word in {*FOREIGN, "Foo", "G", "Ns"} if "." not in word)

FIELD = """
event facet F(x: Json = 1) => (value: Json, Value: Json, ?: Json)
facet G(?: Json = 1) => (?: Json) andThen {
    yield G(? = $.?)
}
workflow Fields(?: Json, more: Json = 1) => (?: Json) andThen {
    plain = $.?
    s = F(x = $.?)
    s_a = s.?
    s_b = s.?
    s_g = G(? = s.?)
    s_i = #{?: s_g.?, k: s.?}
    s_j = s_i["?"]
    sys.log(? = s.?)
    yield Fields(? = s_g.?)
}
"""
STEP = """
event facet F(x: Json = 1) => (value: Json, Value: Json)
workflow Steps(n: Json) => (r: Json) andThen {
    ? = F(x = $.n)
    s_a = ?.value
    s_b = ?.Value
    s_c = F(x = ?.value) after ?
    s_d = [?.value, ?.Value]
    s_e = ?.value == 1 || ?.Value != 2
    s_g = -?.value + ?.Value
    s_h = ?.value[0]
    s_i = #{k: ?.Value}
    sys.log(k = ?.value)
    yield Steps(r = ?.Value)
}
workflow Values(n: Json) => (r: Json) andThen {
    ? = $.n
    s_a = ?
    s_b = (?)
    s_c = F(x = ?)
    s_d = [?, ?.k]
    s_e = ?.k
    s_g = ? == 1
    s_h = ?.Key
    s_i = ?["k"]
    yield Values(r = ?)
}
workflow Loops(items: [Json]) => (r: [Json]) andThen foreach ? in $.items {
    s_a = ?
    s_b = ?.name
    s_c = ?.Name
    s_d = F(x = ?)
    yield Loops(r = s_a)
}
"""


def errors(program: str, word: str) -> list[str]:
    return [each.render() for each in compiled(program.replace("?", word)).diagnostics if each.severity == "error"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_another_language_names_inputs_and_results(word: str) -> None:
    assert errors(FIELD, "plain_word") == []
    assert errors(FIELD, word) == []


@pytest.mark.parametrize("word", [word for word in WORDS if word not in NOT_STEPS])
def test_a_word_of_another_language_names_steps_values_and_loop_variables(word: str) -> None:
    assert errors(STEP, "plain_word") == []
    assert errors(STEP, word) == []
