"""Common steps of the tests of records, messages and outcomes."""

from __future__ import annotations

from typing import Any

from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import Await, ChangeRecord, PutMessage, PutRecord
from treadle.kernel.store.units import Requeue, Row, RunGuard, Unit, UnitAnswer
from treadle.model.records import EffectOutcome, Message, Record
from treadle.model.runs import Run
from treadle.model.tasks import Task
from treadle_conformance.run_steps import begin, get_run, new_task
from treadle_conformance.task_steps import claim_one, ids, requeue


def new_record(**fields: Any) -> Record:
    return Record(**{"id": ids.new_id(), "entity": "approval", "state": "pending", "document": '{"asked":1}'} | fields)


def new_schedule(name: str = "nightly", **fields: Any) -> Record:
    return new_record(**{"entity": "schedule", "state": "active", "name": name} | fields)


async def write(store: Store, *rows: Row) -> UnitAnswer:
    """The rows in a unit without a guard."""
    (answer,) = await store.commit([Unit(rows=rows)])
    return answer


async def put_record(store: Store, record: Record | None = None, **fields: Any) -> Record:
    record = record or new_record(**fields)
    answer = await write(store, PutRecord(record))
    assert (answer.verdict, answer.existing) == ("done", {})
    return await get_record(store, record.id)


async def get_record(store: Store, record_id: str) -> Record:
    record = await store.records.find(record_id)
    assert record is not None
    return record


def approve(record: Record, **fields: Any) -> ChangeRecord:
    values: dict[str, Any] = {
        "transition": "approve",
        "from_state": "pending",
        "to_state": "approved",
        "ended": True,
        "actor": "ann",
    }
    return ChangeRecord(**{"record_id": record.id, "version": record.version, "document": '{"by":"ann"}'} | values | fields)


def new_message(run: Run, **fields: Any) -> Message:
    return Message(**{"id": ids.new_id(), "run_id": run.id, "document": '{"told":1}'} | fields)


async def tell(store: Store, *messages: Message) -> UnitAnswer:
    return await write(store, *(PutMessage(each) for each in messages))


async def begin_function(store: Store, **fields: Any) -> tuple[Run, Task]:
    """A running run and its own task, taken."""
    run = await begin(store, **{"kind": "function", "workflow": "pay"} | fields)
    await store.commit([Unit(tasks=(new_task(run_id=run.id, root_id=run.root_id),))])
    return run, await claim_one(store)


def asleep(task: Task, **fields: Any) -> Requeue:
    return requeue(task, **{"transition": "wait", "delay": 3_600_000} | fields)


async def wait_for_messages(store: Store, run: Run, task: Task, count: int, **fields: Any) -> Run:
    """Put the run's function to sleep until `count` messages have arrived."""
    unit = Unit(task.claim, asleep(task, **fields), run=RunGuard(run.id, run.version), rows=(Await(run.id, count),))
    (answer,) = await store.commit([unit])
    assert answer.verdict == "done"
    return await get_run(store, run.id)


def outcome(run_id: str, status: str = "unknown", **fields: Any) -> EffectOutcome:
    return EffectOutcome(**{"idempotency_key": "key-1", "tool_call_id": "call-1", "status": status, "root_id": run_id} | fields)
