"""Leases: extend and check claims, and record the heartbeats of servers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.kernel.store.queries import LeaseExtension, Membership, Renewal
from treadle.model.tasks import LOST_AFTER, Claim, Server
from treadle.stores.rules.encoding import SERVER_JSON
from treadle.stores.session import Session


async def extend(
    session: Session, channel: str, renewals: Sequence[Renewal], lease_for: int, *, within_timeout: bool = False
) -> dict[str, LeaseExtension]:
    """Extend the claims that are held; return their new ends by task id. `within_timeout`: not past the attempt's timeout either.

    Notifies the channel of tasks that became ready while their renewal waited: it had locked them, so that claims skipped them.
    """
    ordered = sorted(renewals, key=lambda renewal: renewal.claim.task_id)
    rows = [(r.claim.task_id, r.claim.version, r.claim.owner_id, r.progressed, r.progress) for r in ordered]
    extended = await session.fetch("extend", rows=rows, lease_for=lease_for, within_timeout=within_timeout) if rows else []
    extensions = {task_id: LeaseExtension(until_at, now) for task_id, until_at, now in extended}
    if lost := [row[0] for row in rows if row[0] not in extensions]:
        await session.coordinate("announce_ready", channel=channel, ids=lost)
    return extensions


async def held(session: Session, claims: Sequence[Claim]) -> set[str]:
    """Return the ids of the tasks with an unchanged claim."""
    rows = [(claim.task_id, claim.version, claim.owner_id) for claim in claims]
    return {row[0] for row in await session.fetch("list_held", rows=rows)} if rows else set()


async def beat(session: Session, server: Server) -> Membership:
    """Insert the server's row, or update it; its heartbeat becomes now."""
    values = msgspec.structs.asdict(server)
    values |= {name: msgspec.json.encode(values[name]).decode() for name in SERVER_JSON}
    ((lost_by, others),) = await session.fetch("beat", **values, lost_after=LOST_AFTER)
    return Membership(others, lost_by)
