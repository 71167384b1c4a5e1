"""Plans of what is done to runs: each statement finds its rows by an index among 100,000 steps, with statistics or without."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.test_sqlite_plans import plan_of

from treadle.stores.sqlite.connection.connect import add_shapes, connect
from treadle.stores.sqlite.connection.schema import NEWEST, migrate_to
from treadle.stores.statements import load_statements

pytestmark = pytest.mark.xdist_group("stores sqlite run plans")

STEPS, RUNS = 100_000, 1_000

FILL = """
insert into queues (namespace, kind, task_list, name) values ('default', 'handler', 'default', 'a');
with recursive n (i) as (select 1 union all select i + 1 from n where i < :runs)
insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs,
  idempotency_key, root_id, created_at)
select printf('%08x', i), 'default', 'workflow', 'f', 'w', iif(i % 10, 'completed', 'running'), 0, 1, 0, 'default', 0, '{}',
  iif(i % 2, 'k' || i, null), printf('%08x', i), i
from n;
with recursive n (i) as (select 1 union all select i + 1 from n where i < :steps)
insert into steps (id, run_id, parent_id, ordinal, kind, name, state, document, inbox, created_at, updated_at)
select printf('s%07x', i), printf('%08x', 1 + i % 10), iif(i = 1, null, printf('s%07x', 1 + i % 100)), i,
  iif(i % 2, 'item', 'step'), 'n', 'x', '{}', iif(i % 1000, null, '{}'), i, i
from n;
with recursive n (i) as (select 1 union all select i + 1 from n where i < :steps)
insert into tasks (id, queue_id, namespace, priority, due_at, blocked_by, state, claim_version, attempt, failures, takeovers,
  version, created_at, run_id, step_id, root_id, payload)
select printf('t%07x', i), 1, 'default', 0, i, 0, 'pending', 1, 1, 0, 0, 0, i, printf('%08x', 1 + i % 1000), printf('s%07x', i),
  printf('%08x', i), '{}'
from n;
"""

INDEXES: dict[str, dict[str, set[str]]] = {
    "commit/guards": {"lock_runs": set()},
    "commit/rows": {
        "bump_runs": set(),
        "find_runs_by_key": {"runs_idempotency_key"},
        "transition_runs": set(),
        "put_checkpoints": set(),
        "put_steps": set(),
        "put_inbox": set(),
        "clear_inbox": set(),
        "block_run": {"tasks_run"},
        "unblock_run": {"tasks_run"},
        "list_ready_queues_of": set(),
        "lock_run_tasks": {"tasks_run"},
        "cancel_run_tasks": {"tasks_run"},
    },
    "traces": {
        "list_trace_roots": {"runs_trace", "tasks_trace", "finished_trace"},
        "list_tree_runs": {"runs_root"},
        "list_tree_tasks": {"tasks_root", "finished_root"},
        "list_tree_records": {"records_root"},
    },
    "runs": {
        "find_runs": set(),
        "find_run": set(),
        "list_runs": {"runs_created"},
        "list_runs_of_state": {"runs_state"},
        "list_runs_of_workflow": {"runs_workflow"},
        "list_runs_by_activity": {"runs_state", "tasks_run"},
        "count_activities": {"runs_state", "tasks_run"},
        "list_open_work": {"tasks_run", "records_task"},
        "list_step_tasks": {"tasks_step"},
        "list_failed_runs": {"runs_failed"},
        "count_runs": {"runs_state"},
        "load_near": {"steps_parent"},
        "load_rows": set(),
        "load_children": {"steps_parent", "steps_items"},
        "list_inbox": {"steps_inbox"},
        "list_steps": {"steps_run"},
        "find_flow": set(),
        "find_flow_version": set(),
        "find_blobs": set(),
    },
    "search": {
        "list_tags": set(),
        "list_tagged": {"tags_value"},
        "list_tag_keys": {"tags_value"},
        "list_with_words": set(),
        "list_failing_tasks": {"tasks_error"},
        "list_run_names": {"runs_workflow"},
        "list_run_ids": set(),
        "list_task_ids": set(),
    },
}


@pytest.fixture(scope="module", params=["no statistics", "statistics"])
def full(request: pytest.FixtureRequest) -> Any:
    connection = connect(None)
    migrate_to(connection, NEWEST, "memory")
    add_shapes(connection)
    for statement in FILL.split(";\n"):
        if statement.strip():
            names = {"runs": RUNS, "steps": STEPS}
            connection.execute(statement, {name: value for name, value in names.items() if f":{name}" in statement})
    if request.param == "statistics":
        connection.execute("analyze")
    yield connection
    connection.close()


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in INDEXES.items() for name in names])
def test_a_statement_about_runs_uses_its_index(full: Any, file: str, name: str) -> None:
    plan = plan_of(full, load_statements("treadle.stores.sqlite", f"{file}.sql")[name])
    text = "\n".join(plan)
    tables = {"tasks", "t", "finished", "f", "records", "steps", "s", "runs", "flows", "flow_versions", "blobs", "b"}
    scans = [line for line in plan if line.startswith("SCAN ") and line.split()[1] in tables and "USING" not in line]
    if name in ("list_runs", "list_runs_of_state", "list_runs_of_workflow", "list_tagged", "list_with_words"):
        assert "ORDER BY" not in text, text
    assert not scans, text
    for index in INDEXES[file][name]:
        assert f"INDEX {index}" in text, text


def test_the_neighbourhood_of_an_item_does_not_touch_the_other_items(full: Any) -> None:
    plan = plan_of(full, load_statements("treadle.stores.sqlite", "runs.sql")["load_near"])
    assert not any("steps_items" in line for line in plan), plan
