"""The tools of operators: lists and limits, schedules, watchers, functions, dead letters, events, repairs; and toolsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.limits import BOUND
from tests.mcp.test_tools import SHOP, at_work
from tests.mcp.transports import over_stdio, shop_engine

from treadle import Engine, TaskFailed
from treadle.interfaces.mcp.catalog import DEFAULT, TOOLS, TOOLSET_OF, parse_toolsets
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput


async def test_lists_are_shown_paused_drained_and_limited():
    async with at_work(shop_engine()) as call:
        await call("task_enqueue", name="shop.Price", payload={"count": 1}, task_list="night")
        assert (await call("list_manage", task_list="night", action="pause"))["paused"]
        assert not (await call("list_manage", task_list="night", action="drain"))["accepting"]
        assert (await call.refused("task_enqueue", name="shop.Price", task_list="night"))["actions"] == [
            {"tool": "list_manage", "arguments": {"action": "resume", "task_list": "night"}}
        ]
        resumed = await call("list_manage", task_list="night", action="resume")
        assert (resumed["paused"], resumed["accepting"]) == (False, True)
        assert (await call("list_policy", task_list="night", no_handler="ignore"))["no_handler"] == "ignore"
        assert (await call("list_desired", task_list="night"))["ready"] == 1
        await call("limit_set", handler="shop.Price", task_list="night", rate=2, backlog=1, max_running=3)
        (queue,) = (await call("list_show", task_list="night"))["lists"][0]["queues"]
        assert (queue["rate"], queue["backlog_limit"]) == (2, 1)
        assert (await call.refused("task_enqueue", name="shop.Price", task_list="night"))["code"] == "backlog_full"
        limits = (await call("limit_set", key="customer:42", max_running=1, rate=5))["limits"]
        assert {each["key"]: each["max_running"] for each in limits} == {"customer:42": 1, "handler:shop.Price": 3}
        await call("limit_set", handler="shop.Price", task_list="night", remove=["rate", "backlog", "max"])
        assert [each["key"] for each in (await call("list_show"))["limits"]] == ["customer:42"]
        for wrong in ({}, {"handler": "x"}, {"handler": "x", "key": "y", "rate": 1}, {"key": "y", "backlog": 1}):
            assert (await call.refused("limit_set", **wrong))["code"] == "invalid_input", wrong


async def test_schedules_are_created_previewed_edited_paused_run_and_deleted():
    async with at_work(shop_engine()) as call:
        made = await call("schedule_create", name="nightly", cron="0 3 * * *", task="shop.Price", inputs={"count": 1})
        assert (made["state"], made["target"]) == ("active", "task shop.Price")
        assert len((await call("schedule_preview", name="nightly", count=3))["ticks"]) == 3
        await call("schedule_edit", name="nightly", cron="0 4 * * *")
        assert (await call("schedule_show", name="nightly"))["when"]["cron"] == "0 4 * * *"
        assert (await call("schedule_manage", name="nightly", action="pause"))["state"] == "paused"
        reason = await call("why", id="nightly")
        assert reason["actions"] == [{"tool": "schedule_manage", "arguments": {"action": "resume", "name": "nightly"}}]
        assert (await call("schedule_manage", name="nightly", action="resume"))["state"] == "active"
        started = await call("schedule_run", name="nightly")
        assert (await call("task_show", task_id=started["id"]))["name"] == "shop.Price"
        past = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"}
        assert len((await call("schedule_backfill", name="nightly", **past))["ticks"]) == 2
        assert [each["name"] for each in (await call("schedule_list"))["schedules"]] == ["nightly"]
        assert (await call("schedule_delete", name="nightly"))["state"] == "removed"
        assert (await call("schedule_list"))["schedules"] == []


async def test_watchers_are_created_edited_paused_scanned_and_deleted(tmp_path: Path):
    async with at_work(shop_engine()) as call:
        made = await call("watcher_create", name="in", directory=str(tmp_path), task="shop.Price")
        assert (made["state"], made["source"]) == ("active", f"directory {tmp_path}")
        await call("watcher_edit", name="in", every=60)
        assert (await call("watcher_show", name="in"))["every_for"] == 60_000
        for action, state in (("pause", "paused"), ("resume", "active"), ("look", "active")):
            assert (await call("watcher_manage", name="in", action=action))["state"] == state
        assert (await call("watcher_seen", name="in"))["seen"] == []
        assert [each["name"] for each in (await call("watcher_list"))["watchers"]] == ["in"]
        assert (await call("watcher_delete", name="in"))["state"] == "removed"


def functions_engine() -> Engine:
    engine = Engine("memory://")
    for version in (1, 2):

        @engine.function("order", version=version)
        async def order(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
            return {"by": await ctx.wait_for("approved")}

    return engine


async def test_functions_are_listed_started_signaled_and_adopted():
    engine = functions_engine()
    async with at_work(engine) as call, engine.worker():
        run_id = (await call("function_start", name="order", payload={"id": 1}, version=1))["run_id"]
        assert (await call("function_adopt", run_id=run_id, version=2))["servers"] == 1
        listed = (await call("function_list"))["functions"]
        assert [(each["version"], each["runs"]) for each in listed if each["name"] == "order"] == [(1, 0), (2, 1)]
        await call("run_signal", run_id=run_id, name="approved", payload="ada")
        assert (await call("run_outputs", run_id=run_id, wait_for=50))["outputs"] == {"result": {"by": "ada"}}
        again = await call("run_rerun", run_id=run_id, inputs={"id": 2})
        assert again["run_id"] != run_id
        await call("run_signal", run_id=again["run_id"], name="approved", payload="bob")
        await call("run_outputs", run_id=again["run_id"], wait_for=50)


async def test_dead_letters_are_grouped_retried_and_discarded_in_bulk():
    engine = shop_engine()
    async with at_work(engine) as call:
        tasks = [await engine.enqueue("shop.Price", {"count": -1}, retry=0) for _ in range(3)]
        async with engine.worker():
            for task in tasks:
                with pytest.raises(TaskFailed):
                    await engine.result(task, timeout=BOUND)
        (group,) = (await call("dead_letter_groups"))["groups"]
        assert (group["count"], group["name"]) == (3, "shop.Price")
        assert len((await call("dead_letter_list", fingerprint=group["fingerprint"]))["letters"]) == 3
        preview = await call("dead_letter_discard", fingerprint=group["fingerprint"])
        assert (preview["matched"], preview["dry_run"]) == (3, True)
        assert (await call("dead_letter_discard", ids=[tasks[0].id], dry_run=False))["done"] == 1
        assert (await call("dead_letter_retry", name="shop.Price", payload={"count": 1}))["done"] == 2
        async with engine.worker():
            assert (await call("task_result", task_id=tasks[1].id, wait_for=50))["result"] == {"total": 10.0}
        assert (await call("dead_letter_list"))["letters"] == []


async def test_runs_are_forked_and_the_store_is_maintained():
    engine = shop_engine()
    async with at_work(engine) as call, engine.worker():
        run = await call("afl_execute_workflow", source=SHOP, inputs={"count": 2}, wait_for=50)
        forked = await call("run_fork", run_id=run["run_id"], step="Buy.priced", inputs={"count": 3})
        assert (await call("run_outputs", run_id=forked["run_id"], wait_for=50))["outputs"] == {"total": 30.0}
        transitions = (await call("event_list", run_id=run["run_id"], entity="run"))["events"]
        assert [each["transition"] for each in transitions] == ["start", "succeed"]
        assert (await call("store_verify"))["problems"] == []
        assert (await call("store_keep", task_list="night", completed=60))["task_list"] == "night"
        assert (await call("store_prune"))["trees"] == 0
        assert (await call("external_job_rebuild"))["changed"] == 0


async def test_alerts_are_silenced_and_removed():
    async with at_work(shop_engine()) as call:
        await call("alert_add", name="lost", when="worker_lost", to="https://ops.example.org/hook")
        assert (await call("alert_show", name="lost"))["when"] == "worker_lost"
        assert (await call("alert_silence", name="lost", lasting=60))["name"] == "lost"
        assert (await call("alert_remove", name="lost"))["name"] == "lost"


async def test_an_objective_is_edited():
    async with at_work(shop_engine()) as call:
        made = await call("objective_add", title="greet")
        edited = await call("objective_edit", objective_id=made["objective_id"], title="greet them", urgency=4)
        assert (edited["title"], edited["urgency"]) == ("greet them", 4)


async def test_other_toolsets_are_found_and_called():
    async with at_work(shop_engine()) as call:
        others = {each["name"] for each in (await call("tool_find"))["tools"]}
        assert others == {name for name in TOOLS if TOOLSET_OF[name] not in DEFAULT}
        (found,) = (await call("tool_find", name="schedule_create"))["tools"]
        assert "cron" in found["input_schema"]["properties"]
        given = {"name": "nightly", "cron": "0 3 * * *", "task": "shop.Price"}
        made = await call("tool_call", name="schedule_create", arguments=given)
        assert made["result"]["name"] == "nightly"
        await call("schedule_manage", name="nightly", action="pause")
        status = await call("tool_call", name="system_status")
        assert status["result"]["problems"][0]["actions"][0]["tool"] == "schedule_manage", "advice inside is rewritten, too"
        wrong = await call.refused("tool_call", name="schedule_create", arguments={})
        assert (wrong["code"], "schedule_create" in wrong["error"]) == ("invalid_request", True)
        assert (await call.refused("tool_call", name="nothing"))["code"] == "tool_not_found"
    async with at_work(shop_engine(), Scope.READ) as call:
        assert "schedule_create" not in {each["name"] for each in (await call("tool_find", toolset="schedules"))["tools"]}
        assert (await call.refused("tool_call", name="schedule_create", arguments=given))["code"] == "forbidden"


def test_toolsets_are_parsed():
    assert parse_toolsets("core, flows") == {"core", "flows"}
    assert parse_toolsets("all") == set(TOOLSET_OF.values())
    with pytest.raises(InvalidInput, match="no toolset 'cores'"):
        parse_toolsets("cores")


async def test_the_command_lists_the_chosen_toolsets(tmp_path: Path):
    async with over_stdio(tmp_path, "--store", "memory://", "--toolsets", "core,schedules") as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert listed == {name for name in TOOLS if TOOLSET_OF[name] in ("core", "schedules")}
        refused = await client.call_tool("worker_start", {"task_list": "gpu"})
        assert refused.structured_content["code"] == "refused", "this process has no handlers"
