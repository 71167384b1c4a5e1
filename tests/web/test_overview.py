"""The page that everybody sees first."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote_plus

from tests.web.conftest import Visit
from tests.web.test_dead_letters import fail
from tests.web.test_lists import main_of

from treadle.api.system import StatusProblem, Throughput, ThroughputMinute
from treadle.api.wire import Instant
from treadle.interfaces.web.filters import problem_page, severity
from treadle.interfaces.web.overview import summed

MINUTE = 60_000


def chart_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.partition('id="pace">')[2].partition("</script>")[0])
    return found


async def test_an_idle_system_is_healthy_and_explains_how_to_begin(visit: Visit):
    assert "No live workers" in await visit.page("/")
    async with visit.engine.worker():
        page = main_of(await visit.page("/"))
    assert "All is well" in page
    assert "Nothing needs attention." in page
    assert "treadle run" in page


async def test_unserved_tasks_are_reported_at_the_top(visit: Visit):
    await visit.engine.enqueue("fax", {})
    page = main_of(await visit.page("/"))
    assert "Something is wrong" in page
    assert "no live worker for 1 ready task: fax in list default" in page


def test_problems_lead_to_the_affected_work():
    problem = StatusProblem("no_worker", "no live worker", "", None, ["mail", "night"])
    assert unquote_plus(problem_page(problem) or "") == "/tasks?where=activity = ready and list in (mail, night)"
    assert severity(problem) == "bad"


async def test_an_intended_pause_is_not_a_problem(visit: Visit):
    async with visit.engine.worker():
        await visit.engine.enqueue("greet", {"name": "Ada"}, task_list="night", delay=60)
        await visit.engine.kernel.lists.pause("night", actor="ada")
        page = main_of(await visit.page("/"))
        assert "All is well" in page
        assert "list night is paused with 1 task" in page.partition('class="reasons quiet"')[2]
        await fail(visit, 1)
        page = main_of(await visit.page("/"))
    order = [page.index(text) for text in ("1 dead letter", "list night is paused")]
    assert order == sorted(order)


async def test_the_first_visit_shows_how_to_run_a_task(visit: Visit):
    assert "Run your first task" in await visit.page("/")
    await visit.engine.enqueue("greet", {"name": "Ada"})
    page = await visit.page("/")
    assert "Run your first task" not in page
    assert "Completed, 1 h" in page


async def test_charts_and_their_table_show_outcomes_of_the_whole_store(visit: Visit):
    await fail(visit, 2)
    async with visit.engine.worker():
        await visit.engine.result(await visit.engine.enqueue("greet", {"name": "Ada"}))
    page = main_of(await visit.page("/"))
    chart = chart_of(page)
    assert {name: len(column) for name, column in chart.items()} == dict.fromkeys(chart, 60)
    assert (sum(chart["completed"]), sum(chart["failed"])) == (1, 2)
    table = page.partition("The last hour by minute")[2].partition("</table>")[0]
    assert table.count("<tr>") == 61
    assert '<td class="number">2</td>' in table


async def test_dead_letters_and_blocked_objectives_need_attention(visit: Visit):
    await fail(visit, 3)
    objectives = visit.engine.goals.objectives
    objective = await objectives.add("greet must name the person", actor="ann")
    await objectives.approve(objective.objective_id, actor="ann")
    await objectives.block(objective.objective_id, actor="ann", reason="waiting for legal")
    page = main_of(await visit.page("/"))
    assert "3 dead letters of fail" in page
    assert "greet must name the person" in page
    assert "waiting for legal" in page


async def test_a_token_of_one_list_sees_its_tasks_alone(visit: Visit):
    for task_list in ("night", "day"):
        await visit.engine.enqueue(f"in.{task_list}", {}, task_list=task_list)
    for lists in (["night"], ["night", "dawn"]):
        created = await visit.engine.kernel.tokens.create("-".join(["eve", *lists]), ["read"], task_lists=lists)
        async with visit.anew() as other:
            other.browser.headers["Authorization"] = f"Bearer {created.secret}"
            page = main_of(await other.page("/"))
            assert "in.day" not in page
            assert ("in.night" in page) is (len(lists) == 1)


def test_an_incompletely_counted_minute_has_no_rate():
    minutes = [ThroughputMinute(Instant.of(each * MINUTE), 5, 1, 0, 0, 250 * each) for each in range(3)]
    assert summed(Throughput(minutes, Instant.of(0), Instant.of(3 * MINUTE))).a_minute == 6
    assert summed(Throughput(minutes, Instant.of(2 * MINUTE), Instant.of(3 * MINUTE))).a_minute is None
    assert summed(Throughput(minutes, Instant.of(0), Instant.of(3 * MINUTE))).longest_for == 500
