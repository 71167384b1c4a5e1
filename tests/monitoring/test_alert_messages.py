"""Messages of alerts, sent by a real worker to a real receiver: signed webhooks, Apprise, and nothing that is secret."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.errors import raises_code
from tests.limits import BOUND
from tests.receivers import Receiver

from treadle import Engine
from treadle.engine.operations import Operations
from treadle.kernel.store.queries import TaskFilter
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput
from treadle.model.webhooks import verify
from treadle.settings import Settings

SECRET = "of the alerts"


def make(url: str = "memory://", **settings: Any) -> Engine:
    return Engine(url, settings=Settings(**{"webhook_secret": SECRET} | settings))


def service(engine: Engine) -> Operations:
    return Operations(engine, Access("ann", frozenset(Scope)))


async def fail_one(engine: Engine) -> str:
    @engine.function("import")
    async def broken(payload: dict[str, Any], ctx: Any) -> None:
        raise ValueError("The file is empty.")

    return (await engine.start_function("import")).id


async def problems(engine: Engine) -> list[str]:
    return [each.code for each in (await service(engine).system.status()).problems]


async def sent(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    return await asyncio.to_thread(receiver.wait_for, count, BOUND)


async def test_a_firing_alert_is_a_signed_webhook_with_an_idempotency_key() -> None:
    with Receiver() as receiver:
        receiver.answers = [500]
        engine = make(webhook_allow=(receiver.url,))
        async with engine, engine.worker():
            await fail_one(engine)
            await engine.alerts.create("imports", when="run_failed", to=f"{receiver.url}/hook?token=abc", every=1)
            first, second = await sent(receiver, 2)  # the first one was refused
            assert first == second
            _, headers, body = receiver.requests[-1]
            assert headers["Treadle-Event"] == "alert.firing"
            assert headers["Idempotency-Key"] == receiver.requests[0][1]["Idempotency-Key"] == second["id"]
            assert verify(SECRET, headers["Treadle-Signature"], body, engine.kernel.clock.now() / 1000)
            assert not verify("another", headers["Treadle-Signature"], body, engine.kernel.clock.now() / 1000)
            assert (second["event"], second["rule"], second["when"], second["count"]) == (
                "alert.firing",
                "imports",
                "run_failed",
                1,
            )
            assert "1 run of import failed" in second["alerts"][0]["text"]
            async with asyncio.timeout(BOUND):
                while (page := await service(engine).alerts.list()).alerts[0].deliveries[0].state != "completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert page.alerts[0].deliveries[0].id == second["id"]


async def test_a_test_message_returns_the_response() -> None:
    with Receiver() as receiver:
        receiver.answers = [200, 418]
        engine = make(webhook_allow=(receiver.url,))
        async with engine, engine.worker():
            await engine.alerts.create("r", when="worker_lost", to=f"{receiver.url}/s3cret")
            done = await service(engine).alerts.test("r")
            assert (done.state, done.response, done.error) == (
                "completed",
                {"to": receiver.url, "status": 200, "response": ""},
                None,
            )
            assert json.loads(receiver.requests[0][2])["event"] == "alert.test"
            refused = await service(engine).alerts.test("r")
            assert (refused.state, refused.response) == ("failed", None)
            assert "418" in (refused.error or "")
            assert "s3cret" not in (refused.error or "")
            assert len(receiver.requests) == 2  # a test is not repeated
            assert await engine.kernel.store.tasks.list_matching(TaskFilter(states=("failed",)), 10) == []  # nor a dead letter


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"webhook_allow": ()}, "private network"), ({"webhook_secret": ""}, "TREADLE_WEBHOOK_SECRET is not set")],
)
async def test_a_message_is_not_sent_to_a_private_network_or_unsigned(settings: dict[str, Any], message: str) -> None:
    with Receiver() as receiver:
        engine = make(**{"webhook_allow": (receiver.url,)} | settings)
        async with engine, engine.worker():
            await engine.alerts.create("r", when="worker_lost", to=f"{receiver.url}/s3cret")
            done = await service(engine).alerts.test("r")
            assert (done.state, message in (done.error or ""), "s3cret" in (done.error or "")) == ("failed", True, False)
            assert "notifications_failing" not in await problems(engine), "the caller of the test knows it"
            await fail_one(engine)
            await engine.alerts.create("imports", when="run_failed", to=receiver.url, every=1)
            async with asyncio.timeout(BOUND):
                while "notifications_failing" not in await problems(engine):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert receiver.requests == []


async def test_redirects_are_not_followed() -> None:
    with Receiver() as receiver:
        receiver.answers = [302]
        engine = make(webhook_allow=(receiver.url,))
        async with engine, engine.worker():
            await engine.alerts.create("r", when="worker_lost", to=receiver.url)
            assert (await service(engine).alerts.test("r")).state == "failed"
        assert len(receiver.requests) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that Apprise imports
async def test_chat_goes_through_apprise_without_leaking_the_target(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("apprise")
    caplog.set_level(logging.DEBUG)
    with Receiver() as receiver:
        receiver.answers = [200, 500]
        target = f"{receiver.url.replace('http', 'json')}/s3cret?+X-Key=pa55word"
        monkeypatch.setenv("TREADLE_ALERT_CHAT", target)
        engine = make()
        async with engine, engine.worker():
            await engine.alerts.create("r", when="worker_lost", to="TREADLE_ALERT_CHAT")
            done = await service(engine).alerts.test("r")
            assert (done.state, done.response, done.error) == ("completed", {"to": "json", "sent": True}, None)
            refused = await service(engine).alerts.test("r")
            rules = await service(engine).alerts.rules()
        path, headers, body = receiver.requests[0]
        assert (path, headers["X-Key"]) == ("/s3cret", "pa55word")
        assert "test of the alert rule r" in json.loads(body)["title"]
        assert refused.state == "failed"
        for shown in (str(refused), str(rules), str(done), caplog.text):
            assert "s3cret" not in shown
            assert "pa55word" not in shown


@pytest.mark.parametrize(("value", "message"), [(None, "no variable TREADLE_ALERT_CHAT"), ("http://user:s3cret@x", "not a valid")])
async def test_a_variable_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None, message: str) -> None:
    if value is not None:
        monkeypatch.setenv("TREADLE_ALERT_CHAT", value)
    engine = make()
    async with engine, engine.worker():
        await engine.alerts.create("r", when="worker_lost", to="TREADLE_ALERT_CHAT")
        done = await service(engine).alerts.test("r")
    assert (done.state, message in (done.error or ""), "s3cret" in (done.error or "")) == ("failed", True, False)


async def test_an_edited_rule_keeps_its_condition_silence_and_omitted_options() -> None:
    async with make() as engine:
        await engine.alerts.create(
            "old", when="queue_age", to="https://a.example.org/x", task_list="slow", age=60, repeat=90, every=5
        )
        silenced = await engine.alerts.silence("old", 3600)
        done = await engine.alerts.edit("old", age=120, to="https://b.example.org/y", actor="ann")
        _, rule = await engine.alerts.find_target("old")
        assert (rule.age_for, rule.to, rule.task_list) == (120_000, "https://b.example.org/y", "slow")
        assert (done.repeat_for, done.every_for, done.silenced_until) == (90_000, 5000, silenced.silenced_until)
        for wrong, message in (
            ({"when": "worker_lost"}, "remove the rule and add another"),
            ({"workflow": "x"}, "not of queue_age"),
            ({"every": 0.1}, "one second"),
            ({}, "at least one option"),
        ):
            with pytest.raises(InvalidInput, match=message):
                await engine.alerts.edit("old", **wrong)  # type: ignore[arg-type]
        assert await engine.alerts.get("old") == done
        with raises_code("alert_rule_not_found"):
            await engine.alerts.edit("none", age=1)
