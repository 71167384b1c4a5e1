"""Entries of the log about operators' changes: written together with the change of a setting, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import PutFlow, Row, Unit
from treadle.model.errors import TreadleError
from treadle.model.records import HandlerRegistration, Record
from treadle.model.runs import Flow
from treadle_conformance.task_steps import WORK, ids, new_task, put

Entry = tuple[Row, ...]
FLOW = "aaaa" * 16


async def queue_id(store: Store) -> int:
    return (await store.tasks.queue_ids([WORK]))[WORK]


async def set_rate(store: Store, entry: Entry) -> Any:
    return await store.operators.set_rate(await queue_id(store), 5.0, 5, entry)


async def set_backlog_limit(store: Store, entry: Entry) -> Any:
    return await store.operators.set_backlog_limit(await queue_id(store), 7, entry)


CHANGES: dict[str, Callable[[Store, Entry], Awaitable[Any]]] = {
    "set_list": lambda store, entry: store.operators.set_list("default", "mail", paused=True, entry=entry),
    "set_rate": set_rate,
    "set_backlog_limit": set_backlog_limit,
    "set_limit": lambda store, entry: store.operators.set_limit("default", "customer", 3, entry),
    "set_key_rate": lambda store, entry: store.operators.set_key_rate("default", "customer", 3.0, 3, entry),
    "save_handler": lambda store, entry: store.operators.save_handler("default", HandlerRegistration("b.New", "handlers"), entry),
    "delete_handler": lambda store, entry: store.operators.delete_handler("default", "b.Old", entry),
    "publish_flow": lambda store, entry: store.operators.publish_flow("default", "shop", FLOW, "ann", entry),
    "set_keep": lambda store, entry: store.retention.set_keep("default", "mail", 1000, None, entry),
}


def make_entry(state: str = "done") -> tuple[str, Entry]:
    """The id of an entry, and its rows; with another state than that of its record, it cannot be written."""
    record = Record(id=ids.new_id(), entity="operation", state="done")
    return record.id, (PutRecord(record), ChangeRecord(record.id, 0, "{}", "perform", state, "done", ended=True, actor="ann"))


async def settings_of(store: Store) -> list[Any]:
    """Everything that the changes change."""
    operators = store.operators
    return [
        await operators.list_lists(),
        [(rule.queue_id, rule.rate, rule.backlog_limit) for rule in await operators.list_queue_rules()],
        [(limit.key, limit.max_running, limit.rate) for limit in await operators.list_limits("default")],
        [registration.facet_name for registration in await operators.list_handlers("default")],
        await store.runs.list_flow_versions("default", "shop"),
    ]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_setting_and_its_entry_are_written_together_or_not_at_all(store: Store, change: str) -> None:
    await put(store, new_task())
    await store.operators.save_handler("default", HandlerRegistration("b.Old", "handlers"))
    await store.commit([Unit(rows=(PutFlow(Flow(id=FLOW, namespace="default", sources="[]", program="{}")),))])
    before = await settings_of(store)
    impossible_id, impossible = make_entry("another")
    with pytest.raises(TreadleError):
        await CHANGES[change](store, impossible)
    assert await settings_of(store) == before
    assert await store.records.find(impossible_id) is None
    entry_id, entry = make_entry()
    await CHANGES[change](store, entry)
    assert await settings_of(store) != before
    (transition,) = await store.log.list_transitions(entry_id)
    assert (transition.entity, transition.transition, transition.actor) == ("operation", "perform", "ann")


async def test_a_change_without_effect_has_no_entry(store: Store) -> None:
    await store.commit([Unit(rows=(PutFlow(Flow(id=FLOW, namespace="default", sources="[]", program="{}")),))])
    await store.operators.publish_flow("default", "shop", FLOW, "ann")
    for change in ("delete_handler", "publish_flow"):
        entry_id, entry = make_entry()
        await CHANGES[change](store, entry)
        assert await store.records.find(entry_id) is None
