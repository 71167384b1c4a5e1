"""Approvals, schedules, watchers, external jobs and objectives with `--server`: the same commands, under the token's name."""

from __future__ import annotations

import json
import time

from tests.commands import Treadle
from tests.limits import BOUND

HANDS = """
from treadle import ApprovalRequest, AwaitingApproval, Engine, ExternalProductionHandle

engine = Engine()


@engine.handler("refund")
async def refund(payload, ctx):
    if ctx.approval_decision is None:
        return AwaitingApproval(ApprovalRequest.of("Refund it?", context=payload, deciders=["ada", "leads"], edits=True))
    return {"by": ctx.approval_decision["by"], "amount": ctx.approval_decision["context"]["amount"]}


class Farm:
    async def start(self, payload):
        return ExternalProductionHandle("farm/7", 3600, "queued")

    async def poll(self, external_job_id):
        return {"url": "a.png"}


engine.specialist("render", Farm())
"""


def until(treadle: Treadle, *arguments: str) -> list[dict[str, object]]:
    """The output of the list command, once it is not empty."""
    end = time.perf_counter() + BOUND
    while time.perf_counter() < end:
        (found,) = [value for value in treadle.json(*arguments).values() if isinstance(value, list)]
        if found:
            return found
    raise AssertionError(f"nothing came: {arguments}")


def test_decisions_and_external_jobs_are_made_under_the_name_of_the_token(treadle: Treadle):
    (treadle.folder / "hands.py").write_text(HANDS)
    ada = treadle.json("token", "create", "ada", "--scope", "operate", "--scope", "approve")["secret"]
    eve = treadle.json("token", "create", "eve", "--scope", "operate", "--scope", "approve")["secret"]
    with treadle.started("up", "--handlers", "hands", "--json") as up:
        treadle.environment |= {"TREADLE_SERVER": json.loads(up.first)["url"], "TREADLE_TOKEN": ada}
        made = treadle.json("enqueue", "refund", "-p", "amount=5")["id"]
        (approval,) = until(treadle, "approvals", "list")
        for claim in (("--as", "ada"), ("--group", "leads")):
            claimed = treadle("approvals", "approve", str(approval["id"]), *claim, "--json", TREADLE_TOKEN=eve)
            assert (claimed.code, claimed.error["code"]) == (2, "invalid_input")
        refused = treadle("approvals", "approve", str(approval["id"]), "--json", TREADLE_TOKEN=eve)
        assert (refused.code, refused.error["code"]) == (5, "may_not_decide")
        done = treadle.json("approvals", "approve", str(approval["id"]), "--edit", '{"amount": 3}')
        assert (done["state"], done["ended_by"]) == ("approved", "ada")
        assert "approved" in treadle("approvals", "show", str(approval["id"])).out
        assert treadle.json("tasks", "show", made)["payload"] == {"amount": 5}

        treadle.json("enqueue", "render")
        (job,) = until(treadle, "external", "list")
        assert "queued" in treadle("external", "show", str(job["id"])).out
        assert treadle.json("external", "cancel", str(job["id"]))["state"] == "canceled"
        rebuild = treadle("external", "rebuild", "--json")
        assert (rebuild.code, rebuild.error["code"]) == (5, "forbidden")


def test_schedules_watchers_and_objectives_are_operated_through_a_server(treadle: Treadle):
    ada = treadle.json("token", "create", "ada", "--scope", "operate", "--scope", "approve")["secret"]
    with treadle.started("serve", "--json", TREADLE_WATCH_ALLOW="/srv/in") as serving:
        treadle.environment |= {"TREADLE_SERVER": json.loads(serving.first)["url"], "TREADLE_TOKEN": ada}
        would = treadle.json("schedules", "add", "nightly", "--cron", "0 3 * * *", "--task", "greet", "--dry-run")
        assert (would["dry_run"], len(would["ticks"])) == (True, 10)
        made = treadle.json("schedules", "add", "nightly", "--cron", "0 3 * * *", "--task", "greet")
        assert treadle.json("schedules", "show", "nightly") == made
        assert "0 3 * * * (UTC)" in treadle("schedules", "list").out
        filled = treadle("schedules", "backfill", "nightly", "--from", "2026-01-01", "--to", "2026-03-01")
        assert "Started 60 of 60 tick(s); 0 were already started." in filled.out
        assert "started 50 of 60" in filled.err
        assert treadle.json("schedules", "remove", "nightly")["state"] == "removed"

        watcher = treadle.json("watchers", "add", "in", "--directory", "/srv/in/today", "--task", "greet")
        assert (watcher["source"]["place"], treadle.json("watchers", "show", "in")) == ("/srv/in/today", watcher)
        forbidden = treadle("watchers", "add", "etc", "--directory", "/etc", "--task", "greet", "--json")
        assert (forbidden.code, forbidden.error["code"]) == (5, "watch_forbidden")
        tried = treadle("watchers", "add", "x", "--directory", "/srv/in", "--task", "greet", "--dry-run", "--json")
        assert (tried.code, tried.error["code"]) == (2, "not_over_http")

        objective = treadle.json("objectives", "add", "Do it", "--key", "only")
        assert treadle.json("objectives", "approve", objective["objective_id"])["approved_by"] == "ada"
        assert "TODO 1" in treadle("objectives", "board").out
        assert "Do it" in treadle("objectives", "show", objective["objective_id"]).out
        claimed = treadle("objectives", "unblock", objective["objective_id"], "--as", "eve", "--json")
        assert (claimed.code, claimed.error["code"]) == (2, "invalid_input")
    assert treadle.json("store", "verify", "--store", treadle.store)["holds"]
