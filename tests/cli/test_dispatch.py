"""The commands of dispatch jobs, on a store and on a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import Treadle

ISSUE = Path(__file__).parents[2] / "examples/dispatch/issue.json"


def test_jobs_are_enqueued_shown_and_canceled(treadle: Treadle):
    job = treadle.json("dispatch", "enqueue", f"@{ISSUE}", "--metadata", '{"by": "ada"}')
    assert (job["status"], job["issue"]["number"], job["metadata"]) == ("pending", 17, {"by": "ada"})
    assert "weavers/loom#17" in treadle("dispatch", "list", "--state", "pending").out
    assert "The shuttle gets stuck" in treadle("dispatch", "show", job["id"]).out
    assert "No lines." in treadle("dispatch", "logs", job["id"]).out
    assert treadle.json("dispatch", "cancel", job["id"], "--reason", "solved")["status"] == "canceled"
    assert treadle.json("dispatch", "retry", job["id"])["status"] == "pending"


def test_jobs_are_operated_through_a_server(treadle: Treadle):
    with treadle.started("up", "--open", "--json") as running:
        url = json.loads(running.first)["url"]
        job = treadle.json("dispatch", "enqueue", f"@{ISSUE}", "--delay", "1h", "--server", url)
        assert treadle.json("dispatch", "show", job["id"], "--server", url) == job
        assert treadle.json("dispatch", "logs", job["id"], "--server", url) == {"lines": []}
    assert treadle.json("dispatch", "show", job["id"]) == job


@pytest.mark.parametrize("wrong", ['{"id": 1}', "[]", "{", '{"id": "x"}'])
def test_an_invalid_issue_is_refused(treadle: Treadle, wrong: str):
    ended = treadle("dispatch", "enqueue", wrong, "--json")
    assert ended.code == 2
    assert ended.error["code"] == "invalid_payload"
    assert not (treadle.folder / "treadle.db").exists()
