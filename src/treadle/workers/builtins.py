"""Handlers of the engine's own task kinds: scripts, run advances, pruning, schedules, watchers, approvals and notifications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from treadle.kernel.store.retention import PRUNE_EVERY_FOR, Retention
from treadle.kernel.store.units import Answer
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import InvalidApproval
from treadle.model.names import ADVANCE, ALERT, APPROVAL, CANCEL, NOTIFY, PARAM, PRUNE, RUN_DEADLINE, SCHEDULE, SCRIPT, WATCHER
from treadle.model.outcomes import AwaitingApproval, Failed, Problem, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Task
from treadle.model.values import Json
from treadle.workers.context import Context, Handler, Settled, make_handler
from treadle.workers.notifications import NOTIFY_RETRY, SEND_WITHIN, Notifier
from treadle.workers.scripts import ScriptError, ScriptUnavailable

if TYPE_CHECKING:
    from treadle.kernel.alerts.evaluate import AlertEvaluator
    from treadle.kernel.schedules.fire import Firer
    from treadle.kernel.watchers.scan import WatcherScanner
    from treadle.workers.notifications import AlertSender

SCAN_CONCURRENCY = 4
"""Maximum number of watchers that scan concurrently in one process, each in a thread."""

_PATIENT = RetryPolicy(retries=1_000_000, first_for=1000, cap_for=60_000)
"""For tasks that must continue after any failure."""
_PERSISTENT = RetryPolicy(retries=1_000_000, first_for=60_000, cap_for=PRUNE_EVERY_FOR)


S = TypeVar("S")

Notify = Callable[[dict[str, Any], Context], Awaitable[dict[str, Json]]]


class Scripts(Protocol):
    """Runs scripts; `ScriptRunner` does so on a real machine."""

    async def run(self, code: str, params: dict[str, Json], *, first_line: int = 1, source: str = "<script>") -> dict[str, Json]:
        """Return the script's `result`, or raise `ScriptError`."""

    async def close(self) -> None:
        """End all script processes."""


def builtin_handlers(
    scripts: Scripts,
    retention: Retention | None = None,
    firer: Callable[[], Firer] | None = None,
    notifier: Notifier | None = None,
    looker: Callable[[], WatcherScanner] | None = None,
    evaluator: Callable[[], AlertEvaluator] | None = None,
    alert_sender: Callable[[], AlertSender] | None = None,
    expire: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    cancel: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
) -> dict[str, Handler]:
    """Return the handlers by kind; those for pruning, triggers, notifications and alerts only if their service is given."""

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

    handlers = {
        SCRIPT: make_handler(SCRIPT, run_script, retry=3, concurrency=16),
        ADVANCE: make_handler(ADVANCE, advance),
        APPROVAL: make_handler(APPROVAL, _ask),
    }
    if notifier is not None:
        handlers[NOTIFY] = make_handler(
            NOTIFY, _send_with(notifier, alert_sender), retry=NOTIFY_RETRY, timeout=2 * SEND_WITHIN, concurrency=4
        )
    if retention is not None:
        handlers[PRUNE] = make_handler(PRUNE, _prune_with(retention), retry=_PERSISTENT)
    if firer is not None:
        handlers[SCHEDULE] = make_handler(
            SCHEDULE, _settling(firer, lambda service, task: service.run(task)), retry=_PATIENT, concurrency=16
        )
    if looker is not None:
        handlers[WATCHER] = make_handler(
            WATCHER, _settling(looker, lambda service, task: service.run(task)), retry=_PATIENT, concurrency=SCAN_CONCURRENCY
        )
    if evaluator is not None:
        handlers[ALERT] = make_handler(
            ALERT, _settling(evaluator, lambda service, task: service.run(task)), retry=_PATIENT, concurrency=4
        )
    if expire is not None:
        handlers[RUN_DEADLINE] = make_handler(RUN_DEADLINE, expire, retry=_PATIENT, concurrency=16)
    if cancel is not None:
        handlers[CANCEL] = make_handler(CANCEL, cancel, retry=_PATIENT, concurrency=16)
    return handlers


def _send_with(notifier: Notifier, alerts: Callable[[], AlertSender] | None) -> Notify:
    async def send(payload: dict[str, Any], ctx: Context) -> dict[str, Json]:
        """Send the message of an approval or of an alert."""
        return await (alerts().send if alerts is not None and "rule_id" in payload else notifier.notify)(payload, ctx)

    return send


async def _ask(payload: dict[str, Any], ctx: Context) -> dict[str, Json] | AwaitingApproval | Failed:
    """Request the approval of a function; when called again, return the decision."""
    if ctx.approval_decision is not None:
        return ctx.approval_decision
    try:
        return AwaitingApproval(ApprovalRequest.from_json(payload))
    except InvalidApproval as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))


def _settling(
    find_service: Callable[[], S], settle: Callable[[S, Task], Awaitable[Answer]]
) -> Callable[[dict[str, Any], Context], Awaitable[Settled]]:
    async def settled(_: dict[str, Any], ctx: Context) -> Settled:
        """Do the work of the task, which settles it, too."""
        return Settled(await settle(find_service(), ctx.task))

    return settled


def _prune_with(retention: Retention) -> Callable[[], Awaitable[Waiting]]:
    async def prune() -> Waiting:
        """Prune once, and again in an hour."""
        await retention.prune()
        return Waiting(PRUNE_EVERY_FOR)

    return prune
