"""The last line of a run of the tests: how many of them its marker expression left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

MARKS = {"soak": "at full size", "all_cases": "similar cases", "postgres_all": "on PostgreSQL"}
"""The marks of what `make test` leaves out. An item with several of them counts for the first."""


class LeftOut:
    """Counts the items that are not run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            reasons = [reason for mark, reason in MARKS.items() if item.get_closest_marker(mark)]
            self.counts.update(reasons[:1])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        vars(session.config).get("workeroutput", {})["left_out"] = dict(self.counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over the numbers of a process of pytest-xdist; all of them collect the same."""
        self.counts |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print the numbers below the line of the results."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self.counts and reporter is not None and not hasattr(config, "workerinput"):
            numbers = ", ".join(f"{self.counts[reason]:,} {reason}" for reason in MARKS.values() if self.counts[reason])
            reporter.write_line(f"left out: {self.counts.total():,} tests ({numbers}); `make test-all` runs them")
