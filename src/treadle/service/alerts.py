"""Calls about alerts, on an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Unpack

from treadle.api.alerts import Alert, AlertDelivery, AlertPage, AlertRule, AlertRules, AlertsApi, AlertTest
from treadle.api.options import AlertOptions
from treadle.api.wire import record_of
from treadle.kernel.alerts import service as kernel
from treadle.kernel.alerts.options import shown_target
from treadle.kernel.queue.why import OPEN_SERVICE
from treadle.model.alerts import FAILED_TEST
from treadle.model.tasks import LIVE_SERVER_STATES, Task
from treadle.model.values import decode, decode_object
from treadle.service.group import Group

TEST_WITHIN = 15.0
"""Seconds that a test message gets."""


class Alerts(Group, AlertsApi):
    """See `AlertsApi`. Options that are None were not given."""

    async def list(
        self, *, firing: bool = False, rule: str | None = None, limit: int = 100, before: str | None = None
    ) -> AlertPage:
        found = await self.engine.alerts.list_alerts(firing=firing, rule=rule, limit=limit, before_id=before)
        ids = [each for alert in found for each in alert.body.deliveries]
        tasks = {task.id: task for task in await self.engine.kernel.store.tasks.find_many(ids)} if ids else {}
        return AlertPage([_alert(each, tasks) for each in found], found[-1].id if len(found) == limit else None)

    async def rules(self) -> AlertRules:
        return AlertRules([_rule(each) for each in await self.engine.alerts.list_rules()])

    async def create(self, name: str, **options: Unpack[AlertOptions]) -> AlertRule:
        given = {option: value for option, value in options.items() if value is not None}
        return _rule(await self.engine.alerts.create(name, actor=self.actor, **given))  # type: ignore[arg-type]

    async def edit(self, name: str, **options: Unpack[AlertOptions]) -> AlertRule:
        given = {option: value for option, value in options.items() if value is not None}
        return _rule(await self.engine.alerts.edit(name, actor=self.actor, **given))  # type: ignore[arg-type]

    async def remove(self, name: str) -> AlertRule:
        return _rule(await self.engine.alerts.remove(name, actor=self.actor))

    async def silence(self, name: str, lasting: float) -> AlertRule:
        return _rule(await self.engine.alerts.silence(name, lasting, actor=self.actor))

    async def test(self, name: str) -> AlertTest:
        task_id = await self.engine.alerts.test(name, actor=self.actor)
        servers = await self.engine.kernel.reads.list_servers()
        live = any(each.state in LIVE_SERVER_STATES and each.server.service_name != OPEN_SERVICE for each in servers)
        try:
            async with asyncio.timeout(TEST_WITHIN if live else 0):
                task = await self.engine.kernel.results.tasks.wait(task_id)
        except TimeoutError:
            return AlertTest(
                task_id, "pending", None, "No worker has sent it yet: start one with `treadle worker` or `treadle up`."
            )
        opened = await self.engine.kernel.value_store.open_task(task)
        response = decode(opened.result) if task.state == "completed" and opened.result else None
        if isinstance(response, dict) and FAILED_TEST in response:
            return AlertTest(task_id, "failed", None, str(response[FAILED_TEST]))
        return AlertTest(task_id, task.state, response, _error(task))


def _rule(rule: kernel.AlertRule) -> AlertRule:
    body = rule.body
    firing = sum(each.alert_id is not None for each in body.causes.values()) if rule.state != "removed" else 0
    return record_of(AlertRule, rule, body, to=shown_target(body.to), firing=firing)


def _alert(alert: kernel.Alert, tasks: Mapping[str, Task]) -> Alert:
    deliveries: Sequence[AlertDelivery] = [_delivery(each, tasks.get(each)) for each in alert.body.deliveries]
    return record_of(Alert, alert, alert.body, deliveries=deliveries)


def _delivery(task_id: str, task: Task | None) -> AlertDelivery:
    if task is None:
        return AlertDelivery(task_id, "pruned", 0, None)
    return AlertDelivery(task_id, task.shown_state, task.attempt, _error(task))


def _error(task: Task) -> str | None:
    return str(decode_object(task.error).get("message") or "") if task.error else None
