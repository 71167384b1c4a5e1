"""A topology file says everything that is wrong with it: where, what, and what would be right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.goals.topology import InvalidTopology, Topology, load_topology, read_topology, with_roles
from treadle.model.clock import milliseconds
from treadle.model.errors import InvalidInput, InvalidPolicy, MissingDependency

TYPE: dict[str, Any] = {"handler": "do", "gates": []}


def read(document: Any) -> Topology:
    return read_topology(document)


def test_a_minimal_topology_has_all_roles_and_defaults():
    topology = read({"types": {"TICKET": TYPE}})
    rules = topology.types["TICKET"]
    assert list(topology.roles) == ["readiness", "scheduler", "runner", "gate", "deadline"]
    assert (rules.handler, rules.budget_for, rules.on_fail, rules.max_workorders, rules.task_list) == (
        "do",
        600_000,
        "TODO",
        3,
        "default",
    )
    assert (topology.deadlines, topology.reviewer, topology.lease_for(), topology.interval_for()) == ({}, None, None, None)


def test_a_topology_can_set_every_field():
    topology = read(
        {
            "name": "all",
            "roles": {"runner": {"interval": "500ms", "lease": 45}, "gate": None, "deadline": {"interval": 1, "lease": "1m"}},
            "types": {
                "TICKET": {
                    "handler": "code.patch",
                    "budget": "2.5m",
                    "on_fail": "BLOCKED",
                    "max_workorders": 1,
                    "prompt": "Do $title",
                    "task_list": "night",
                    "gates": [
                        "mine",
                        {"use": "exit_code", "name": "tests", "argv": ["pytest"], "cwd": "work", "expect": 0, "timeout": "1m"},
                        {"use": "json_schema", "schema": {"type": "object"}, "of": "metadata"},
                        {"use": "regex", "pattern": "^ok", "forbid": True},
                        {"use": "other", "name": "yours", "anything": [1]},
                    ],
                },
                "STANDING": {"handler": "tidy", "gates": [], "budget_ms": 5},
            },
            "deadlines": {0: "7d", 4: 3600},
            "reviewer": "careful.reader",
        }
    )
    gates = topology.types["TICKET"].gates
    assert [gate.name for gate in gates] == ["mine", "tests", "json_schema", "regex", "yours"]
    assert (gates[1].timeout_for, gates[4].options) == (60_000, {"anything": [1]})
    assert (topology.types["TICKET"].budget_for, topology.types["STANDING"].budget_for) == (150_000, 5)
    assert topology.deadlines == {0: 7 * 86_400_000, 4: 3_600_000}
    assert (topology.lease_for(), topology.interval_for()) == (45_000, 500)
    assert topology.kinds() == {"goal.run", "goal.gate", "goal.deadline"}


def test_roles_may_be_a_list():
    assert list(read({"roles": ["gate", "runner"], "types": {"TICKET": TYPE}}).roles) == ["gate", "runner"]


def test_the_digest_depends_on_content_and_not_on_key_order():
    first = read({"types": {"TICKET": {"handler": "do", "gates": []}}, "deadlines": {1: 5}})
    same = read({"deadlines": {1: 5}, "types": {"TICKET": {"gates": [], "handler": "do"}}})
    other = read({"types": {"TICKET": {"handler": "do", "gates": []}}, "deadlines": {1: 6}})
    assert first.digest == same.digest != other.digest
    assert len(first.digest) == 64


WRONG: list[tuple[Any, str, str]] = [
    ([], "", "must be a mapping with name, roles, types"),
    ("text", "", "not the text 'text'"),
    ({}, "", "needs types"),
    ({"types": {}}, "types", "needs at least one type, such as TICKET"),
    ({"types": {"TIKET": TYPE}}, "types.TIKET", "did you mean TICKET?"),
    ({"types": {"TICKET": TYPE}, "rolls": {}}, "rolls", "did you mean roles?"),
    ({"types": {"TICKET": TYPE}, "name": 5}, "name", "must be text, not 5"),
    ({"types": {"TICKET": TYPE}, "roles": {"schedular": {}}}, "roles.schedular", "did you mean scheduler?"),
    ({"types": {"TICKET": TYPE}, "roles": 3}, "roles", "must be a mapping with readiness"),
    ({"types": {"TICKET": TYPE}, "roles": {"gate": {"lease": "0.1s"}}}, "roles.gate.lease", "must be from 1s to 1h"),
    ({"types": {"TICKET": TYPE}, "roles": {"gate": {"lease": "2h"}}}, "roles.gate.lease", "must be from 1s to 1h"),
    ({"types": {"TICKET": TYPE}, "roles": {"gate": {"interval": "soon"}}}, "roles.gate.interval", "such as 30 (seconds), 500ms"),
    ({"types": {"TICKET": TYPE}, "roles": {"gate": {"interval": True}}}, "roles.gate.interval", "must be a duration"),
    ({"types": {"TICKET": TYPE}, "roles": {"gate": {"every": 5}}}, "roles.gate.every", "known are interval, lease"),
    ({"types": {"TICKET": None}}, "types.TICKET", "must be a mapping"),
    ({"types": {"TICKET": {"gates": []}}}, "types.TICKET", "needs handler"),
    ({"types": {"TICKET": {"handler": "do"}}}, "types.TICKET", "needs gates"),
    ({"types": {"TICKET": TYPE | {"handler": "not good"}}}, "types.TICKET.handler", "not a valid handler name"),
    ({"types": {"TICKET": TYPE | {"budget": "-1s"}}}, "types.TICKET.budget", "must be a duration"),
    ({"types": {"TICKET": TYPE | {"budget": 5, "budget_ms": 5}}}, "types.TICKET.budget", "not both"),
    ({"types": {"TICKET": TYPE | {"budget_ms": 0}}}, "types.TICKET.budget_ms", "from 1, not 0"),
    ({"types": {"TICKET": TYPE | {"on_fail": "BLOCK"}}}, "types.TICKET.on_fail", "did you mean BLOCKED?"),
    ({"types": {"TICKET": TYPE | {"max_workorders": 0}}}, "types.TICKET.max_workorders", "from 1 to 1000"),
    ({"types": {"TICKET": TYPE | {"max_workorders": "3"}}}, "types.TICKET.max_workorders", "not '3'"),
    ({"types": {"TICKET": TYPE | {"prompt": ""}}}, "types.TICKET.prompt", "must be text"),
    ({"types": {"TICKET": TYPE | {"gates": "mine"}}}, "types.TICKET.gates", "must be a list of gates"),
    ({"types": {"TICKET": TYPE | {"gates": [5]}}}, "types.TICKET.gates[0]", "use: NAME"),
    ({"types": {"TICKET": TYPE | {"gates": ["a", "a"]}}}, "types.TICKET.gates[1]", "choose another name"),
    ({"types": {"TICKET": TYPE | {"gates": ["no good"]}}}, "types.TICKET.gates[0]", "not a valid"),
    ({"types": {"TICKET": TYPE | {"gates": ["exit_code"]}}}, "types.TICKET.gates[0]", "needs argv"),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "exit_code", "argv": "rm -rf x"}]}}},
        "types.TICKET.gates[0].argv",
        "no shell is used",
    ),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "exit_code", "argv": ["x"], "cwd": "../up"}]}}},
        "types.TICKET.gates[0].cwd",
        "inside the topology file",
    ),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "exit_code", "argv": ["x"], "cwd": "/etc"}]}}},
        "types.TICKET.gates[0].cwd",
        "inside the topology file",
    ),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "exit_code", "argv": ["x"], "expect": 256}]}}},
        "types.TICKET.gates[0].expect",
        "0 to 255",
    ),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "regex", "pattern": "("}]}}},
        "types.TICKET.gates[0].pattern",
        "not a regular expression",
    ),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "regex", "pattern": "x", "of": "contents"}]}}},
        "types.TICKET.gates[0].of",
        "did you mean content?",
    ),
    (
        {"types": {"TICKET": TYPE | {"gates": [{"use": "regex", "patern": "x"}]}}},
        "types.TICKET.gates[0].patern",
        "did you mean pattern?",
    ),
    ({"types": {"TICKET": TYPE}, "deadlines": {5: "1h"}}, "deadlines.5", "from 0 to 4"),
    ({"types": {"TICKET": TYPE}, "deadlines": {4: None}}, "deadlines.4", "needs a duration"),
    ({"types": {"TICKET": TYPE}, "deadlines": [1]}, "deadlines", "must map urgencies"),
    ({"types": {"TICKET": TYPE}, "reviewer": "no good"}, "reviewer", "not a valid"),
]


@pytest.mark.parametrize(("document", "path", "message"), WRONG)
def test_each_problem_is_reported_with_its_path_and_a_correction(document: Any, path: str, message: str):
    with pytest.raises(InvalidTopology) as refused:
        read(document)
    told = {problem.path: problem.message for problem in refused.value.problems}
    assert message in told[path]
    assert (refused.value.code, isinstance(refused.value, InvalidInput)) == ("invalid_topology", True)


def test_all_problems_are_reported_together():
    with pytest.raises(InvalidTopology) as refused:
        read({"types": {"TICKET": {"handler": 5, "gates": [5], "budget": "x"}}, "what": 1, "deadlines": {9: 1}})
    assert [problem.path for problem in refused.value.problems] == [
        "what",
        "types.TICKET.handler",
        "types.TICKET.budget",
        "types.TICKET.gates[0]",
        "deadlines.9",
    ]
    assert "5 problems" in str(refused.value)


def write(folder: Path, text: str) -> Path:
    place = folder / "topology.yaml"
    place.write_text(text)
    return place


def test_a_file_is_read_and_its_folder_is_where_commands_run(tmp_path: Path):
    topology = load_topology(write(tmp_path, "types:\n  TICKET: {handler: do, gates: [mine]}\ndeadlines: {4: 1h}\n"))
    assert (topology.name, topology.folder, topology.deadlines) == ("topology.yaml", str(tmp_path), {4: 3_600_000})


@pytest.mark.parametrize(
    ("text", "line", "path", "message"),
    [
        ("types:\n  TICKET:\n    handler: do\n    gates: []\n    budgt: 5\n", 5, "types.TICKET.budgt", "did you mean budget"),
        (
            "types:\n  TICKET:\n    handler: do\n    gates:\n      - a\n      - use: regex\n",
            6,
            "types.TICKET.gates[1]",
            "needs pattern",
        ),
        ("types: {TICKET: {handler: do, gates: []}}\ntypes: {}\n", 2, "types", "is a duplicate of line 1"),
        ("types: [\n", 2, "", "is not YAML"),
        (
            "types:\n  TICKET:\n    handler: do\n    gates:\n      - use: json_schema\n        schema: {type: nothing}\n",
            6,
            "types.TICKET.gates[0].schema",
            "is not a JSON Schema",
        ),
    ],
)
def test_a_problem_in_a_file_is_reported_with_its_line(tmp_path: Path, text: str, line: int, path: str, message: str):
    with pytest.raises(InvalidTopology) as refused:
        load_topology(write(tmp_path, text))
    (problem,) = refused.value.problems
    assert (problem.line, problem.path) == (line, path)
    assert message in problem.message
    assert f"line {line}, " in str(refused.value)


def test_a_missing_file_is_reported(tmp_path: Path):
    with pytest.raises(InvalidTopology, match="cannot be read"):
        load_topology(tmp_path / "nothing.yaml")


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingDependency, match=r"pip install 'treadle\[goals\]'"):
        load_topology(write(tmp_path, "types: {}"))


def test_a_process_may_play_some_of_the_roles():
    topology = read({"roles": {"gate": {"lease": 40}, "runner": {"lease": 30}}, "types": {"TICKET": TYPE}})
    some = with_roles(topology, ["gate"])
    assert (some.kinds(), some.lease_for(), some.digest) == ({"goal.gate"}, 40_000, topology.digest)
    with pytest.raises(InvalidInput, match="has no role runer; it has gate, runner; did you mean runner"):
        with_roles(topology, ["runer"])


@pytest.mark.parametrize(
    "span", [10**400, 10**5000, float("inf"), -1, "9" * 500 + "d"], ids=["400", "5000", "inf", "negative", "text"]
)
def test_a_duration_of_any_size_is_reported_with_its_range(span: Any) -> None:
    with pytest.raises(InvalidTopology, match=r"must be from 1ms to 30d"):
        read({"types": {"TICKET": TYPE | {"budget": span}}})
    if not isinstance(span, str):
        with pytest.raises(InvalidPolicy, match="delay must be zero or more and under a century"):
            milliseconds(span, "delay")
