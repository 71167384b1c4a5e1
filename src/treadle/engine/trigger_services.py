"""Kernel services for schedules, watchers, alerts and declarations, built on first use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from treadle.kernel.alerts.evaluate import AlertEvaluator
from treadle.kernel.alerts.service import Alerts
from treadle.kernel.declarations.service import Declarations
from treadle.kernel.schedules.fire import Firer
from treadle.kernel.schedules.service import Schedules
from treadle.kernel.status import StatusReads
from treadle.kernel.triggers import Starters
from treadle.kernel.watchers.decide import Scan
from treadle.kernel.watchers.scan import SourceReader, WatcherScanner
from treadle.kernel.watchers.service import Watchers
from treadle.model.watchers import Source

if TYPE_CHECKING:
    from treadle.engine.kernel import Kernel
    from treadle.model.tasks import Task


class TriggerServices:
    """Schedules, watchers, alerts and declarations."""

    def __init__(self, kernel: Kernel) -> None:
        namespace = kernel.settings.namespace
        store, committer, ids = kernel.store, kernel.committer, kernel.ids
        self._kernel = kernel
        self.starters = Starters(store, kernel.queue, lambda: kernel.run_services.runs, lambda: kernel.run_services.functions)
        self.schedules = Schedules(store, committer, ids, self.starters, namespace=namespace)
        self.watchers = Watchers(store, committer, ids, self.starters, namespace=namespace)
        self.watchers.survey = _survey
        self.watchers.allowed = kernel.settings.watch_allow
        self.firer = Firer(self.schedules)
        self.declarations = Declarations(kernel.core, kernel.reads, self.schedules)
        self.alerts = Alerts(store, committer, ids, self.starters, namespace=namespace)
        self.alerts.seal = kernel.value_store.seal
        self.alerts.wait = self._wait
        self.status = StatusReads(store, kernel.clock, self.schedules, self.watchers, namespace=namespace)
        self.alert_evaluator = AlertEvaluator(self.alerts, self.status.read)

    async def _wait(self, task_id: str) -> Task:
        return await self._kernel.value_store.open_task(await self._kernel.results.tasks.wait(task_id))

    def scanner(self, source_reader: SourceReader) -> WatcherScanner:
        """Return the service that scans for watchers with the given file and network access."""
        return WatcherScanner(self.watchers, self._kernel.emit, source_reader)


async def _survey(source: Source) -> Scan:
    """List the files of a source on this machine, in a thread."""
    from treadle.workers.scanner import scan

    return await asyncio.to_thread(scan, source)
