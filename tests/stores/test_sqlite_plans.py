"""Plans: what is done all the time finds its rows by an index, however many others there are, with statistics or without."""

from __future__ import annotations

import re

import apsw
import pytest

from treadle.stores.sqlite.connection.connect import add_shapes, connect
from treadle.stores.sqlite.connection.schema import NEWEST, migrate_to
from treadle.stores.statements import load_statements

pytestmark = pytest.mark.xdist_group("stores sqlite plans")

ROWS = 100_000

FILL = """
insert into queues (namespace, kind, task_list, name)
values ('default', 'handler', 'default', 'a'), ('default', 'handler', 'default', 'b');
with recursive n (i) as (select 1 union all select i + 1 from n where i < :rows)
insert into tasks (id, queue_id, namespace, priority, due_at, blocked_by, state, wake_at, owner_id, claim_version, attempt,
  failures, takeovers, version, created_at, root_id, payload)
select printf('%08x', i), 1 + i % 2, 'default', 0, i, 0, 'pending', iif(i % 3, i, null), iif(i % 3 = 1, 'o', null), 1, 1, 0, 0, 0,
  i, printf('%08x', i), '{}'
from n;
with recursive n (i) as (select 1 union all select i + 1 from n where i < :rows / 2)
insert into finished (id, seq, queue_id, namespace, state, transition, from_state, claim_version, version, attempt, failures,
takeovers,
  priority, created_at, due_at, finished_at, root_id, payload)
select printf('f%07x', i), i, 1, 'default', 'completed', 'succeed', 'pending', 1, 1, 1, 0, 0, 0, i, i, i, 'r', '{}' from n;
with recursive n (i) as (select 1 union all select i + 1 from n where i < :rows / 2)
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state)
select :rows + i, i, 'task', printf('%08x', i), 1, 'retry', 'pending', 'pending' from n;
"""

INDEXES = {
    "tasks": {
        "find_head": {"tasks_ready"},
        "show_taken": {"tasks_ready"},
        "take": {"tasks_ready"},
        "order_fairly": {"tasks_fairness", "tasks_fairness_heads"},
        "find_next_wake": {"tasks_wake"},
        "find_next_after": {"tasks_wake"},
        "count_due": {"tasks_wake"},
        "log_expired": {"tasks_wake"},
        "wake_due": {"tasks_wake"},
        "extend": set(),
        "list_held": set(),
        "list_failing": {"tasks_wake"},
        "find_tasks": set(),
        "find_finished": set(),
        "list_tasks": {"tasks_created", "finished_created"},
        "list_run_tasks": {"tasks_run", "finished_run"},
    },
    "commit/settlements": {
        "finish": {"finished_seq"},
        "requeue": set(),
        "keep": set(),
        "redrive": {"tasks_unique_key"},
        "discard_finished": set(),
        "mark_in_doubt": {"idempotency_outcomes_in_progress"},
    },
    "limits": {
        "admit": {"tasks_over_limit", "tasks_admitted"},
        "recall": {"tasks_admitted"},
        "recall_list": {"tasks_admitted"},
        "list_waiting_keys": {"tasks_over_limit_queue"},
        "go_back": {"tasks_admitted", "tasks_over_limit_queue"},
        "admit_others": {"tasks_over_limit_queue", "tasks_admitted"},
        "list_rated": {"limits_rated", "tasks_over_limit", "tasks_admitted"},
    },
    "operators": {
        "list_limits": {"tasks_over_limit", "tasks_admitted"},
        "list_admitted": {"tasks_admitted"},
    },
    "queues": {
        "list_slowed": {"queues_slowed"},
        "lock_guarded": {"queues_guarded"},
        "list_rated_queues": {"tasks_ready"},
        "count_backlog": {"tasks_ready", "tasks_over_limit_queue"},
    },
    "commit/inserts": {
        "insert_tasks": set(),
        "explain_inserts": {"tasks_unique_key"},
        "preclaim": set(),
    },
    "log": {
        "list_lines": {"lines_task"},
        "list_run_lines_before": {"lines_run"},
        "list_run_lines_after": {"lines_run"},
        "list_transitions": set(),
        "list_histories": set(),
        "list_takeovers": {"log_takeovers"},
        "list_events": {"finished_seq"},
        "list_changes": {"log_changes", "finished_changes"},
    },
    "metrics": {
        "find_page": {"finished_seq"},
        "tally": {"finished_seq"},
        "list_metrics": set(),
        "list_releases": set(),
        "prune_metrics": set(),
    },
    "dead_letters": {
        "list_dead_letters": {"finished_failed"},
        "walk_dead_letters": {"finished_failed"},
        "count_dead_letters": {"finished_failed"},
        "count_dead_letters_in": {"finished_failed_queue"},
    },
    "commit/messages": {"put_messages": {"tasks_run"}, "take_messages": set(), "await_messages": set()},
    "runs": {"list_children": {"runs_parent"}},
    "commit/guards": {"lock_tasks": set(), "lock_finished": set(), "lock_records": set(), "list_settled": set()},
    "commit/records": {"find_holders": {"records_name"}, "change_records": set(), "put_items": set(), "remove_items": set()},
    "records": {
        "list_messages": {"mail_run"},
        "find_record_named": {"records_name"},
        "list_live_records": {"records_live"},
        "list_records_of_task": {"records_task"},
        "list_records_of_run": {"records_run"},
        "count_records": {"records_state"},
    },
    "retention": {
        "find_window": {"finished_seq"},
        "find_runs_window": {"finished_root"},
        "list_prunable": {"tasks_root", "finished_root", "runs_root"},
        "count_members": {"finished_root"},
        "lock_members": {"finished_root"},
        "delete_log": set(),
        "delete_finished": set(),
        "delete_lines": {"lines_task"},
        "delete_keys": {"dedupe_expires"},
        "delete_blobs": {"blob_uses_digest"},
        "lock_tree_records": {"records_root"},
        "lock_old_records": {"records_ended"},
        "delete_outcomes": {"idempotency_outcomes_root"},
    },
}


@pytest.fixture(scope="module", params=["no statistics", "statistics"])
def full(request):
    connection = connect(None)
    migrate_to(connection, NEWEST, "memory")
    add_shapes(connection)
    for statement in FILL.split(";\n"):
        connection.execute(statement, {"rows": ROWS} if ":rows" in statement else None)
    if request.param == "statistics":
        connection.execute("analyze")
    yield connection
    connection.close()


def plan_of(connection: apsw.Connection, script: str) -> list[str]:
    """The plans of all statements of a script."""
    plan = []
    for statement in re.sub(r"^--.*\n", "", script, flags=re.MULTILINE).split(";\n"):
        values = dict.fromkeys(re.findall(r":(\w+)", statement), 1)
        plan += [row[3] for row in connection.execute("explain query plan " + statement, values)]
    return plan


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in INDEXES.items() for name in names])
def test_a_hot_statement_uses_its_index(full, file, name):
    plan = plan_of(full, load_statements("treadle.stores.sqlite", f"{file}.sql")[name])
    text = "\n".join(plan)
    made = {line.split()[-1] for line in plan if line.startswith("CO-ROUTINE")}
    tables = {"tasks", "t", "head", "finished", "f", "log", "transitions"} - made
    scans = [line for line in plan if line.startswith("SCAN ") and line.split()[1] in tables and "USING" not in line]
    assert not scans, text
    for index in INDEXES[file][name]:
        assert f"INDEX {index}" in text, text


def test_dead_letters_are_counted_in_an_index_alone(full):
    plan = plan_of(full, load_statements("treadle.stores.sqlite", "dead_letters.sql")["count_dead_letters_in"])
    assert any("COVERING INDEX finished_failed_queue" in line for line in plan), plan


def test_admitting_sorts_no_rows(full):
    plan = plan_of(full, load_statements("treadle.stores.sqlite", "limits.sql")["admit"])
    assert not any("FOR ORDER BY" in line for line in plan), plan


def test_claiming_and_waking_sort_no_rows(full):
    statements = load_statements("treadle.stores.sqlite", "tasks.sql")
    for name in ("show_taken", "take", "count_due", "wake_due"):
        assert not any("FOR ORDER BY" in line for line in plan_of(full, statements[name])), plan_of(full, statements[name])
