"""Each tool does what it says; what it answers fits the schema that documents it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.limits import BOUND
from tests.mcp.transports import in_request_context, refused, shop_engine, told

from treadle import Engine, ExternalPollingLoop, ExternalProductionHandle, TaskFailed
from treadle.interfaces.mcp.catalog import DEFAULT, TOOLS, TOOLSET_OF
from treadle.model.access import Scope, granted

NOBODY = "01935b8e-7c3a-7000-8000-000000000000"
SHOP = """namespace shop {
    event facet Price(count: Long) => (total: Double)
    workflow Buy(count: Long) => (total: Double) andThen {
        priced = Price(count = $.count)
        sys.log(total = priced.total)
        yield Buy(total = priced.total)
    }
}
"""


class Caller:
    """Calls tools, which answer or refuse."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, name: str, /, **given: Any) -> dict[str, Any]:
        found = told(await self.client.call_tool(name, given))
        jsonschema.validate({key: each for key, each in found.items() if key != "actions"}, TOOLS[name].output_schema)
        return found

    async def refused(self, name: str, /, **given: Any) -> dict[str, Any]:
        return refused(await self.client.call_tool(name, given))


@asynccontextmanager
async def at_work(engine: Engine, *scopes: Scope) -> AsyncIterator[Caller]:
    async with engine, in_request_context(engine, *scopes) as client:
        yield Caller(client)


# --- the language ---


async def test_diagnostics_carry_the_line_and_a_hint():
    async with at_work(shop_engine()) as call:
        bad = SHOP.replace("=> (total: Double)\n    workflow", "=> (total: Dubble)\n    workflow")
        looked = await call("afl_validate", source=bad)
        (error,) = looked["errors"]
        assert not looked["valid"]
        assert (error["line"], error["severity"], error["source"]) == (2, "error", "main.afl")
        assert error["text"] == bad.split("\n")[1]
        assert error["text"][error["column"] - 1 :].startswith("Dubble")
        assert "`Double`" in error["hint"]
        compiled = await call("afl_compile", source=bad)
        assert (compiled["success"], compiled["json"]) == (False, None)
        assert compiled["errors"] == [f"main.afl:2:{error['column']}: {error['message']}"]
        for name in ("afl_execute_workflow", "flow_graph"):
            said = await call.refused(name, source=bad)
            assert said["code"] == "invalid_flow"
            assert said["diagnostics"] == [error]
        assert (await call.refused("flow_publish", name="shop", source=bad))["diagnostics"] == [error]


async def test_warnings_are_errors_unless_the_caller_accepts_them():
    async with at_work(shop_engine()) as call:
        doubtful = 'facet F(n: Long) workflow W() => (n: Long) andThen { f = F(n = "one") yield W(n = 1) }'
        looked = await call("afl_validate", source=doubtful)
        assert (looked["valid"], [each["rule"] for each in looked["errors"]], looked["warnings"]) == (False, ["type-mismatch"], [])
        accepted = await call("afl_validate", source=doubtful, strict=False)
        assert (accepted["valid"], [each["rule"] for each in accepted["warnings"]]) == (True, ["type-mismatch"])
        assert not (await call("afl_compile", source=doubtful))["success"]
        assert (await call("afl_compile", source=doubtful, strict=False))["success"]
        assert (await call.refused("afl_execute_workflow", source=doubtful))["code"] == "invalid_flow"
        assert (await call("afl_execute_workflow", source=doubtful, strict=False))["outputs"] == {"n": 1}
        assert (await call.refused("flow_publish", name="f", source=doubtful))["code"] == "invalid_flow"
        assert (await call("flow_publish", name="f", source=doubtful, strict=False))["version"] == 1


async def test_sources_are_compiled_together_formatted_and_drawn():
    async with at_work(shop_engine()) as call:
        facet, workflow = "namespace a { event facet F() => (x: Long) }", "namespace b { use a\nworkflow W() andThen { f = F() } }"
        both = [{"name": "a.afl", "text": facet}, {"name": "b.afl", "text": workflow}]
        compiled = await call("afl_compile", sources=both)
        assert compiled["success"]
        assert compiled["json"]["type"] == "Program"
        assert (await call("afl_validate", sources=both))["workflows"] == ["b.W"]
        formatted = await call("flow_format", source=workflow)
        assert formatted["sources"][0] == {"name": "main.afl", "text": workflow.replace("\n", "\n    ") + "\n", "changed": True}
        assert not (await call("flow_format", source="workflow W("))["valid"]
        assert (await call("flow_graph", sources=both))["mermaid"].startswith("flowchart")
        for given in ({}, {"source": "", "sources": both}):
            assert (await call.refused("afl_validate", **given))["code"] == "invalid_input"


# --- flows and runs ---


async def test_flows_are_published_listed_shown_and_started():
    async with at_work(shop_engine()) as call:
        for name in ("b", "a", "c"):
            assert (await call("flow_publish", name=name, source=SHOP))["version"] == 1
        first = await call("flow_list", limit=2)
        second = await call("flow_list", limit=2, after=first["next_after"])
        assert [each["name"] for each in (*first["flows"], *second["flows"])] == ["a", "b", "c"]
        assert second["next_after"] is None
        shown = await call("flow_show", name="a")
        assert shown["sources"] == [{"name": "main.afl", "text": SHOP}]
        assert [each["name"] for each in shown["workflows"]] == ["shop.Buy"]
        assert (await call("flow_show", name="a", with_sources=False))["sources"] == []
        assert "Price" in (await call("flow_graph", name="a"))["mermaid"]
        begun = await call("run_start", flow="a", inputs={"count": 1}, idempotency_key="k", wait_for=0)
        assert (begun["status"], begun["missing_handlers"]) == ("PAUSED", ["shop.Price"])
        again = await call("run_start", flow="a", inputs={"count": 1}, idempotency_key="k", wait_for=0)
        assert again["run_id"] == begun["run_id"]
        assert "Price" in (await call("flow_graph", run_id=begun["run_id"]))["mermaid"]
        assert (await call.refused("run_start", flow="none"))["code"] == "flow_not_found"
        assert (await call.refused("run_start", flow="a", inputs={"counts": 1}))["code"] == "invalid_inputs"


async def test_a_resumed_run_names_missing_handlers_and_a_claimed_one_is_running():
    engine = shop_engine()
    async with at_work(engine) as call:
        run = await call("afl_execute_workflow", source=SHOP, inputs={"count": 1}, wait_for=0)
        waiting = await call("afl_resume_workflow", run_id=run["run_id"], wait_for=0)
        assert (waiting["success"], waiting["status"], waiting["missing_handlers"]) == (True, "PAUSED", ["shop.Price"])
        worker = (await engine.kernel.remote_workers.register("w", handlers=["shop.Price"])).id
        assert len(await engine.kernel.remote_workers.claim(worker)) == 1
        held = await call("afl_resume_workflow", run_id=run["run_id"], wait_for=0)
        assert (held["success"], held["status"], held["missing_handlers"]) == (True, "RUNNING", [])


async def test_a_step_is_continued_failed_and_retried_by_its_id():
    async with at_work(shop_engine()) as call:
        run = await call("afl_execute_workflow", source=SHOP, inputs={"count": 1}, wait_for=0)
        steps = (await call("run_steps", run_id=run["run_id"], values=True))["steps"]
        assert [(step["path"], step["state"]) for step in steps] == [("Buy", "running"), ("Buy.priced", "pending")]
        assert steps[1]["params"] == {"count": 1}
        step_id = steps[1]["id"]
        failed = await call("afl_fail_step", step_id=step_id, message="out of stock", code="stock")
        assert (failed["success"], failed["changed"], failed["path"]) == (True, True, "Buy.priced")
        ended = await call("afl_resume_workflow", run_id=run["run_id"], source="anything", inputs={})
        assert (ended["success"], ended["status"], ended["failed_step_id"]) == (False, "ERROR", step_id)
        assert "out of stock" in ended["error"]
        assert (await call("step_show", step_id=step_id))["state"] == "failed"
        assert (await call("afl_retry_step", step_id=step_id))["success"]
        wrong = await call.refused("afl_continue_step", step_id=step_id, result={"totla": 4.5})
        assert wrong["code"] == "invalid_input"
        assert "did you mean total? It returns total: Double." in wrong["error"]
        done = await call("afl_continue_step", step_id=step_id, result={"total": 4.5})
        assert (done["changed"], done["run_id"]) == (True, run["run_id"])
        assert not (await call("afl_continue_step", step_id=step_id, result={"total": 5.5}))["changed"]
        ended = await call("run_outputs", run_id=run["run_id"], wait_for=50)
        assert (ended["state"], ended["outputs"]) == ("completed", {"total": 4.5})
        preview = await call("run_fork_preview", run_id=run["run_id"], step=step_id, with_result=True)
        assert preview["calls"] == []
        assert (await call.refused("afl_continue_step", step_id=NOBODY))["code"] == "step_not_found"
        assert (await call.refused("afl_retry_step", step_id=step_id))["code"] == "illegal_transition"


async def test_a_run_is_paused_resumed_canceled_and_found():
    async with at_work(shop_engine()) as call:
        ids = [(await call("afl_execute_workflow", source=SHOP, inputs={"count": n}, wait_for=0))["run_id"] for n in range(5)]
        pages = [await call("run_list", limit=2)]
        while pages[-1]["next_before"]:
            pages.append(await call("run_list", limit=2, before=pages[-1]["next_before"]))
        assert [run["id"] for page in pages for run in page["runs"]] == ids[::-1]
        for action, state in (("pause", "paused"), ("resume", "running"), ("cancel", "canceled"), ("cancel", "canceled")):
            assert (await call("afl_manage_runner", run_id=ids[0], action=action))["state"] == state
        assert [run["id"] for run in (await call("run_list", state=["canceled"]))["runs"]] == [ids[0]]
        assert (await call.refused("afl_manage_runner", run_id=ids[0], action="resume"))["code"] == "illegal_transition"
        assert (await call.refused("afl_manage_runner", run_id=ids[0], action="stop"))["code"] == "invalid_request"
        shown = await call("run_show", run_id=ids[1])
        assert (shown["inputs"], [task["name"] for task in shown["open_tasks"]]) == ({"count": 1}, ["shop.Price"])
        assert (await call("why", id=ids[1]))["code"] == "no_worker"


async def test_lines_about_a_run_are_paged_both_ways():
    engine = shop_engine()
    async with at_work(engine) as call:
        async with engine.worker():  # what is left when it stops is written then
            run = await call("afl_execute_workflow", source=SHOP, inputs={"count": 2}, wait_for=50)
        assert run["outputs"] == {"total": 20.0}
        every = await call("run_logs", run_id=run["run_id"])
        assert 'Buy: {"total":20.0}' in [each["message"] for each in every["lines"]]
        last = await call("run_logs", run_id=run["run_id"], limit=1)
        assert last["lines"] == every["lines"][-1:]
        assert (await call("run_logs", run_id=run["run_id"], after=last["next_after"]))["lines"] == []
        if len(every["lines"]) > 1:
            before = await call("run_logs", run_id=run["run_id"], before=last["next_before"])
            assert before["lines"] == every["lines"][:-1]


async def test_signals_and_updates_reach_a_function():
    engine = shop_engine()

    @engine.function("wait")
    async def wait(payload: Any, ctx: Any) -> Any:
        ctx.publish("progress", 0.5)
        update = await ctx.update("speed")
        await update.reply(update.value * 2)
        return await ctx.wait_for("go")

    async with at_work(engine) as call, engine.worker():
        run_id = (await engine.start_function("wait", {})).id
        assert (await call("run_update", run_id=run_id, name="speed", payload=21, wait_for=50))["value"] == 42
        assert (await call("run_query", run_id=run_id, name="progress"))["value"] == 0.5
        assert (await call("run_signal", run_id=run_id, name="go", payload=7))["accepted"]
        assert (await call("run_outputs", run_id=run_id, wait_for=50))["outputs"] == {"result": 7}


# --- tasks, approvals, objectives, external jobs, handlers ---


async def test_tasks_are_enqueued_paged_shown_canceled_and_retried():
    engine = shop_engine()
    async with at_work(engine) as call:
        made = [(await call("task_enqueue", name="shop.Price", payload={"count": n}))["id"] for n in range(3)]
        page = await call("task_list", limit=2)
        rest = await call("task_list", limit=2, before=page["next_before"])
        assert [task["id"] for task in (*page["tasks"], *rest["tasks"])] == made[::-1]
        assert (await call("task_cancel", task_id=made[0], reason="no"))["state"] == "canceled"
        assert (await call("task_retry", task_id=made[0], payload={"count": 9}))["state"] == "pending"
        assert not (await call("task_result", task_id=made[0]))["finished"]
        async with engine.worker():
            assert (await call("task_result", task_id=made[0], wait_for=50))["result"] == {"total": 90.0}
            abilities = await call("worker_abilities")
        assert abilities["handlers"]["shop.Price"] == 1
        shown = await call("task_show", task_id=made[0])
        assert [transition["transition"] for transition in shown["transitions"] if transition["actor"] == "mcp:ada"] == [
            "cancel",
            "requeue",
        ]
        assert (await call.refused("task_show", task_id=NOBODY))["code"] == "task_not_found"
        assert (await call("system_status"))["health"] in ("ok", "degraded")


async def test_tasks_are_paused_and_resumed():
    async with at_work(shop_engine()) as call:
        task_id = (await call("task_enqueue", name="shop.Price", payload={"count": 1}))["id"]
        assert (await call("task_pause", task_id=task_id, reason="the bank is closed"))["state"] == "paused"
        assert "the bank is closed" in (await call("why", id=task_id))["text"]
        assert (await call("task_resume", task_id=task_id))["state"] == "pending"


async def test_failed_runs_are_counted_then_retried():
    engine = shop_engine()
    async with at_work(engine) as call:
        await engine.kernel.flows.publish("shop", [("shop.afl", SHOP)])
        run_id = (await call("run_start", flow="shop", inputs={"count": 1}))["run_id"]
        step_id = (await call("run_steps", run_id=run_id, state=["pending", "running"]))["steps"][-1]["id"]
        await call("afl_fail_step", step_id=step_id, message="no")
        assert (await call("run_show", run_id=run_id))["state"] == "failed"
        would = await call("run_bulk", action="retry")
        assert (would["dry_run"], would["matched"], would["done"]) == (True, 1, [])
        assert (await call("run_retry", run_id=run_id))["state"] == "running"
        assert (await call("run_bulk", action="cancel", dry_run=False))["done"] == [run_id]


async def test_big_values_are_shown_by_size_unless_requested():
    async with at_work(shop_engine()) as call:
        payload = {"count": 1, "text": "x" * 10_000}
        task_id = (await call("task_enqueue", name="shop.Price", payload=payload))["id"]
        shown = (await call("task_show", task_id=task_id))["payload"]
        assert shown == {"count": 1, "text": {"@size": 10_000, "@start": "x" * 400}}
        assert (await call("task_show", task_id=task_id, whole=True))["payload"] == payload


async def test_an_approval_is_shown_and_denied_as_the_caller():
    engine = shop_engine()
    async with at_work(engine) as call, engine.worker():
        task_id = (await call("task_enqueue", name="shop.Confirm", payload={"total": 3}))["id"]
        while not (asked := (await call("approval_list"))["approvals"]):
            await call("task_result", task_id=task_id, wait_for=0.05)
        approval_id = asked[0]["id"]
        assert (await call("approval_show", approval_id=approval_id))["context"] == {"total": 3}
        said = await call.refused("approval_decide", approval_id=approval_id, decision="deny", edits={"total": 1})
        assert said["code"] == "invalid_input"
        denied = await call("approval_decide", approval_id=approval_id, decision="deny", reason="too much")
        assert (denied["state"], denied["ended_by"], denied["reason"]) == ("denied", "mcp:ada", "too much")
        assert (await call("task_result", task_id=task_id, wait_for=50))["error_code"] == "approval_denied"
        assert (await call("approval_list"))["approvals"] == []
        assert len((await call("approval_list", every=True))["approvals"]) == 1


async def test_objectives_are_added_approved_blocked_and_shown():
    async with at_work(shop_engine()) as call:
        made = await call("objective_add", title="Name the person", acceptance_criteria=["it greets Ada"], urgency=4)
        assert (made["status"], made["created_by"]) == ("NEW", "mcp:ada")
        which = {"objective_id": made["objective_id"]}
        assert (await call("objective_manage", **which, action="approve"))["status"] == "TODO"
        blocked = await call("objective_manage", **which, action="block", reason="no key")
        assert (blocked["status"], blocked["blocked_by"]) == ("BLOCKED", ["no key"])
        assert (await call("objective_show", **which))["why"] == "blocked: no key"
        assert (await call("objective_manage", **which, action="unblock"))["status"] == "TODO"
        assert [each["title"] for each in (await call("objective_list", status=["TODO"]))["objectives"]] == ["Name the person"]
        assert (await call.refused("objective_list", status=["LATER"]))["code"] == "invalid_request"


async def test_external_jobs_are_listed_polled_and_canceled():
    class Farm:
        async def start(self, payload: Any) -> Any:
            return ExternalProductionHandle("farm/7", 3600, "queued", 0.25)

        async def poll(self, external_job_id: str) -> Any:
            return ExternalProductionHandle(external_job_id, 3600, "half", 0.5)

    engine = shop_engine()
    engine.specialist("render", Farm())
    async with at_work(engine) as call:
        await engine.enqueue("render")
        loop = ExternalPollingLoop(engine)
        await loop.tick()
        (job,) = (await call("external_job_list"))["jobs"]
        assert (job["name"], job["external_job_id"], job["progress"]) == ("render", "farm/7", 0.25)
        await call("external_job_manage", job_id=job["id"], action="poll")
        await loop.tick()
        shown = await call("external_job_show", job_id=job["id"])
        assert (shown["progress_hint"], len(shown["events"])) == ("half", 2)
        canceled = await call("external_job_manage", job_id=job["id"], action="cancel", reason="not wanted")
        assert canceled["state"] in ("canceled", "awaiting_external")
        assert "tasks.cancel" in [change["operation"] for change in (await call("audit_list"))["changes"]]
        assert (await call("metrics_show", by="queue"))["by"] == "queue"
        assert (await call("external_job_list"))["jobs"] == []


async def test_effects_of_unknown_outcome_are_listed() -> None:
    engine = shop_engine()

    @engine.handler("pay")
    async def pay(payload: Any, ctx: Any) -> None:
        await ctx.effect("charge", lambda: [][0])

    async with at_work(engine) as call:
        task = await engine.enqueue("pay")
        async with engine.worker():
            with pytest.raises(TaskFailed):
                await engine.result(task, timeout=BOUND)
        (effect,) = (await call("effect_list"))["effects"]
        assert (effect["action"], effect["task_id"], effect["task_state"]) == ("charge", task.id, "failed")
        assert (await call("effect_list", run_id=task.id))["effects"] == []


async def test_handlers_are_registered_listed_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "billing.py").write_text("def pay(payload):\n    return {}\n")
    monkeypatch.chdir(tmp_path)
    async with at_work(shop_engine()) as call:
        for name in ("b.Pay", "a.Pay"):
            made = await call(
                "afl_manage_handlers",
                action="register",
                facet_name=name,
                module_uri="billing",
                entrypoint="pay",
                timeout_ms=5000,
                checksum="1",
            )
            assert (made["handler"]["timeout_ms"], made["handler"]["checksum"]) == (5000, "1")
        first = await call("handler_list", limit=1)
        second = await call("handler_list", limit=1, after=first["next_after"])
        assert [each["facet_name"] for each in (*first["handlers"], *second["handlers"])] == ["a.Pay", "b.Pay"]
        assert second["next_after"] is None
        assert (await call("handler_list", facet_name="a.Pay"))["handlers"][0]["entrypoint"] == "pay"
        listed = await call("afl_manage_handlers", action="list")
        assert [handler["facet_name"] for handler in listed["handlers"]] == ["a.Pay", "b.Pay"]
        got = await call("afl_manage_handlers", action="get", facet_name="a.Pay")
        assert (got["success"], got["handler"]["module_uri"], got["handlers"]) == (True, "billing", None)
        assert (await call("afl_manage_handlers", action="delete", facet_name="a.Pay"))["success"]
        assert (await call.refused("handler_list", facet_name="a.Pay"))["code"] == "handler_not_found"
        for given, code in (
            ({"action": "register", "facet_name": "a.Pay"}, "invalid_input"),
            ({"action": "get"}, "invalid_input"),
            ({"action": "get", "facet_name": "a.Pay"}, "handler_not_found"),
        ):
            assert (await call.refused("afl_manage_handlers", **given))["code"] == code


# --- errors and scopes ---


async def test_alert_rules_are_added_listed_and_tested_and_traces_are_shown():
    engine = shop_engine()
    async with at_work(engine) as call, engine.worker():
        rule = await call("alert_add", name="lost", when="worker_lost", to="TREADLE_ALERT_NOWHERE", lasts=60)
        assert (rule["name"], rule["to"], rule["lasts_for"]) == ("lost", "TREADLE_ALERT_NOWHERE", 60_000)
        assert [each["name"] for each in (await call("alert_list"))["rules"]] == ["lost"]
        tested = await call("alert_test", name="lost")
        assert (tested["state"], "TREADLE_ALERT_NOWHERE" in tested["error"]) == ("failed", True)
        task = await engine.enqueue("nobody.Serves", {})
        shown = await call("trace_show", id=task.id)
        assert [(each["kind"], each["name"]) for each in shown["entries"]] == [("task", "nobody.Serves")]


async def test_invalid_arguments_are_a_tool_error_that_names_them():
    async with at_work(shop_engine()) as call:
        said = await call.refused("task_list", limt=3)
        assert said["code"] == "invalid_request"
        assert said["problems"] == [{"at": ["limt"], "message": "Extra inputs are not permitted"}]
        assert (await call.refused("task_show"))["problems"][0]["at"] == ["task_id"]
        assert (await call.refused("task_list", limit=101))["code"] == "invalid_input"
        assert (await call.refused("task_list", state=["sleeping"]))["code"] == "invalid_request"
        with pytest.raises(MCPError, match="no tool"):
            await call.client.call_tool("task_eat", {})


async def test_an_internal_error_is_reported_without_details(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    async with at_work(shop_engine()) as call:

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("the secret is 42")

        monkeypatch.setattr("treadle.kernel.system.System.why", broken)
        said = await call.refused("why", id=NOBODY)
        assert said["code"] == "internal_error"
        assert "42" not in str(said)
        assert "the secret is 42" in caplog.text


@pytest.mark.parametrize("scope", list(Scope))
async def test_a_scope_limits_listed_and_callable_tools(scope: Scope):
    may = granted([scope])
    engine = shop_engine()
    async with at_work(engine, scope) as call:
        new, ready = [await engine.goals.objectives.add(title, actor="ada") for title in ("new", "ready")]
        await engine.goals.objectives.approve(ready.objective_id, actor="ada")
        listed = {tool.name for tool in (await call.client.list_tools()).tools}
        assert listed == {tool.name for tool in TOOLS.values() if tool.scope in may and TOOLSET_OF[tool.name] in DEFAULT}
        tries: dict[Scope, tuple[str, dict[str, Any]]] = {
            Scope.READ: ("task_list", {}),
            Scope.ENQUEUE: ("task_enqueue", {"name": "x"}),
            Scope.PUBLISH: ("flow_publish", {"name": "shop", "source": SHOP}),
            Scope.APPROVE: ("objective_manage", {"action": "approve", "objective_id": new.objective_id}),
            Scope.OPERATE: ("objective_manage", {"action": "block", "objective_id": ready.objective_id, "reason": "x"}),
            Scope.REGISTER: ("afl_manage_handlers", {"action": "register", "facet_name": "a.B", "module_uri": "billing"}),
        }
        for needed, (name, given) in tries.items():
            result = await call.client.call_tool(name, given)
            assert result.is_error is (needed not in may), (scope, name, result)
            if result.is_error:
                lacking = needed if TOOLS[name].scope in may else TOOLS[name].scope  # it is checked first
                said = refused(result)
                assert (said["code"], said["scope"]) == ("forbidden", lacking)


async def test_a_work_only_caller_starts_runs_without_seeing_outputs():
    engine = shop_engine()
    async with at_work(engine, Scope.WORK) as call:
        await engine.kernel.flows.publish("shop", [("shop.afl", SHOP)])
        begun = await call("run_start", flow="shop", inputs={"count": 1})
        assert (begun["status"], begun["outputs"], begun["why"]) == ("RUNNING", {}, "It was started.")


async def test_the_debugging_tool_explains_a_failure_and_names_the_next_tools():
    engine = shop_engine()

    @engine.handler("pay")
    async def pay(payload: dict[str, Any]) -> None:
        raise RuntimeError("no money")

    async with at_work(engine) as call:
        run = await call("afl_execute_workflow", source=SHOP, inputs={"count": -1}, wait_for=0)
        waiting = await call("debug", id=run["run_id"])
        assert (waiting["kind"], waiting["path"], waiting["payload"]) == ("run", "Buy.priced", {"count": -1})
        assert waiting["expects"] == {"total": "Double"}
        assert any(each.startswith("afl_continue_step(step_id=") for each in waiting["next_actions"])
        task = await engine.enqueue("pay", {"amount": 1, "card": {"api_key": "k-1"}}, retry=0)
        async with engine.worker():
            assert (await call("run_outputs", run_id=run["run_id"], wait_for=50))["state"] == "failed"
            with pytest.raises(TaskFailed):
                await engine.result(task, timeout=BOUND)
        for id_ in (run["run_id"], waiting["step_id"], waiting["task_id"]):
            failed = await call("debug", id=id_)
            assert (failed["state"], failed["attempt"]) == ("failed", 1)
            assert "nothing to buy" in failed["error"]["message"]
            assert 'RuntimeError("nothing to buy")' in failed["traceback"]
            assert f"afl_retry_step(step_id={waiting['step_id']})" in failed["next_actions"]
        alone = await call("debug", id=task.id)
        assert (alone["kind"], alone["payload"]) == ("task", {"amount": 1, "card": {"api_key": "***"}})
        assert ("no money" in alone["traceback"], alone["next_actions"]) == (True, [f"task_retry(task_id={task.id})"])
        assert (await call.refused("debug", id=NOBODY))["code"] == "step_not_found"


def test_every_tool_is_called_here():
    others = {"test_catalog.py", "test_advice.py"}  # they only name tools
    files = [*Path(__file__).parent.glob("test_*.py"), Path(__file__).parents[1] / "runs" / "test_fork_results.py"]
    source = "".join(each.read_text() for each in files if each.name not in others)
    assert [name for name in TOOLS if f'"{name}"' not in source] == []
