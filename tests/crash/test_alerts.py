"""A worker is killed around the firing of an alert: the alert is stored once, and all its messages have one idempotency key."""

from __future__ import annotations

import pytest
from tests.crash.scene import Scene, until
from tests.receivers import Receiver


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", ["alert.before_commit:1", "alert.after_commit:1", "handler.after:2"])
async def test_a_killed_worker_neither_loses_nor_doubles_an_alert(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Before the alert is stored with its message; after it; and after the message was sent but not settled."""
    with Receiver() as receiver:
        monkeypatch.setenv("TREADLE_WEBHOOK_SECRET", "of the alerts")
        monkeypatch.setenv("TREADLE_WEBHOOK_ALLOW", receiver.url)
        await scene.engine.enqueue("fax", {}, task_list="slow", delay=3600)
        await scene.engine.kernel.lists.pause("slow")
        await scene.engine.alerts.create("r", when="problem", code="list_paused", to=receiver.url, every=3600)
        await scene.died(scene.start("worker", "--crash-at", point))
        other = await scene.start_worker()

        async def delivered() -> bool:
            found = (await scene.engine.alerts.list()).alerts
            ids = [each.id for alert in found for each in alert.deliveries]
            return bool(ids) and len(await scene.engine.kernel.store.tasks.find_many(ids, ended=True)) == len(ids)

        await until(delivered, other)
        (alert,) = (await scene.engine.alerts.list()).alerts
        assert [delivery.id for delivery in alert.deliveries] == sorted(
            {headers["Idempotency-Key"] for _, headers, _ in receiver.requests}
        )
        assert len(receiver.requests) == (2 if point.startswith("handler") else 1)
