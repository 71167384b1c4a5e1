"""Problems of the system: conditions that need an operator, each with its remedy. Pure.

A problem is named as long as its cause lasts. Work that only waits for its time, for a limit or for a person is not one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from treadle.api.system import StatusProblem
from treadle.kernel.queue.why import find_hold, serves
from treadle.kernel.status import FAILING
from treadle.kernel.store.health import LATE_FOR
from treadle.kernel.triggers import PAUSED
from treadle.model.clock import span
from treadle.model.names import FUNCTION, HANDLER, NOTIFY
from treadle.model.records import UNREADABLE
from treadle.model.tasks import evidence_text

if TYPE_CHECKING:
    from treadle.api.schedules import Schedule
    from treadle.api.watchers import Watcher
    from treadle.kernel.status import SystemStatus
    from treadle.kernel.store.queries import QueueDepth
    from treadle.model.tasks import Server

SLOW_FOR = 1_000
"""Milliseconds after which a store response counts as slow."""

RECENTLY_FOR = 3_600_000
"""A server that was lost, or an effect that became unknown, longer ago than this is listed but is no longer a problem."""

OLD_FOR = 300_000
"""Milliseconds after which a ready task has waited too long, although a worker serves it."""

HELD_FOR = 60_000
"""Milliseconds that a rate may need for the ready tasks before it counts as holding them back."""

SUBJECTS = 100
"""Maximum number of subjects that a problem lists."""

_NAMED = 3


def find_problems(status: SystemStatus) -> list[StatusProblem]:
    """Return the problems, the most general first; none if all is well."""
    return [*_store(status), *_servers(status), *_queues(status), *_triggers(status), *_work(status)]


def _store(status: SystemStatus) -> Iterator[StatusProblem]:
    if status.damage:
        yield _problem("store_damaged", status.damage[0].rstrip("."), "`treadle store verify` reads the whole store")
    if status.latency_for > SLOW_FOR:
        yield _problem("store_slow", f"the store took {status.latency_for / 1000:.1f} s to respond", "`treadle doctor` checks it")
    if status.overdue_for > LATE_FOR:
        late = f"a task has been due for {status.overdue_for / 1000:.0f} s and no worker has woken it"
        yield _problem("not_woken", late, "start a worker with `treadle worker --handlers MODULE`")
    if names := _unreadable(status):
        yield _problem(UNREADABLE, f"{_count(len(names), 'record')} cannot be read: {_some(names)}", "edit or remove them")


def _unreadable(status: SystemStatus) -> list[str]:
    names = [f"schedule {schedule.name}" for schedule in status.schedules if schedule.state == UNREADABLE]
    return names + [f"watcher {watcher.name}" for watcher in status.watchers if watcher.state == UNREADABLE]


def _servers(status: SystemStatus) -> Iterator[StatusProblem]:
    for state, label in (("lost", "lost"), ("error", "ended with an error")):
        bad = [server for server in status.servers if server.state == state]
        recent = [server for server in bad if status.now - server.heartbeat_at <= RECENTLY_FOR]
        if recent:
            text = f"{_count(len(recent), 'worker')} {label}: {_some([_named(server) for server in recent])}"
            one = len(recent) == 1
            remedy = f"start {'it' if one else 'them'} again; others take over {'its' if one else 'their'} work"
            yield _problem(f"server_{state}", text, remedy, [server.id for server in recent])
    for server in status.servers:
        if server.state in ("starting", "running") and (hold := find_hold(server, status.now)) is not None:
            yield _problem("interpreter_held", f"{server.name}: {hold.message}", "", [server.id])


def _named(server: Server) -> str:
    """The server's name, with the evidence of its death if there is some."""
    return server.name if server.evidence is None else f"{server.name} ({evidence_text(server.evidence)})"


def _queues(status: SystemStatus) -> Iterator[StatusProblem]:
    for settings in status.lists:
        tasks = sum(_live(depth) for depth in status.depths if depth.queue.task_list == settings.task_list)
        if settings.paused and tasks:
            resume = f"`treadle lists resume {settings.task_list}`"
            yield _problem(
                "list_paused", f"list {settings.task_list} is paused with {_count(tasks, 'task')}", resume, [settings.task_list]
            )
        elif not settings.accepting:
            resume = f"`treadle lists resume {settings.task_list}`"
            yield _problem(
                "list_draining", f"list {settings.task_list} is draining: it rejects new tasks", resume, [settings.task_list]
            )
    paused = {settings.task_list for settings in status.lists if settings.paused}
    ready = [depth for depth in status.depths if depth.ready and depth.queue.task_list not in paused]
    live = [server for server in status.servers if server.state in ("starting", "running")]
    served = {depth.queue for depth in ready if any(serves(server, depth.queue) for server in live)}
    if alone := [depth for depth in ready if depth.queue not in served]:
        text = f"no live worker for {_count(sum(depth.ready for depth in alone), 'ready task')}: {_describe_queues(alone)}"
        task_list = "" if alone[0].queue.task_list in ("default", "engine") else f" --list {alone[0].queue.task_list}"
        yield StatusProblem("no_worker", text, f"start one with `treadle worker --handlers MODULE{task_list}`", None, _lists(alone))
    slow = set()
    for rule in status.rates:
        depth = next((depth for depth in ready if depth.queue_id == rule.queue_id), None)
        if depth is not None and rule.rate and max(depth.ready - rule.tokens_left(status.now), 0) * 1000 / rule.rate > HELD_FOR:
            slow.add(depth.queue)
            text = f"{_count(depth.ready, 'task')} of {_describe_queues([depth])} wait for their rate of {rule.rate:g} per second"
            limit = f"treadle lists limit --handler {depth.queue.name} --list {depth.queue.task_list}"
            yield _problem("rate", text, f"`{limit} --rate R` raises it, `{limit} --none rate` removes it", [depth.queue.task_list])
    old = [depth for depth in ready if depth.queue in served and depth.queue not in slow and _age(depth, status.now) > OLD_FOR]
    if old:
        waited = span(max(_age(depth, status.now) for depth in old))
        text = f"ready tasks have waited {waited} although workers serve them: {_describe_queues(old)}"
        yield _problem(
            "queue_old", text, f"add workers; `treadle lists desired {old[0].queue.task_list}` estimates how many", _lists(old)
        )


def _triggers(status: SystemStatus) -> Iterator[StatusProblem]:
    groups: tuple[tuple[str, Sequence[Schedule | Watcher], str], ...] = (
        ("schedule", status.schedules, "`treadle schedules show {0}` shows it; correct it with `treadle schedules edit {0}`"),
        (
            "watcher",
            status.watchers,
            "`treadle watchers show {0}` shows it; correct it with `treadle watchers edit {0}`; "
            "`treadle watchers look {0}` scans again",
        ),
    )
    for kind, triggers, remedy in groups:
        if paused := [trigger.name for trigger in triggers if trigger.state == PAUSED]:
            resume = f"`treadle {kind}s resume {paused[0]}`"
            yield _problem(f"{kind}_paused", f"{_count(len(paused), kind)} paused: {_some(paused)}", resume, paused)
        if failing := [trigger for trigger in triggers if trigger.state == "active" and trigger.error]:
            first = cast(dict[str, str], failing[0].error).get("message", "")
            names = [trigger.name for trigger in failing]
            text = f"{_count(len(names), kind)} failing: {_some(names)}: {first}"
            yield _problem(f"{kind}_failing", text.rstrip("."), remedy.format(names[0]), names)


def _work(status: SystemStatus) -> Iterator[StatusProblem]:
    if failing := [task for task in status.failing if task.kind == FUNCTION]:
        text = _failing("function", "stuck", [f"{task.name} {task.run_id}" for task in failing])
        adopt = f"`treadle functions adopt {failing[0].run_id} --version N`"
        remedy = f"`treadle why {failing[0].run_id}` shows the reason; deploy code that matches, or adopt the run: {adopt}"
        yield _problem("function_stuck", text, remedy, [task.run_id or "" for task in failing])
    if sending := sum(task.kind == NOTIFY for task in status.failing) + status.undelivered:
        text = f"{_count(sending, 'notification')} cannot be delivered"
        if status.undelivered:
            text += f", {status.undelivered} of them permanently"
        remedy = "`treadle alerts history` shows those of alerts, `treadle dlq show` groups the permanent failures"
        yield _problem("notifications_failing", text, remedy)
    if own := [task for task in status.failing if task.kind not in (FUNCTION, NOTIFY)]:
        text = _failing("task", "of the engine failing", [task.name for task in own])
        yield _problem("engine_failing", text, f"`treadle tasks show {own[0].id}` shows the error", [task.id for task in own])
    if status.failing_jobs:
        text = f"polls of {_count(len(status.failing_jobs), 'external job')} fail: {_some(status.failing_jobs)}"
        yield _problem("polls_failing", text, "`treadle external list` shows them", status.failing_jobs)
    counts = {
        "tasks_paused": sum(depth.paused for depth in status.depths),
        "runs_paused": status.runs.get("paused", 0),
        "dead_letters": status.dead_letters,
        "effects_unknown": sum(status.now - at <= RECENTLY_FOR for at in status.unknown),
        "objectives_blocked": status.blocked_objectives,
    }
    for code, count in counts.items():
        if count:
            noun, text, remedy = _COUNTED[code]
            yield _problem(code, text.format(_count(count, noun)), remedy)


_COUNTED = {
    "tasks_paused": (
        "task",
        "{} paused",
        "`treadle tasks list --state paused` lists them, `treadle tasks resume ID` resumes one",
    ),
    "runs_paused": (
        "run",
        "{} paused",
        "`treadle runs list --state paused` lists them, `treadle runs resume ID` resumes one",
    ),
    "dead_letters": (
        "dead letter",
        "{}",
        "`treadle dlq show` groups them by cause; retry or discard them with `treadle dlq retry` or `treadle dlq discard`",
    ),
    "effects_unknown": (
        "effect",
        "the outcome of {} became unknown in the last hour: each may or may not have happened",
        "`treadle effects list` lists them with the keys to look them up at their services",
    ),
    "objectives_blocked": (
        "objective",
        "{} blocked",
        "`treadle objectives list --state BLOCKED` lists them, `treadle objectives unblock ID` continues one",
    ),
}
"""Problems that only count something: the noun, the text and the remedy."""


def _live(depth: QueueDepth) -> int:
    return depth.ready + depth.running + depth.waiting + depth.blocked


def _age(depth: QueueDepth, now: int) -> int:
    return 0 if depth.oldest_due_at is None else now - depth.oldest_due_at


def _lists(depths: Sequence[QueueDepth]) -> list[str]:
    return sorted({depth.queue.task_list for depth in depths})


def _describe_queues(depths: Sequence[QueueDepth]) -> str:
    return _some(
        [
            f"{depth.queue.name if depth.queue.kind == HANDLER else depth.queue.kind} in list {depth.queue.task_list}"
            for depth in depths
        ]
    )


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _failing(what: str, how: str, names: Sequence[str]) -> str:
    if len(names) < FAILING:
        return f"{_count(len(names), what)} {how}: {_some(names)}"
    return f"{FAILING} or more {what}s {how}: {', '.join(names[:_NAMED])}, ..."


def _problem(code: str, text: str, remedy: str, subjects: Sequence[str] = ()) -> StatusProblem:
    return StatusProblem(code, text, remedy, subjects[0] if len(subjects) == 1 else None, list(subjects[:SUBJECTS]))


def _some(names: Sequence[str]) -> str:
    """Join the first few names and the number of the rest."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
