"""Conditions that the status reports as problems, and those that it does not."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from treadle.api.schedules import Schedule, ScheduleTime
from treadle.api.wire import record_of
from treadle.kernel.problems import OLD_FOR, RECENTLY_FOR, find_problems
from treadle.kernel.status import FAILING, SystemStatus
from treadle.kernel.store.queries import QueueDepth
from treadle.model.names import ADVANCE, FUNCTION, HANDLER, QueueKey
from treadle.model.records import Record
from treadle.model.schedules import ScheduleDocument, Target, When
from treadle.model.tasks import Server, Task

NOW = 10**12
WELL = SystemStatus(
    now=NOW,
    latency_for=3,
    overdue_for=0,
    depths=(),
    runs={"failed": 7},
    dead_letters=0,
    approvals=3,
    blocked_objectives=0,
    servers=(),
    next_firings=(),
    failing_jobs=(),
)


def server(name: str, state: str, *, heartbeat_at: int = NOW, handlers: tuple[str, ...] = ()) -> Server:
    return Server(
        id=name, name=name, host="", pid=1, version="", state=state, handlers=[*handlers], task_lists=["default"],
        heartbeat_at=heartbeat_at,
    )  # fmt: skip


def depth(name: str, ready: int, blocked: int = 0) -> QueueDepth:
    return QueueDepth(1, QueueKey("default", HANDLER, "default", name), ready, 0, 0, blocked, NOW if ready else None)


def texts(status: SystemStatus) -> list[str]:
    return [each.text for each in find_problems(status)]


def test_failed_runs_and_waiting_approvals_are_not_problems():
    assert texts(WELL) == []


def test_a_slow_store_and_unwoken_work_are_problems():
    assert texts(replace(WELL, latency_for=2500, overdue_for=60_000)) == [
        "the store took 2.5 s to respond",
        "a task has been due for 60 s and no worker has woken it",
    ]


def test_recently_lost_servers_are_problems_and_older_ones_are_not():
    lost = [server(name, "lost", heartbeat_at=NOW - 60_000) for name in ("a", "b", "c", "d")]
    old = server("old", "lost", heartbeat_at=NOW - RECENTLY_FOR - 1)
    found = replace(WELL, servers=(*lost, old, server("e", "error"), server("f", "stopped")))
    assert texts(found) == ["4 workers lost: a, b, c and 1 more", "1 worker ended with an error: e"]


def test_work_that_waits_long_despite_a_worker_is_a_problem():
    mill = server("mill", "running", handlers=("greet",))
    old = structs.replace(depth("greet", 5), oldest_due_at=NOW - OLD_FOR - 1)
    assert texts(replace(WELL, depths=(depth("greet", 5),), servers=(mill,))) == []
    assert texts(replace(WELL, depths=(old,), servers=(mill,))) == [
        "ready tasks have waited 5 min although workers serve them: greet in list default"
    ]


def test_failing_work_is_counted_up_to_the_limit_of_the_search():
    functions = [Task(id=f"f{n}", queue_id=1, kind=FUNCTION, name="ship", run_id=f"r{n}") for n in range(FAILING)]
    own = Task(id="t", queue_id=2, kind=ADVANCE, name="advance", run_id="r")
    assert texts(replace(WELL, failing=(*functions[:4], own))) == [
        "4 functions stuck: ship r0, ship r1, ship r2 and 1 more",
        "1 task of the engine failing: advance",
    ]
    assert texts(replace(WELL, failing=(*functions,))) == ["20 or more functions stuck: ship r0, ship r1, ship r2, ..."]


def test_a_schedule_that_cannot_start_its_work_is_a_problem():
    document = ScheduleDocument(
        when=When(cron="@daily"), cursor=0, target=Target(kind="task", name="greet"), error={"message": "there is no flow shop"}
    )
    record = Record(id="1", namespace="default", entity="schedule", name="nightly", state="active", document="", version=1)
    shown = {"name": "nightly", "next_at": None, "when": ScheduleTime(cron="@daily"), "zone": "UTC"}
    failing = record_of(Schedule, record, document, **shown)
    (found,) = find_problems(replace(WELL, schedules=(failing,)))
    assert (found.code, found.text, found.subject) == (
        "schedule_failing", "1 schedule failing: nightly: there is no flow shop", "nightly",
    )  # fmt: skip


def test_ready_work_without_a_live_server_is_a_problem():
    mill = server("mill", "running", handlers=("greet",))
    found = replace(WELL, depths=(depth("greet", 5), depth("paint", 2), depth("wait", 0, blocked=3)), servers=(mill,))
    assert texts(found) == ["no live worker for 2 ready tasks: paint in list default"]
    draining = replace(found, servers=(server("mill", "draining", handlers=("greet",)),))
    assert texts(draining) == ["no live worker for 7 ready tasks: greet in list default, paint in list default"]
