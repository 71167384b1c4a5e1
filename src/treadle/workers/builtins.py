"""Handlers of the engine's own kinds of task: scripts, advancing runs, pruning, schedules, watchers, asking and telling people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from treadle.kernel.runs.decide import PARAM
from treadle.kernel.schedules.fire import Firer
from treadle.kernel.store.retention import PRUNE_EVERY_FOR, Retention
from treadle.kernel.watchers.scan import WatcherScanner
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import InvalidApproval
from treadle.model.names import ADVANCE, APPROVAL, NOTIFY, PRUNE, SCHEDULE, SCRIPT, WATCHER
from treadle.model.outcomes import AwaitingApproval, Failed, Problem, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json
from treadle.workers.context import Context
from treadle.workers.handlers import Handler, Settled, make_handler
from treadle.workers.notify import NOTIFY_RETRY, SEND_WITHIN, Notifier
from treadle.workers.scripts import ScriptError, ScriptUnavailable

LOOKS = 4
"""Watchers that look at once in one process, each in a thread of its own."""

_PATIENT = RetryPolicy(retries=1_000_000, first_for=1000, cap_for=60_000)
"""For what must go on, whatever keeps it from that for now."""
_PERSISTENT = RetryPolicy(retries=1_000_000, first_for=60_000, cap_for=PRUNE_EVERY_FOR)


class Scripts(Protocol):
    """Where scripts run; `ScriptRunner` is how they do so on a real machine."""

    async def run(self, code: str, params: dict[str, Json], *, first_line: int = 1, source: str = "<script>") -> dict[str, Json]:
        """What the script left in `result`, or `ScriptError`."""

    async def close(self) -> None:
        """End all of them."""


def builtin_handlers(
    scripts: Scripts,
    retention: Retention | None = None,
    firer: Callable[[], Firer] | None = None,
    notifier: Notifier | None = None,
    looker: Callable[[], WatcherScanner] | None = None,
) -> dict[str, Handler]:
    """The handlers by kind; nothing is pruned here without `retention`, fired without `firer`, told without `notifier`, or
    looked at without `looker`.
    """

    async def run_script(payload: dict[str, Any]) -> dict[str, Json] | Failed:
        """Run the code out of process; what is wrong with it is final, and its type is that of what the script raised."""
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

    async def take_in(_: dict[str, Any]) -> None:
        """Nothing by itself: settling the task is what advances the run."""

    handlers = {
        SCRIPT: make_handler(SCRIPT, run_script, retry=3, concurrency=16),
        ADVANCE: make_handler(ADVANCE, take_in),
        APPROVAL: make_handler(APPROVAL, _ask),
    }
    if notifier is not None:
        handlers[NOTIFY] = make_handler(NOTIFY, notifier.notify, retry=NOTIFY_RETRY, timeout=2 * SEND_WITHIN, concurrency=4)
    if retention is not None:
        handlers[PRUNE] = make_handler(PRUNE, _pruning(retention), retry=_PERSISTENT)
    if firer is not None:
        handlers[SCHEDULE] = make_handler(SCHEDULE, _firing(firer), retry=_PATIENT, concurrency=16)
    if looker is not None:
        handlers[WATCHER] = make_handler(WATCHER, _looking(looker), retry=_PATIENT, concurrency=LOOKS)
    return handlers


def _firing(firer: Callable[[], Firer]) -> Callable[[dict[str, Any], Context], Awaitable[Settled]]:
    async def fire(_: dict[str, Any], ctx: Context) -> Settled:
        """Do what is due, and leave a task for the next tick."""
        return Settled(await firer().fire(ctx.task))

    return fire


async def _ask(payload: dict[str, Any], ctx: Context) -> dict[str, Json] | AwaitingApproval | Failed:
    """Ask a person for a function; entered again, the decision is the result."""
    if ctx.approval_decision is not None:
        return ctx.approval_decision
    try:
        return AwaitingApproval(ApprovalRequest.from_json(payload))
    except InvalidApproval as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))


def _looking(looker: Callable[[], WatcherScanner]) -> Callable[[dict[str, Any], Context], Awaitable[Settled]]:
    async def look(_: dict[str, Any], ctx: Context) -> Settled:
        """Look, and start what the changes start."""
        return Settled(await looker().scan(ctx.task))

    return look


def _pruning(retention: Retention) -> Callable[[], Awaitable[Waiting]]:
    async def prune() -> Waiting:
        """One pass, and another in an hour."""
        await retention.prune()
        return Waiting(PRUNE_EVERY_FOR)

    return prune
