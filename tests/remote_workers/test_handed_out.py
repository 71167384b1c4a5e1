"""Tasks that were handed out to remote workers: remembered under their claim, within bounds."""

from __future__ import annotations

import pytest

from treadle.kernel.remote_workers import held_work
from treadle.kernel.remote_workers.held_work import MAX_CACHED_PAYLOAD, HandedOut
from treadle.model.tasks import Claim, Task


def task(name: str, version: int = 1, payload: str = "{}", owner: str = "ada") -> Task:
    return Task(id=name, queue_id=1, name=name, payload=payload, claim_version=version, owner_id=owner)


def test_a_task_is_found_once_and_only_under_its_claim():
    found = HandedOut()
    found.add(task("a", version=2))
    for other in (Claim("a", 1, "ada"), Claim("a", 3, "ada"), Claim("a", 2, "bob"), Claim("b", 2, "ada")):
        assert found.take(other) is None
    taken = found.take(Claim("a", 2, "ada"))
    assert taken is not None
    assert taken.id == "a"
    assert found.take(Claim("a", 2, "ada")) is None


def test_a_later_claim_replaces_an_earlier_one():
    found = HandedOut()
    found.add(task("a", version=1))
    found.add(task("a", version=2, payload="x" * (MAX_CACHED_PAYLOAD + 1)))
    assert found.take(Claim("a", 1, "ada")) is None
    assert found.take(Claim("a", 2, "ada")) is None  # too large to be kept


def test_the_oldest_tasks_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held_work, "MAX_CACHED_TASKS", 2)
    found = HandedOut()
    for name in ("a", "b", "a", "c"):
        found.add(task(name))
    assert [found.take(Claim(name, 1, "ada")) is not None for name in ("a", "b", "c")] == [True, False, True]
