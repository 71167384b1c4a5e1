"""External jobs at the command line, for people and for machines."""

from __future__ import annotations

import time

import pytest
from tests.commands import Treadle
from tests.limits import BOUND

FARM = """
from treadle import Engine, ExternalProductionHandle

engine = Engine()


class Farm:
    async def start(self, payload):
        return ExternalProductionHandle("farm/[bold]7[/bold]", 3600, "queued", 0.25)

    async def poll(self, external_job_id):
        return {"url": "a.png"}


engine.specialist("render", Farm())
"""


@pytest.fixture
def farming(treadle: Treadle) -> Treadle:
    (treadle.folder / "farm.py").write_text(FARM)
    return treadle


def dispatch(treadle: Treadle) -> dict[str, object]:
    """A job that is at its service; no worker runs any more."""
    with treadle.started("worker", "--handlers", "farm") as worker:
        treadle.json("enqueue", "render")
        deadline = time.monotonic() + BOUND  # noqa: TID251
        while not (found := treadle.json("external", "list")["jobs"]):
            assert time.monotonic() < deadline  # noqa: TID251
        worker.stop()
    (job,) = found
    return dict(job)


def test_jobs_are_listed_shown_and_named_by_why(farming: Treadle) -> None:
    job = dispatch(farming)
    assert (job["state"], job["external_job_id"], job["progress"]) == ("awaiting_external", "farm/[bold]7[/bold]", 0.25)
    shown = farming.json("external", "show", str(job["id"]))
    assert [event["kind"] for event in shown["events"]] == ["external_production_dispatched"]
    assert farming.json("external", "show", str(job["render_job_id"]))["id"] == job["id"]
    assert "25% queued" in farming("external", "list").out
    people = farming("external", "show", str(job["id"])).out
    assert all(word in people for word in ("farm/[bold]7[/bold]", "render", "awaiting_external", "next poll", "queued"))
    said = farming.json("why", str(job["render_job_id"]))
    assert said["code"] == "no_worker"  # the worker has stopped
    assert "queued" in said["text"]


def test_poll_now_makes_a_worker_poll_immediately(farming: Treadle) -> None:
    job = dispatch(farming)
    farming.json("external", "poll-now", str(job["id"]))
    with farming.started("worker", "--handlers", "farm") as worker:
        deadline = time.monotonic() + BOUND  # noqa: TID251
        while farming.json("external", "list")["jobs"]:
            assert time.monotonic() < deadline  # noqa: TID251
        worker.stop()
    (ended,) = farming.json("external", "list", "--all")["jobs"]
    assert (ended["state"], ended["render_event_object_id"] is not None) == ("completed", True)
    refused = farming("external", "poll-now", str(job["id"]), "--json")
    assert refused.code == 5
    assert "external_already_resolved" in refused.out + refused.err


def test_a_job_is_canceled_once_and_records_are_rebuilt(farming: Treadle) -> None:
    job = dispatch(farming)
    done = farming.json("external", "cancel", str(job["id"]), "--reason", "enough")
    assert (done["state"], done["error_code"]) == ("canceled", "canceled")
    assert farming.json("external", "rebuild") == {"records": 1, "changed": 0}
    assert farming.json("store", "verify")["problems"] == []
    assert "No external jobs" in farming("external", "list").out
    assert farming("external", "cancel", str(job["id"])).code == 5
    assert farming("external", "show", "00000000-0000-7000-8000-000000000000").code == 3
