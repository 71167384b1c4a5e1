"""Handlers of the engine's own task kinds: scripts, run advances, pruning, schedules, watchers, approvals and notifications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from treadle.kernel.store.retention import PRUNE_EVERY_FOR, Retention
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import InvalidApproval
from treadle.model.names import (
    ADVANCE,
    ALERT,
    APPROVAL,
    CANCEL,
    METRICS,
    NOTIFY,
    PARAM,
    PRUNE,
    RUN_DEADLINE,
    SCHEDULE,
    SCRIPT,
    WATCHER,
)
from treadle.model.outcomes import AwaitingApproval, Failed, Problem, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json
from treadle.workers.context import Context, RegisteredHandler, Settled, make_handler
from treadle.workers.notifications import NOTIFY_RETRY, SEND_WITHIN, Notifier
from treadle.workers.scripts import ScriptError, ScriptUnavailable

if TYPE_CHECKING:
    from treadle.kernel.store.units import UnitAnswer
    from treadle.kernel.triggers import TriggerTasks
    from treadle.model.tasks import Task
    from treadle.workers.notifications import AlertSender

SCAN_CONCURRENCY = 4
"""Maximum number of watchers that scan concurrently in one process, each in a thread."""

_PATIENT = RetryPolicy(retries=1_000_000, first_for=1000, cap_for=60_000)
"""For tasks that must continue after any failure."""
_PERSISTENT = RetryPolicy(retries=1_000_000, first_for=60_000, cap_for=PRUNE_EVERY_FOR)


class Scripts(Protocol):
    """Runs scripts; `ScriptRunner` does so on a real machine."""

    async def run(self, code: str, params: dict[str, Json], *, first_line: int = 1, source: str = "<script>") -> dict[str, Json]:
        """Return the script's `result`, or raise `ScriptError`."""

    async def close(self) -> None:
        """End all script processes."""


def run_handlers(scripts: Scripts) -> dict[str, RegisteredHandler]:
    """Return the handlers of tasks of runs, by kind."""

    async def run_script(payload: dict[str, Any]) -> dict[str, Json] | Failed:
        """Run the code out of process; an error of the script is final, and has the type of the exception it raised."""
        script = payload["script"]
        params = {name.removeprefix(PARAM): value for name, value in payload.items() if name.startswith(PARAM)}
        try:
            return await scripts.run(
                script["code"], params, first_line=script.get("line", 1), source=script.get("source") or "<script>"
            )
        except ScriptUnavailable:
            raise
        except ScriptError as error:
            return Failed(Problem(error.code, str(error), error.type or type(error).__name__))

    async def advance(_: dict[str, Any]) -> None:
        """Do nothing: settling the task advances the run."""

    return {
        SCRIPT: make_handler(SCRIPT, run_script, retry=3, concurrency=16),
        ADVANCE: make_handler(ADVANCE, advance),
        APPROVAL: make_handler(APPROVAL, _ask),
    }


async def _ask(payload: dict[str, Any], ctx: Context) -> dict[str, Json] | AwaitingApproval | Failed:
    """Request the approval of a function; when called again, return the decision."""
    if ctx.approval_decision is not None:
        return ctx.approval_decision
    try:
        return AwaitingApproval(ApprovalRequest.from_json(payload))
    except InvalidApproval as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))


def service_handlers(
    retention: Retention,
    firer: Callable[[], TriggerTasks[Any]],
    notifier: Notifier,
    scanner: Callable[[], TriggerTasks[Any]],
    evaluator: Callable[[], TriggerTasks[Any]],
    alert_sender: Callable[[], AlertSender],
    expire: Callable[[dict[str, Any]], Awaitable[None]],
    cancel: Callable[[dict[str, Any]], Awaitable[None]],
    roll_up: Callable[[Task], Awaitable[UnitAnswer]],
) -> dict[str, RegisteredHandler]:
    """Return the handlers of pruning, triggers, notifications, alerts and timers, by kind."""

    def settling(kind: str, find_service: Callable[[], TriggerTasks[Any]], concurrency: int) -> RegisteredHandler:
        async def settled(_: dict[str, Any], ctx: Context) -> Settled:
            """Do the work of the task, which settles it, too."""
            return Settled(await find_service().run(ctx.task))

        return make_handler(kind, settled, retry=_PATIENT, concurrency=concurrency)

    async def send(payload: dict[str, Any], ctx: Context) -> dict[str, Json]:
        """Send the message of an approval or of an alert."""
        return await (alert_sender().send if "rule_id" in payload else notifier.notify)(payload, ctx)

    async def prune() -> Waiting:
        """Prune once, and again in an hour."""
        await retention.prune()
        return Waiting(PRUNE_EVERY_FOR)

    async def count(_: dict[str, Any], ctx: Context) -> Settled:
        """Count new transitions; this settles the task until the next time."""
        return Settled(await roll_up(ctx.task))

    return {
        NOTIFY: make_handler(NOTIFY, send, retry=NOTIFY_RETRY, timeout=2 * SEND_WITHIN, concurrency=4),
        PRUNE: make_handler(PRUNE, prune, retry=_PERSISTENT),
        METRICS: make_handler(METRICS, count, retry=_PATIENT),
        SCHEDULE: settling(SCHEDULE, firer, 16),
        WATCHER: settling(WATCHER, scanner, SCAN_CONCURRENCY),
        ALERT: settling(ALERT, evaluator, 4),
        RUN_DEADLINE: make_handler(RUN_DEADLINE, expire, retry=_PATIENT, concurrency=16),
        CANCEL: make_handler(CANCEL, cancel, retry=_PATIENT, concurrency=16),
    }
