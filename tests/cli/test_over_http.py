"""The same commands of operators on a store and on a server; those that only the store's machine can do say so."""

from __future__ import annotations

import json
from typing import Any

from tests.commands import Treadle

BOTH = [
    ("lists", "list"),
    ("lists", "show", "default"),
    ("lists", "desired"),
    ("dlq", "list"),
    ("dlq", "show"),
    ("workers",),
    ("handlers", "list"),
    ("token", "list"),
    ("store", "verify"),
    ("store", "prune", "--dry-run"),
]


def test_a_preset_grants_scopes_for_ninety_days(treadle: Treadle):
    token = treadle.json("token", "create", "ada", "--preset", "approver")
    assert (token["scopes"], token["expires_at"] is not None) == (["approve"], True)
    refused = treadle("token", "create", "ada", "--json")
    assert refused.code != 0
    assert "scope" in refused.error["message"]


def test_operators_see_and_do_the_same_through_a_server(treadle: Treadle):
    secret = treadle.json("token", "create", "ada", "--scope", "admin")["secret"]
    treadle.json("enqueue", "greet", "--list", "night")
    with treadle.started("serve", "--json") as serving:
        url = json.loads(serving.first)["url"]

        def remote(*arguments: str) -> Any:
            return treadle.json(*arguments, "--server", url, TREADLE_TOKEN=secret)

        for command in BOTH:
            assert remote(*command) == treadle.json(*command), command
        assert remote("lists", "pause", "night")["lists"][0]["paused"] is True
        assert remote("store", "keep", "night", "--failed", "1d")["keep_failed_for"] == 86_400_000
        assert remote("status")["tasks"]["ready"] == 1
        made = remote("token", "create", "ci", "--scope", "read")
        assert remote("token", "revoke", "ci")["id"] == made["id"]
        letters = treadle("dlq", "discard", "--all", "--server", url, "--json", TREADLE_TOKEN=secret)
        assert (letters.code, letters.error["code"]) == (3, "nothing_matches")
        for local in (["store", "backup", "copy.db"], ["store", "migrate"], ["store", "prune", "--compact"]):
            refused = treadle(*local, "--server", url, "--json", TREADLE_TOKEN=secret)
            assert (refused.code, refused.error["code"]) == (2, "not_over_http")
        refused = treadle("handlers", "test", "x.Y", "--root", ".", "--server", url, "--json", TREADLE_TOKEN=secret)
        assert (refused.code, refused.error["code"]) == (2, "invalid_input")
        assert serving.stop().code == 0
