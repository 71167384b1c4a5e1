"""The brief teaches what works: every example compiles without a warning, and runs with answers in place of handlers."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from treadle.lang import compile_sources
from treadle.testing.workflows import compile_program
from treadle.workers.flow_dry_run import dry_run_flow

BRIEF = files("treadle.interfaces.mcp").joinpath("brief.md").read_text("utf-8")
EXAMPLES = re.findall(r"```afl\n(.*?)```", BRIEF, re.S)
ERROR = {"@error": "declined", "@code": "Declined"}

DRY_RUNS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("shop.Checkout", {"order": "o-1"}, {"shop.Charge": {"receipt": "r-1"}}, {"receipt": "r-1"}),
    ("kitchen.Bread", {"kilos": 2}, {"Grind": {"flour": 3}, "Bake": {"loaves": 4}}, {"loaves": 4, "label": "done"}),
    ("mail.Invite", {"guests": ["a", "b"]}, {"Send": [{"id": "1"}, {"id": "2"}]}, {"ids": ["1", "2"]}),
    ("mail.InviteGroup", {"group": "g"}, {"Find": {"guests": ["a"]}, "Send": {"id": "1"}}, {"ids": ["1"]}),
    ("exam.Grade", {"score": 0.2}, {"Tell": {"sent": True}}, {"grade": "F"}),
    ("risk.Fulfil", {"order": "o"}, {"Check": {"risk": 0.1}, "Ship": {"parcel": "p"}}, {"parcel": "p", "ticket": None}),
    ("risk.Fulfil", {"order": "o"}, {"Check": {"risk": 0.9}, "Hold": {"ticket": "t"}}, {"parcel": None, "ticket": "t"}),
    ("pay.Buy", {"amount": 2.0}, {"Pay": {"receipt": "r", "ok": True}}, {"receipt": "r", "ok": True}),
    ("pay.Buy", {"amount": 2.0}, {"Pay": ERROR}, {"receipt": "none: declined", "ok": False}),
    ("release.Release", {"version": "1"}, {"sys.approval": {}, "Publish": {"url": "u"}}, {"url": "u"}),
    ("release.Release", {"version": "1"}, {"sys.approval": {"@error": "no", "@code": "approval_denied"}}, {"url": "not published"}),
    ("text.Count", {"text": " a b "}, {}, {"words": 2, "first": "a b"}),
    ("review.Judge", {"text": "x"}, {"Rate": {"score": 7, "why": "good"}}, {"score": 7}),
    ("order.Quote", {"lines": [{"sku": "s", "qty": 1}]}, {"Price": {"total": 9.5}}, {"total": 9.5, "first": "s"}),
    ("letters.Write", {"person": {"name": "Ada"}}, {"Print": {"pages": 1}}, {"pages": 1}),
]


@pytest.mark.parametrize(
    ("workflow", "inputs", "answers", "outputs"), DRY_RUNS, ids=lambda each: each if isinstance(each, str) else ""
)
async def test_every_example_runs_with_answers(
    workflow: str, inputs: dict[str, Any], answers: dict[str, Any], outputs: dict[str, Any]
) -> None:
    namespace, name = workflow.split(".")
    source = next(each for each in EXAMPLES if f"namespace {namespace} " in each and f"workflow {name}(" in each)
    program = compile_program(source)
    found = program.find_facet(workflow)
    assert found is not None
    ended = await dry_run_flow(program, found, inputs, answers)
    assert (ended.error, ended.state, ended.outputs) == (None, "completed", outputs)


def test_every_example_compiles_strictly_and_has_a_dry_run() -> None:
    for source in EXAMPLES:
        compiled = compile_sources([("brief.afl", source)])
        assert compiled.diagnostics == (), compiled.render()
    workflows = set()
    for source in EXAMPLES:
        namespace = re.findall(r"namespace (\w+)", source)[0]
        workflows |= {f"{namespace}.{name}" for name in re.findall(r"workflow (\w+)", source)}
    assert workflows == {each[0] for each in DRY_RUNS}
