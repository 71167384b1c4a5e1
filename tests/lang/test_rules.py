"""Every diagnostic has a rule, every rule has programs that show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.lang.programs import compiled

import treadle.lang
from treadle.lang import RULES, compile_sources
from treadle.lang.messages import MESSAGES, SYNTAX_ERRORS


@pytest.mark.parametrize("name", RULES)
def test_the_wrong_program_breaks_the_rule_and_the_right_one_none(name: str) -> None:
    rule = RULES[name]
    found = compile_sources([("s1.afl", rule.wrong)], reference=name == "reference-extension")
    assert name in {each.rule for each in found.diagnostics}
    assert compiled(rule.right).diagnostics == ()
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
    assert rule.why.endswith(".")


def test_every_rule_that_the_code_names_is_in_the_catalogue() -> None:
    folder = Path(treadle.lang.__file__).parent
    named = {
        rule
        for path in folder.glob("*.py")
        for rule in re.findall(r'"([a-z]+(?:-[a-z]+)+)(?::[a-z-]+)?"', path.read_text(encoding="utf-8"))
    }
    assert named == set(RULES)


def test_checks_report_exactly_the_declared_messages() -> None:
    files = [path for path in Path(treadle.lang.__file__).parent.glob("*.py") if path.name != "messages.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert set(MESSAGES) == set(re.findall(r'"([a-z]+(?:-[a-z]+)+(?::[a-z-]+)?)"', source))
    assert set(re.findall(r'\breporter\.(?:report|warn)\(\s*"([a-z:-]+)"', source)) <= set(MESSAGES)
    assert {key.partition(":")[0] for key in MESSAGES} <= set(RULES)


def test_the_parser_reports_exactly_the_declared_syntax_errors() -> None:
    source = "".join(path.read_text() for path in Path(treadle.lang.__file__).parent.glob("*.py"))
    assert set(re.findall(r'\b(?:cursor|self)\.(?:report|failed)\(\s*"([^"]+)"', source)) <= set(SYNTAX_ERRORS) | set(MESSAGES)
    assert all(source.count(f'"{key}"') > 1 for key in SYNTAX_ERRORS)
