"""Artifacts for tests, whole and valid."""

from __future__ import annotations

from typing import Any

from treadle.api.objectives import Objective, OutputBundle, ReadinessEvent, Workorder
from treadle.goals.decide import ReadRecord
from treadle.goals.records import event_id_of, follow_up_id
from treadle.goals.topology import Topology, read_topology
from treadle.model.records import Record

NOW = "2026-11-15T10:00:00.000Z"
LATER = "2026-11-15T11:00:00.000Z"
ID = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"
OTHER_ID = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a78"


def objective(**fields: Any) -> Objective:
    """A TODO objective, approved, at status version 1."""
    said = {"status": "TODO", "status_version": 1, "approved_by": "ada", "approved_at": NOW}
    return Objective(
        **{"objective_id": ID, "title": "Do it", "created_by": "ada", "created_at": NOW, "updated_at": NOW, **said, **fields}
    )


def new_objective(**fields: Any) -> Objective:
    return objective(status="NEW", status_version=0, approved_by=None, approved_at=None, **fields)


def seen(what: Objective, version: int = 3) -> ReadRecord:
    record = Record(id=what.objective_id, entity="objective", state=what.status, version=version)
    return ReadRecord(record, what)


def event(status_version: int = 1, **fields: Any) -> ReadinessEvent:
    return ReadinessEvent(
        **{"event_id": event_id_of(ID, status_version), "resource_id": ID, "status_version": status_version, "created_at": NOW}
        | fields
    )


def event_record(what: ReadinessEvent) -> Record:
    return Record(id=what.event_id, entity="readiness_event", state="processed" if what.processed else "unprocessed")


def workorder(**fields: Any) -> Workorder:
    event_id = event_id_of(ID, 1)
    said = {"work_order_id": follow_up_id(event_id, "workorder"), "objective_id": ID, "event_id": event_id, "diazotroph_type": "do"}
    return Workorder(**said | {"snapshot_id": follow_up_id(event_id, "snapshot"), "budget_ms": 1000, "created_at": NOW} | fields)


def workorder_record(what: Workorder) -> Record:
    return Record(id=what.work_order_id, entity="workorder", state=what.status)


def bundle(**fields: Any) -> OutputBundle:
    order = workorder()
    said = {"bundle_id": follow_up_id(order.work_order_id, "bundle"), "work_order_id": order.work_order_id, "objective_id": ID}
    return OutputBundle(**said | {"title": "Do it", "content": {"n": 1}, "created_at": NOW} | fields)


def topology(**rules: Any) -> Topology:
    return read_topology({"types": {"TICKET": {"handler": "do", "gates": ["first", "second"], **rules}}})
