"""What people are asked, how they are told, and what a start-up sees to: made together from an engine's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.kernel.approvals.service import Approvals
from treadle.kernel.queue.service import Follow
from treadle.kernel.recovery import Recoverer, Recovery
from treadle.workers.notify import Notifier

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class PeopleFace:
    """The part of an engine that is about approvals and recovery."""

    approvals: Approvals
    """Questions to people: list, show, decide."""
    notifier: Notifier
    recovery: Recovery
    """What a start-up does before its workers claim."""
    recoverers: dict[str, Callable[[], Recoverer]]
    """Services that see at a start-up to what was missed, by name, in their order."""


def wire_people(engine: Engine, follow: Follow) -> None:
    """Make these for the engine's store and settings, and tell the queue and the reads of them."""
    settings = engine.settings
    namespace = settings.namespace
    engine.approvals = Approvals(
        engine.store,
        engine.committer,
        engine.value_store,
        engine.ids,
        namespace=namespace,
        follow=follow,
        notifies=bool(settings.approval_webhook),
    )
    engine.notifier = Notifier(
        engine.approvals,
        engine.clock.now,
        url=settings.approval_webhook,
        secret=settings.webhook_secret,
        allowed=settings.webhook_allow,
    )
    engine.recoverers = {"schedules": lambda: engine.schedules, "watchers": lambda: engine.watchers}
    engine.recovery = Recovery(engine.store, engine.approvals, engine.recoverers, engine.committer.tell, namespace=namespace)
    engine.queue.closing = engine.approvals.rows_for_end
    engine.reads.why_awaiting = engine.approvals.why
