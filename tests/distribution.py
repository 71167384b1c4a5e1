"""How tests are distributed to processes: those that share something expensive stay together, and long ones begin first."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/attack/",
    "tests/chaos/",
    "tests/fuzz/",
    "tests/http/test_curl_worker.py",
    "tests/interfaces/test_cli_parity.py",
    "tests/interfaces/test_cli_server_troubles.py",
    "tests/unit/stores/test_sqlite_plans.py",
    "tests/unit/stores/test_sqlite_run_plans.py",
    "tests/unit/workers/test_scripts.py",
    "tests/web/browser/",
    "tests/web/test_every_page.py",
)
"""Tests with fixtures for a whole module or folder. A machine has memory for one browser."""

LONG = (
    "tests/simulation/",
    "tests/properties/",
    "tests/http/test_schemathesis.py",
    "tests/agents/test_processes.py",
    "tests/crash/",
    "tests/interfaces/",
)
"""Tests that would keep one process busy at the end while the others have nothing left to do."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Sends tests one by one to the process that is free, and those that belong together to the same."""

    def _split_scope(self, nodeid: str) -> str:
        return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
