"""The tables that hold the rows of a namespace, in an order in which they can be written.

Not among them: servers, which register again, and tables that a store derives from others.
"""

from __future__ import annotations

from typing import NamedTuple


class NamespaceTable(NamedTuple):
    """A table, its key (columns with their PostgreSQL types), and how its rows belong to a namespace."""

    name: str
    key: tuple[tuple[str, str], ...]
    belongs: str = "own"
    """The name of the condition."""
    removable: str | None = None
    """The condition under which rows are removed, for a table that namespaces share."""
    assigned: tuple[str, ...] = ()
    """Columns whose values the database assigns."""


def _key(**columns: str) -> tuple[tuple[str, str], ...]:
    return tuple(columns.items())


TABLES = (
    NamespaceTable("lists", _key(namespace="text", task_list="text")),
    NamespaceTable("limits", _key(namespace="text", key="text")),
    NamespaceTable("handler_keys", _key(namespace="text", name="text")),
    NamespaceTable("lanes", _key(id="integer"), assigned=("id", "slowed", "guarded")),
    NamespaceTable("handler_registrations", _key(namespace="text", facet_name="text")),
    NamespaceTable("flows", _key(id="text"), "used_flow", removable="unused_flow"),
    NamespaceTable("flow_versions", _key(namespace="text", name="text", version="integer")),
    NamespaceTable("runs", _key(id="uuid")),
    NamespaceTable("steps", _key(id="uuid"), "of_run"),
    NamespaceTable("tasks", _key(id="uuid")),
    NamespaceTable("finished", _key(id="uuid")),
    NamespaceTable("records", _key(id="uuid")),
    NamespaceTable("record_items", _key(record_id="uuid", key="text"), "of_record"),
    NamespaceTable("blobs", _key(digest="text"), "used_blob", removable="unused_blob"),
    NamespaceTable("blob_uses", _key(root_id="uuid", digest="text"), "of_root"),
    NamespaceTable("log", _key(seq="bigint"), "of_entity"),
    NamespaceTable("lines", _key(id="bigint"), "of_task", assigned=("id",)),
    NamespaceTable("mail", _key(seq="bigint"), "of_run", assigned=("seq",)),
    NamespaceTable("idempotency_outcomes", _key(idempotency_key="text"), "of_root"),
    NamespaceTable("llm_budgets", _key(run_id="uuid"), "of_run"),
    NamespaceTable("llm_usage", _key(id="uuid"), "of_run"),
    NamespaceTable("tags", _key(owner_id="uuid", key="text")),
    NamespaceTable("streams", _key(owner_id="uuid", name="text")),
    NamespaceTable("stream_chunks", _key(owner_id="uuid", name="text", first_offset="bigint"), "of_stream"),
    NamespaceTable("dedupe", _key(namespace="text", key="text")),
)

BY_NAME = {table.name: table for table in TABLES}

REMOVAL = (
    *("stream_chunks", "streams", "tags", "llm_usage", "llm_budgets", "idempotency_outcomes", "mail", "lines", "log", "blob_uses"),
    *("blobs", "record_items", "records", "finished", "tasks", "steps", "runs", "flow_versions", "flows"),
    *("handler_registrations", "dedupe", "limits", "handler_keys"),
)
"""The order in which the work of a namespace is removed: rows after those that refer to them or are found through them."""

OPERATIONS = ("insert", "update", "delete")

UNFENCED = {
    ("log", "insert"): "servers log takeovers of all namespaces; other moves are written with the row that moves",
    ("steps", "insert"): "written with their run",
    ("steps", "update"): "written with their run, or with the end of their task",
    ("mail", "delete"): "taken with a change of their run",
    ("flows", "update"): "namespaces share flows",
    ("flows", "delete"): "namespaces share flows",
    ("blobs", "insert"): "namespaces share large values",
    ("blobs", "update"): "namespaces share large values",
    ("blobs", "delete"): "namespaces share large values",
}
"""Operations on tables that a store allows in a moved namespace, and why nothing is lost by them. It refuses all others, except
changes that a server makes for all namespaces (waking, takeovers, admission, refills): the new place makes them again."""

LATE = ("lines",)
"""Tables that workers write shortly after the tasks that the rows are about have ended, without their claims."""
SETTINGS = ("lanes", "lists")
"""Tables that remain when the work is removed: paused lists refuse processes that still use the old place, and processes know
the ids of lanes."""
