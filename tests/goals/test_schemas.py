"""The shipped schemas take what the pipeline writes, and refuse what it must not write."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from tests.goals.artifacts import ID, LATER, NOW, OTHER_ID, bundle, event, new_objective, objective, workorder

from treadle.api.objectives import Blocker
from treadle.goals.records import InvalidArtifact
from treadle.goals.schemas import NAMES, check_document, check_schema, first_error, load_schema

BLOCKER = Blocker(blocker_id="b1", kind="TEXT", text="no key").as_json()
CLAIM = {
    "resource_type": "EVENT",
    "resource_id": ID,
    "owner_id": OTHER_ID,
    "lease_expires_at": LATER,
    "heartbeat_at": NOW,
    "claim_version": 1,
}
PAUSE = {
    "pause_state_id": ID,
    "objective_id": ID,
    "work_order_id": OTHER_ID,
    "reason": "RUN_COMPLETE",
    "terminal": True,
    "actions": [{"priority": 1, "action": "Use it"}],
    "created_at": NOW,
}
RUN = {
    "run_record_id": ID,
    "work_order_id": ID,
    "objective_id": ID,
    "bundle_id": ID,
    "gate_result": "PASS",
    "reason": "fine",
    "gates": [{"gate": "tests", "result": "PASS", "reason": ""}],
    "created_at": NOW,
}
SNAPSHOT = {
    "snapshot_id": ID,
    "event_id": ID,
    "objective_id": ID,
    "objective": objective().as_json(),
    "blockers": [BLOCKER],
    "run_records": [{"id": ID, "digest": "0" * 64}],
    "output_bundles": [],
    "topology_name": "t",
    "topology_digest": "f" * 64,
    "prompt": "Do it",
    "created_at": NOW,
}

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("blocker_ref", BLOCKER),
    ("blocker_ref", Blocker(blocker_id="b2", kind="OBJECTIVE", objective_id=ID, resolved=True, resolved_at=NOW).as_json()),
    ("claim_record", CLAIM),
    ("context_snapshot", SNAPSHOT),
    ("event", event().as_json()),
    ("event", event(processed=True, processed_reason="SCHEDULED", processed_at=NOW).as_json()),
    ("objective", objective().as_json()),
    ("objective", new_objective(type="STANDING", importance=0, urgency=4).as_json()),
    ("output_bundle", bundle().as_json()),
    ("pause_state", PAUSE),
    ("pause_state", PAUSE | {"work_order_id": None, "terminal": False, "reason": "DEADLINE_PASSED"}),
    ("run_record", RUN),
    ("workorder", workorder().as_json()),
    ("workorder", workorder(status="EXECUTED", executed_at=NOW).as_json()),
]

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("blocker_ref", BLOCKER | {"text": None}, "not valid under any"),
    ("blocker_ref", BLOCKER | {"kind": "OBJECTIVE"}, "not valid under any"),
    ("blocker_ref", BLOCKER | {"kind": "MOOD"}, "not valid under any"),
    ("claim_record", CLAIM | {"resource_type": "THING"}, "resource_type"),
    ("claim_record", CLAIM | {"resource_id": "no uuid"}, "resource_id"),
    ("claim_record", CLAIM | {"owner_id": ""}, "owner_id"),
    ("claim_record", CLAIM | {"claim_version": 0}, "claim_version"),
    ("claim_record", CLAIM | {"lease_expires_at": "tomorrow"}, "lease_expires_at"),
    ("claim_record", CLAIM | {"heartbeat_at": "2026-11-15T10:00:00"}, "heartbeat_at"),
    *((("claim_record", {key: value for key, value in CLAIM.items() if key != missing}, missing)) for missing in CLAIM),
    ("context_snapshot", SNAPSHOT | {"topology_digest": "short"}, "topology_digest"),
    ("context_snapshot", SNAPSHOT | {"objective": {}}, "objective"),
    ("event", event().as_json() | {"event_type": "PARTY"}, "event_type"),
    ("event", event().as_json() | {"processed": True}, "processed"),
    ("objective", objective().as_json() | {"type": ""}, "type"),
    ("objective", objective().as_json() | {"status": "DOING"}, "status"),
    ("objective", objective().as_json() | {"importance": 5}, "importance"),
    ("objective", objective().as_json() | {"urgency": -1}, "urgency"),
    ("objective", objective().as_json() | {"approved_by": None}, "approved_by"),
    ("objective", objective().as_json() | {"title": ""}, "title"),
    ("objective", objective().as_json() | {"surprise": 1}, "surprise"),
    ("output_bundle", bundle().as_json() | {"notes": "text"}, "notes"),
    ("output_bundle", bundle().as_json() | {"error": {"code": "x"}}, "error"),
    ("pause_state", PAUSE | {"actions": []}, "actions"),
    ("pause_state", PAUSE | {"actions": [{"priority": 1, "action": "x"}] * 4}, "actions"),
    ("pause_state", PAUSE | {"reason": "BORED"}, "reason"),
    ("pause_state", PAUSE | {"work_order_id": None}, "work_order_id"),
    ("pause_state", PAUSE | {"reason": "DEADLINE_PASSED"}, "reason"),
    ("run_record", RUN | {"gate_result": "MAYBE"}, "gate_result"),
    ("workorder", workorder().as_json() | {"budget_ms": 0}, "budget_ms"),
    ("workorder", workorder().as_json() | {"status": "EXECUTED"}, "executed_at"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_valid_and_has_a_title_and_an_example(name: str):
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"]
    assert schema["additionalProperties"] is False
    assert any(each == name for each, _ in GOOD)


@pytest.mark.parametrize(("name", "document"), GOOD)
def test_a_good_document_fits(name: str, document: dict[str, Any]):
    check_document(name, document)


@pytest.mark.parametrize(("name", "document", "place"), BAD)
def test_a_bad_document_is_refused_and_the_place_is_named(name: str, document: dict[str, Any], place: str):
    with pytest.raises(InvalidArtifact, match=place) as refused:
        check_document(name, document)
    assert refused.value.code == "invalid_artifact"


def test_a_users_schema_is_checked_and_applied():
    assert check_schema({"type": "object"}) is None
    assert "is not valid" in str(check_schema({"type": "nonsense"}))
    assert first_error({"required": ["a"]}, {"a": 1}) is None
    assert "required" in str(first_error({"required": ["a"]}, {}))
    assert first_error({"properties": {"a": {"type": "string"}}}, {"a": 1}) == "a: 1 is not of type 'string'"


def test_validation_with_a_users_schema_sends_no_requests():
    with pytest.raises(Exception, match=r"Unresolvable|nowhere"):
        first_error({"$ref": "http://nowhere.invalid/schema.json"}, {})
