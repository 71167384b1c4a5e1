"""Effects of unknown outcome at the command line."""

from __future__ import annotations

from tests.commands import Treadle

PAY = """
from treadle import Engine

engine = Engine()


@engine.handler("pay")
async def pay(payload, ctx):
    def charge():
        raise TimeoutError("no answer")

    await ctx.effect("charge", charge)
"""


def test_effects_of_unknown_outcome_are_listed_for_people_and_for_machines(treadle: Treadle) -> None:
    treadle("store", "migrate")
    assert "No effects of unknown outcome." in treadle("effects", "list").out
    (treadle.folder / "pay.py").write_text(PAY)
    with treadle.started("worker", "--handlers", "pay"):
        assert treadle("enqueue", "pay", "--wait").code == 1
    (effect,) = treadle.json("effects", "list")["effects"]
    assert (effect["action"], effect["attempt"], effect["task_state"]) == ("charge", 1, "failed")
    assert treadle.json("effects", "list", "--task", effect["task_id"])["effects"] == [effect]
    assert treadle.json("effects", "list", "--run", effect["task_id"])["effects"] == []
    assert "charge" in treadle("effects", "list").out
