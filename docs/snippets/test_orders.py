"""A small program and its tests; run them with `pytest`."""

from datetime import timedelta

import pytest

from treadle import Engine

engine = Engine("sqlite:///shop.db")


@engine.handler("mail", retry=3)
def mail(payload):
    return {"sent_to": payload["to"]}


@engine.function("order")
async def order(payload, ctx):
    await ctx.approval(f"Ship order {payload['id']}?")
    await ctx.sleep(timedelta(days=3))
    return await ctx.call("mail", {"to": payload["customer"]})


@pytest.fixture
def treadle_app():
    return engine


def test_the_customer_gets_a_mail_three_days_after_the_approval(treadle_env):
    run = treadle_env.engine.start("order", {"id": 7, "customer": "ada"})
    treadle_env.approve(run)
    treadle_env.advance(days=2)
    treadle_env.assert_not_enqueued("mail")
    treadle_env.advance(days=1)
    treadle_env.assert_enqueued("mail", {"to": "ada"})
    assert treadle_env.result(run) == {"sent_to": "ada"}
