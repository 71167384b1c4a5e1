"""How tests are distributed to processes: those that share something expensive stay together, and long ones begin first."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from tests import fork_server, forked_workers
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/attack/",
    "tests/chaos/",
    "tests/crash/test_damage.py",
    "tests/editors/test_node.py",
    "tests/editors/test_tree_sitter.py",
    "tests/fuzz/",
    "tests/http/test_curl_worker.py",
    "tests/http/test_schemathesis.py",
    "tests/cli/test_parity.py",
    "tests/cli/test_server_troubles.py",
    "tests/stores/test_poisoned_rows.py",
    "tests/stores/test_release_upgrade.py",
    "tests/lsp/test_documents.py",
    "tests/lsp/test_examples.py",
    "tests/lsp/test_names.py",
    "tests/lsp/test_writing.py",
    "tests/stores/test_sqlite_plans.py",
    "tests/stores/test_sqlite_run_plans.py",
    "tests/workers/test_scripts.py",
    "tests/web/browser/",
    "tests/web/test_every_page.py",
)
"""Tests with fixtures for a whole module or folder. A machine has memory for one browser."""

FEATURES = (
    "tests/access/",
    "tests/approvals/",
    "tests/cli/",
    "tests/effects/",
    "tests/engine/",
    "tests/examples/",
    "tests/external/",
    "tests/functions/",
    "tests/goals/",
    "tests/integrations/",
    "tests/llm/",
    "tests/monitoring/",
    "tests/queue/",
    "tests/remote_workers/",
    "tests/runs/",
    "tests/schedules/",
    "tests/testing/",
    "tests/transactions/",
    "tests/workers/",
    "tests/stores/test_codec",
    "tests/stores/test_namespaces",
    "tests/stores/test_newer_fields",
    "tests/stores/test_outages",
    "tests/stores/test_poisoned",
    "tests/stores/test_postgres_roles",
    "tests/stores/test_release_upgrade",
    "tests/stores/test_retention",
    "tests/stores/test_rolling_upgrade",
    "tests/stores/test_transfer",
)
"""Tests of features through the engine and the command line."""

LONG = (
    "tests/simulation/",
    "tests/properties/",
    "tests/http/test_schemathesis.py",
    "tests/agents/test_processes.py",
    "tests/crash/",
    *FEATURES,
)
"""Tests that would keep one process busy at the end while the others have nothing left to do."""


KEPT_ON_POSTGRES = dict.fromkeys(("tests/agents/", "tests/contract/", "tests/crash/", "tests/dispatch/", *FEATURES), 1)
"""The cases of each test that `make test` runs on PostgreSQL; all run on SQLite, where a case takes a tenth of the time."""

ABOVE_THE_STORES = ("tests/agents/", "tests/crash/", "tests/dispatch/", *FEATURES)
"""Tests of the engine, which use few of the store's operations each."""

MODULE_ON_POSTGRES = 1
"""The test of each module above the stores that it runs on PostgreSQL too: the conformance suite covers what the stores do."""

NOT_IN_MEMORY = (
    *ABOVE_THE_STORES,
    "tests/contract/test_schedules.py",
    "tests/contract/test_watchers.py",
    "tests/contract/test_schedules_catch_up.py",
)
"""Tests that `make test` does not run in memory, which is SQLite's code without threads, if they run on a file too."""

CRASH_POINTS = 3
"""The cases of each crash test that `make test` runs on SQLite, spread over all of them; `make soak` runs them all."""


LEFT_TO_SOAK = (
    "tests/attack/test_attack.py::test_an_attack_breaks_nothing[routes]",  # tests/http/test_refusals.py: every route and caller
    "tests/chaos/test_chaos.py::test_no_work_is_lost_when_processes_fail[sqlite]",
    "tests/crash/test_agents.py::test_an_agent_that_is_killed_at_any_write_repeats_nothing_that_is_recorded[sqlite",
    "tests/crash/test_failed_sync.py::test_a_failed_sync_ends_the_process_and_leaves_a_consistent_store[file system of SQLite]",
    "tests/crash/test_goals.py::test_fifty_objectives_and_two_of_each_role_killed_at_random",
    "tests/crash/test_langgraph.py::test_a_graph_repeats_no_recorded_step_after_a_kill_at_any_write[sqlite",
    "tests/http/test_schemathesis.py::test_every_response_with_or_without_a_token_is_documented[1]",
    "tests/http/test_schemathesis.py::test_every_response_with_or_without_a_token_is_documented[3]",
    "tests/examples/test_agents.py::test_the_coding_agent_is_killed_and_opens_one_pull_request",
    "tests/stores/test_poisoned_interfaces.py::test_every_command_answers",  # the calls behind them: test_poisoned_rows.py
    "tests/stores/test_poisoned_rows.py::test_postgresql_confines_damaged_rows_too",
    "tests/simulation/test_histories.py::test_a_seed_reproduces_its_history_in_any_process",
)
"""Tests of a quarter of a minute or more, with the same code on another store, or the same promise, in another test."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Sends tests one by one to the process that is free, and those that belong together to the same."""

    def _split_scope(self, nodeid: str) -> str:
        return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget what is done, which pytest-xdist would count again for each of thousands of tests."""
        nodeid = self.registered_collections[node][item_index]
        work = self.assigned_work[node]
        unit = work[self._split_scope(nodeid)]
        unit[nodeid] = True
        if all(unit.values()):
            del work[self._split_scope(nodeid)]
        self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if sys.platform == "linux":
        fork_server.address()  # the workers share it
        command, end = forked_workers.start([str(argument) for argument in config.invocation_params.args])
        config.add_cleanup(end)
        for spec in specs:
            spec.python = command


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    keep_few_on_postgres(items)
    keep_one_sqlite(items)
    keep_some_crash_points(items)
    for item in items:
        if item.nodeid.startswith(LEFT_TO_SOAK):
            item.add_marker(pytest.mark.soak)
    yield
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def keep_few_on_postgres(items: list[pytest.Item]) -> None:
    """Leave the other cases on PostgreSQL of tests that run on SQLite too to `make soak`."""
    elsewhere = {function_of(item) for item in items if "postgres" not in item.name}
    seen: Counter[str] = Counter()
    in_module: Counter[str] = Counter()
    for item in items:
        test = function_of(item)
        if "postgres" in item.name and test in elsewhere and not item.get_closest_marker("soak"):
            seen[test] += 1
            module = test.partition("::")[0]
            in_module[module] += module.startswith(ABOVE_THE_STORES) and seen[test] == 1
            most = next((kept for place, kept in KEPT_ON_POSTGRES.items() if test.startswith(place)), seen[test])
            if seen[test] > most or in_module[module] > MODULE_ON_POSTGRES:
                item.add_marker(pytest.mark.soak)


def keep_one_sqlite(items: list[pytest.Item]) -> None:
    """Leave the cases in memory of tests that run on a SQLite file too to `make soak`."""
    on_file = {item.nodeid for item in items if "sqlite" in item.name}
    for item in items:
        if (
            item.nodeid.startswith(NOT_IN_MEMORY)
            and item.nodeid.replace("memory", "sqlite", 1) in on_file
            and "sqlite" not in item.name
        ):
            item.add_marker(pytest.mark.soak)


def keep_some_crash_points(items: list[pytest.Item]) -> None:
    """Leave most of the many points at which a process dies to `make soak`, but never the first and the last."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith("tests/crash/") and not item.get_closest_marker("soak"):
            cases.setdefault(function_of(item), []).append(item)
    for several in cases.values():
        if len(several) > CRASH_POINTS:
            kept = {round(place * (len(several) - 1) / (CRASH_POINTS - 1)) for place in range(CRASH_POINTS)}
            for place, item in enumerate(several):
                if place not in kept:
                    item.add_marker(pytest.mark.soak)


def function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
