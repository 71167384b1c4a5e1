"""`treadle external rebuild`: records of external jobs from their events."""

from __future__ import annotations

from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.messages import tell_note
from treadle.interfaces.cli.session import Session


async def rebuild(session: Session) -> None:
    """Rebuild every job's record from its events; `store verify` reports whether that is needed."""
    records = changed = 0
    before: str | None = None
    async with session.api() as api:
        while True:
            page = await api.external_jobs.rebuild(before=before)
            records, changed, before = records + page.records, changed + page.changed, page.next_before
            if before is None:
                break
            if not session.json:
                tell_note(f"{records} record(s) so far")
    session.show({"records": records, "changed": changed}, lambda: plain(f"{records} record(s), {changed} of them rebuilt."))
