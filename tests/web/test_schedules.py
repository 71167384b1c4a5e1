"""Pages about what is started by time, and by change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.web.conftest import Visit

from treadle.api.contract import option_fields
from treadle.api.options import EnqueueOptions, ScheduleOptions, WatcherOptions
from treadle.engine.operations import Operations
from treadle.model.access import OPEN


async def test_a_schedule_is_previewed_created_paused_and_run(visit: Visit):
    page = await visit.page("/schedules/new?cron=0+3+*+*+*&zone=Europe/Berlin&name=nightly")
    assert page.count("<li>") >= 5
    assert "nightly is now active." in await visit.do("/schedules", name="nightly", cron="0 3 * * *", kind="task", target="greet")
    (found,) = (await visit.engine.schedules.list()).schedules
    assert f"/schedules/{found.id}" in await visit.page("/schedules")
    base = f"/schedules/{found.id}"
    assert "nightly is now paused." in await visit.do(f"{base}/pause")
    assert "nightly is now active." in await visit.do(f"{base}/resume")
    assert "Started now." in await visit.do(f"{base}/run")
    assert len(await visit.engine.kernel.reads.list_tasks(kind="handler", name="greet")) == 1
    assert "0 4 * * *" in await visit.do(f"{base}/edit", cron="0 4 * * *", kind="task")
    assert "nightly is removed" in await visit.do(f"{base}/remove")
    assert "No schedules." in await visit.page("/schedules")


async def test_a_backfill_is_previewed(visit: Visit):
    await visit.do("/schedules", name="nightly", cron="0 3 * * *", kind="task", target="greet")
    (found,) = (await visit.engine.schedules.list()).schedules
    span = "start=2026-01-01T00:00&end=2026-01-04T00:00"
    assert "3 ticks; 0 were already started." in await visit.page(f"/schedules/{found.id}?{span}")
    assert await visit.engine.kernel.reads.list_tasks(kind="handler", name="greet") == []
    page = await visit.do(f"/schedules/{found.id}/backfill", start="2026-01-01T00:00", end="2026-01-04T00:00")
    assert "Started for 3 ticks; 0 were already started." in page
    assert len(await visit.engine.kernel.reads.list_tasks(kind="handler", name="greet")) == 3


async def test_an_invalid_cron_expression_is_reported(visit: Visit):
    assert "cron" in await visit.do("/schedules", name="bad", cron="often", kind="task", target="greet")
    answer = await visit.browser.get("/schedules/new?cron=often&name=nightly&target=greet&kind=workflow&paused=on")
    assert answer.status_code == 422
    assert re.search(r'<input name="cron"[^>]* value="often" aria-invalid="true"[^>]*><span class="field-error"', answer.text)
    for kept in ('<input name="name" required placeholder="nightly-report" value="nightly">', "<option selected>workflow</option>"):
        assert kept in answer.text


@pytest.mark.parametrize(
    ("path", "field", "typed"),
    [
        ("/schedules/new?every=soon&name=nightly", "every", "soon"),
        ("/schedules/new?start=14:03", "start", "14:03"),
        ("/schedules/{id}?start=14:03&end=2026-01-04T00:00", "start", "14:03"),
        ("/runs?since=14:03&search=acme", "since", "14:03"),
    ],
)
async def test_an_invalid_value_of_a_query_is_reported_at_its_field(visit: Visit, path: str, field: str, typed: str):
    await visit.do("/schedules", name="nightly", cron="0 3 * * *", kind="task", target="greet")
    (schedule,) = (await visit.engine.schedules.list()).schedules
    answer = await visit.browser.get(path.format(id=schedule.id))
    assert answer.status_code == 422
    tag = re.search(rf'<input[^>]*name="{field}"[^>]*aria-invalid="true"[^>]*><span class="field-error"[^>]*>[^<]*', answer.text)
    assert tag is not None, answer.text
    assert f'value="{typed}"' in tag[0]
    assert ('value="acme"' in answer.text) is ("search=acme" in path)


async def test_a_watcher_is_created_paused_resumed_and_removed(visit: Visit, tmp_path: Path):
    (tmp_path / "a.csv").write_text("1")
    page = await visit.do("/watchers", name="incoming", what="directory", place=str(tmp_path), kind="task", target="greet")
    assert "incoming is now watching." in page
    assert str(tmp_path) in await visit.page("/watchers")
    assert "count as seen" in await visit.page("/watchers/incoming")
    assert "incoming is now paused." in await visit.do("/watchers/incoming/pause")
    assert "incoming is now active." in await visit.do("/watchers/incoming/resume")
    assert "incoming will scan as soon as a worker is free." in await visit.do("/watchers/incoming/look")
    assert "incoming is removed" in await visit.do("/watchers/incoming/remove")


def inputs_in(page: str) -> set[str]:
    return set(re.findall(r'<(?:input|select|textarea)[^>]* name="(\w+)"', page))


async def test_the_forms_have_every_option(visit: Visit):
    named = {"task", "workflow", "function", "directory", "file", "url"}
    for path, options in (("/schedules/new", ScheduleOptions), ("/watchers", WatcherOptions), ("/tasks/new", EnqueueOptions)):
        assert {each.name for each in option_fields(options)} - named - inputs_in(await visit.page(path)) == set(), path


async def test_options_from_a_form_are_stored(visit: Visit):
    given = {
        "every": "3600",
        "task_list": "night",
        "priority": "-2",
        "retry": "1",
        "timeout": "5",
        "catch_up": "all",
        "overlap": "queue",
    }
    page = await visit.do(
        "/schedules", name="hourly", kind="task", target="greet", grace="60", tick_as="when", paused="on", **given
    )
    assert "hourly is now paused." in page
    (found,) = (await visit.engine.schedules.list()).schedules
    made = await Operations(visit.engine, OPEN).schedules.get(found.id)
    assert (made.target.task_list, made.target.priority, made.overlap) == ("night", -2, "queue")
    page = await visit.do("/tasks", name="greet", payload='{"a": 1}', priority="3", unique_key="k", delay="60")
    assert "greet is enqueued." in page
    (task,) = await visit.engine.kernel.reads.list_tasks(kind="handler", name="greet")
    assert (task.priority, task.unique_key) == (3, "k")


async def test_an_invalid_option_is_reported(visit: Visit):
    assert "priority must be a whole number" in await visit.do("/tasks", name="greet", priority="high")
