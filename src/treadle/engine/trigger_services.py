"""Kernel services for schedules, watchers, alerts and declarations, built on first use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from treadle.kernel.alerts.evaluate import AlertEvaluator
from treadle.kernel.alerts.service import Alerts
from treadle.kernel.declarations.records import ALERT, SCHEDULE, WATCHER
from treadle.kernel.declarations.service import Declarations
from treadle.kernel.schedules.fire import Firer
from treadle.kernel.schedules.service import Schedules
from treadle.kernel.status import StatusReads
from treadle.kernel.triggers import Starters
from treadle.kernel.watchers.decide import Scan
from treadle.kernel.watchers.scan import SourceReader, WatcherScanner
from treadle.kernel.watchers.service import Watchers
from treadle.model.watchers import WatchSource

if TYPE_CHECKING:
    from treadle.engine.kernel import Kernel
    from treadle.model.tasks import Task


class TriggerServices:
    """Schedules, watchers, alerts and declarations."""

    def __init__(self, kernel: Kernel) -> None:
        core = kernel.core
        self._kernel = kernel
        self.starters = Starters(core, kernel.queue, lambda: kernel.runs, lambda: kernel.run_services.functions)
        self.schedules = Schedules(core, self.starters)
        self.watchers = Watchers(core, self.starters)
        self.watchers.survey = _survey
        self.watchers.allowed = kernel.settings.watch_allow
        self.firer = Firer(core, self.schedules)
        self.alerts = Alerts(core, self.starters)
        self.alerts.encode_text = kernel.value_store.encode_text
        self.alerts.wait = self._wait
        self.declarations = Declarations(core, kernel.reads, {SCHEDULE: self.schedules, WATCHER: self.watchers, ALERT: self.alerts})
        self.status = StatusReads(core, self.schedules, self.watchers)
        self.alert_evaluator = AlertEvaluator(core, self.alerts, self.status.read)

    async def _wait(self, task_id: str) -> Task:
        return await self._kernel.value_store.unpack_task(await self._kernel.results.tasks.wait(task_id))

    def scanner(self, source_reader: SourceReader) -> WatcherScanner:
        """Return the service that scans for watchers with the given file and network access."""
        return WatcherScanner(self._kernel.core, self.watchers, source_reader)


async def _survey(source: WatchSource) -> Scan:
    """List the files of a source on this machine, in a thread."""
    from treadle.workers.scanner import scan

    return await asyncio.to_thread(scan, source)
