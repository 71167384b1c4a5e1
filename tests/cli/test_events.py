"""`treadle events` on a store and on a server."""

from __future__ import annotations

import json

import pytest
from tests.commands import Treadle


@pytest.mark.parametrize("remote", [False, True], ids=["store", "server"])
def test_events_are_shown_and_followed(treadle: Treadle, remote: bool):
    first = treadle.json("enqueue", "greet")["id"]
    with treadle.started("serve", "--json") as serving:
        where = ["--server", json.loads(serving.first)["url"]] if remote else []
        treadle("tasks", "cancel", first, *where)
        (event,) = treadle.json("events", "--entity", "task", *where)["events"]
        assert (event["entity_id"], event["transition"], event["to_state"]) == (first, "cancel", "canceled")
        assert treadle.json("events", "--after", str(event["seq"]), *where)["events"] == []
        assert first in treadle("events", *where).out
        with treadle.started("events", "--follow", "--entity", "task", "--after", "0", "--json", *where) as following:
            assert json.loads(following.first) == event
            second = treadle.json("enqueue", "greet", *where)["id"]
            treadle("tasks", "cancel", second, *where)
            assert json.loads(following.out.wait_for(second))["entity_id"] == second
            assert following.stop().code == 0
