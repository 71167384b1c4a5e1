"""`treadle lists`: lists are shown, paused, drained and limited, for people and for machines; bad input changes nothing."""

from __future__ import annotations

from tests.commands import Treadle


def lists_of(treadle: Treadle) -> dict[str, dict[str, object]]:
    return {each["task_list"]: each for each in treadle.json("lists", "list")["lists"]}


def test_lists_are_shown_paused_resumed_and_drained(treadle: Treadle):
    treadle.json("enqueue", "greet")
    treadle.json("enqueue", "greet", "--list", "night")
    assert set(lists_of(treadle)) == {"default", "night"}
    (queue,) = treadle.json("lists", "show", "night")["lists"][0]["queues"]
    assert (queue["name"], queue["ready"], queue["rate"], queue["limit_key"]) == ("greet", 1, None, None)
    said = treadle("lists", "pause", "night")
    assert (said.code, "paused" in said.out) == (0, True)
    assert lists_of(treadle)["night"]["paused"] is True
    assert lists_of(treadle)["default"]["paused"] is False
    assert "draining" in treadle("lists", "drain", "night").out
    refused = treadle("enqueue", "greet", "--list", "night", "--json")
    assert (refused.code, refused.error["code"]) == (5, "list_draining")
    (night,) = treadle.json("lists", "resume", "night")["lists"]
    assert (night["paused"], night["accepting"]) == (False, True)
    assert treadle("enqueue", "greet", "--list", "night").code == 0


def test_names_without_a_handler_wait_or_are_ignored(treadle: Treadle):
    treadle.json("enqueue", "nobodys")
    (said,) = treadle.json("lists", "policy", "default", "ignore")["lists"]
    assert said["no_handler"] == "ignore"
    refused = treadle("lists", "policy", "default", "explode", "--json")
    assert (refused.code, refused.error["code"]) == (2, "invalid_policy")
    assert lists_of(treadle)["default"]["no_handler"] == "ignore"


def test_limits_are_set_and_removed(treadle: Treadle):
    treadle.json("enqueue", "greet", "--limit-key", "customer:42", "--limit", "1")
    waiting = treadle.json("enqueue", "greet", "--limit-key", "customer:42")["id"]
    assert treadle.json("why", waiting)["code"] == "over_limit"
    limits = treadle.json("lists", "limit", "--key", "customer:42", "--max", "5")["limits"]
    use = {"admitted": 2, "waiting": 0, "next_start_at": None, "handlers": [], "program": None}
    assert limits == [{"key": "customer:42", "max_running": 5, "by_operator": True, "rate": None, "burst": None} | use]
    (limit,) = treadle.json("lists", "limit", "--key", "customer:42", "--rate", "90/min", "--burst", "3")["limits"]
    assert (limit["max_running"], limit["rate"], limit["burst"]) == (5, 1.5, 3)
    assert "1.5 per second, bursts of 3" in " ".join(treadle("lists", "list").out.split())
    (limit,) = treadle.json("lists", "limit", "--key", "customer:42", "--none", "rate")["limits"]
    assert (limit["max_running"], limit["rate"]) == (5, None)
    shown = treadle.json("lists", "limit", "--handler", "greet", "--max", "3", "--rate", "2.5", "--burst", "4", "--backlog", "2")
    (queue,) = shown["lists"][0]["queues"]
    assert (queue["limit_key"], queue["rate"], queue["burst"], queue["backlog_limit"]) == ("handler:greet", 2.5, 4, 2)
    people = treadle("lists", "list").out
    assert all(word in people for word in ("2.5 per second, bursts of 4", "at most 2 ready", "customer:42", "operator"))
    full = treadle("enqueue", "greet", "--json")
    assert (full.code, full.error["code"]) == (5, "backlog_full")
    shown = treadle.json("lists", "limit", "--handler", "greet", "--none", "max", "--none", "rate", "--none", "backlog")
    (queue,) = shown["lists"][0]["queues"]
    assert (queue["limit_key"], queue["rate"], queue["burst"], queue["backlog_limit"]) == (None, None, None, None)
    assert treadle.json("lists", "limit", "--key", "customer:42", "--none", "max")["limits"] == []


BAD = [
    (("pause", "nosuch"), "list_not_found"),
    (("drain", "nosuch"), "list_not_found"),
    (("show", "nosuch"), "list_not_found"),
    (("limit", "--handler", "greet", "--max", "3", "--backlog", "3", "--list", "nosuch"), "list_not_found"),
    (("limit", "--handler", "greet", "--max", "0"), "invalid_policy"),
    (("limit", "--key", "k", "--max", "-1"), "invalid_policy"),
    (("limit", "--handler", "greet", "--max", "3", "--rate", "0"), "invalid_policy"),
    (("limit", "--handler", "greet", "--max", "3", "--rate", "1", "--burst", "0"), "invalid_policy"),
    (("limit", "--handler", "greet", "--max", "3", "--burst", "2"), "invalid_policy"),
    (("limit", "--handler", "greet", "--max", "3", "--backlog", "0"), "invalid_policy"),
    (("limit", "--handler", "not good", "--max", "3"), "invalid_name"),
    (("limit", "--handler", "greet"), "invalid_input"),
    (("limit", "--max", "3"), "invalid_input"),
    (("limit", "--key", "k", "--handler", "greet", "--max", "3"), "invalid_input"),
    (("limit", "--key", "k", "--backlog", "3"), "invalid_input"),
    (("limit", "--key", "k", "--rate", "fast"), "invalid_policy"),
    (("limit", "--key", "k", "--max", "3", "--none", "max"), "invalid_input"),
    (("limit", "--key", "k", "--none", "everything"), "invalid_input"),
]


def test_invalid_input_is_reported_without_a_change(treadle: Treadle):
    treadle.json("enqueue", "greet")
    before = treadle.json("lists", "list")
    for arguments, code in BAD:
        refused = treadle("lists", *arguments, "--json")
        assert (refused.code, refused.error["code"]) == (3 if code == "list_not_found" else 2, code), arguments
    assert treadle.json("lists", "list") == before
