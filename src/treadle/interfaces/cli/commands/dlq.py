"""`treadle dlq ...`: dead letters grouped by cause; retry or discard them by id or by filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from treadle.api.dead_letters import BATCH, GROUP, LETTER, DeadLetterConditions
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import details, plain, table, together
from treadle.interfaces.cli.messages import end_progress, tell_progress
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.model.errors import InvalidInput, NothingMatches

if TYPE_CHECKING:
    from treadle.api.dead_letters import DeadLettersChanged

Ids = Annotated[list[str] | None, argument(metavar="[ID]...", help="These tasks, instead of a filter")]
Everything = Annotated[bool, option("--all", help="Confirm that all dead letters of the namespace are meant")]
DryRun = Annotated[bool, option("--dry-run", help="Change nothing; print the number")]
_LATEST = 10
"""Dead letters that are listed of one group."""


async def show(  # type: ignore[misc]  # its fingerprint is an argument, not an option
    session: Session,
    fingerprint: Annotated[str | None, argument(metavar="[FINGERPRINT]", help="One group, with its last error")] = None,
    limit: Annotated[int, option(help="Maximum number of groups, up to 1000")] = 50,
    **conditions: Unpack[DeadLetterConditions],
) -> None:
    """Show dead letters grouped by cause, largest group first; or one group in full."""
    if fingerprint is not None:
        conditions["fingerprint"] = fingerprint
    async with session.api() as api:
        groups = (await api.dead_letters.groups(**conditions, limit=limit)).groups
        if fingerprint is not None and not groups:
            raise NothingMatches(f"No dead letter has the fingerprint {fingerprint}; `treadle dlq show` lists the fingerprints.")
        letters = [] if fingerprint is None else (await api.dead_letters.list(**conditions, limit=_LATEST)).letters
        now = (await api.system.time()).now
    if fingerprint is None:
        session.show({"groups": to_builtins(groups)}, lambda: table(GROUP, groups, now))
        return
    value = {"groups": to_builtins(groups), "letters": to_builtins(letters)}
    session.show(value, lambda: together(*(details(GROUP, group, now) for group in groups), "", table(LETTER, letters, now)))


async def retry(
    session: Session,
    ids: Ids = None,
    payload: Annotated[str | None, option(metavar="JSON", help="A new payload for all of them: a JSON object, @file or -")] = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    **conditions: Unpack[DeadLetterConditions],
) -> None:
    """Retry dead letters, by id or by filter, in batches. For those of runs, everything that failed in the run is retried."""
    edited, batches = parse_payload(payload), _batches(ids, everything, dry_run, conditions)
    async with session.api() as api:
        await _tell(session, "retried", _changes(batches, lambda **batch: api.dead_letters.retry(payload=edited, **batch)))


async def discard(
    session: Session,
    ids: Ids = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    **conditions: Unpack[DeadLetterConditions],
) -> None:
    """Discard dead letters, by id or by filter: they end as canceled and keep their error."""
    batches = _batches(ids, everything, dry_run, conditions)
    async with session.api() as api:
        await _tell(session, "discarded", _changes(batches, api.dead_letters.discard))


def _batches(ids: list[str] | None, everything: bool, dry_run: bool, conditions: DeadLetterConditions) -> list[dict[str, Any]]:
    """The arguments of each API call; bad input is rejected before the store is opened."""
    if sum((bool(ids), bool(conditions), everything)) != 1:
        raise InvalidInput(
            "Select dead letters by id, by a filter (--name, --list, --code, --fingerprint, --older-than, --newer-than), or --all."
        )
    if ids:
        once = list(dict.fromkeys(ids))
        return [{"ids": once[at : at + BATCH], "dry_run": dry_run} for at in range(0, len(once), BATCH)]
    return [{**conditions, "everything": everything, "dry_run": dry_run}]


async def _changes(
    batches: Sequence[dict[str, Any]], act: Callable[..., Awaitable[DeadLettersChanged]]
) -> AsyncIterator[DeadLettersChanged]:
    """Call `act` for each batch until all pages are done."""
    for batch in batches:
        after: str | None = None
        while True:
            changed = await act(**batch, after=after)
            yield changed
            if (after := changed.next_after) is None:
                break


async def _tell(session: Session, word: str, changes: AsyncIterator[DeadLettersChanged]) -> None:
    """Show progress, then the totals."""
    done = of_runs = passed_over = matched = met = 0
    dry_run = False
    async for part in changes:
        done, of_runs, passed_over = done + part.done, of_runs + part.of_runs, passed_over + part.passed_over
        matched, dry_run = max(matched, part.matched), part.dry_run
        met = done + passed_over
        if part.next_after is not None:
            tell_progress(session, f"{met} of {matched} {word}")
    end_progress(session)
    lines = [f"{done} {'would be ' if dry_run else ''}{word}"]
    if of_runs:
        lines.append(f"{of_runs} of them with their runs")
    if passed_over:
        lines.append(f"{passed_over} skipped: changed meanwhile, or of runs that cannot be retried so")
    value = {"matched": met, "done": done, "of_runs": of_runs, "passed_over": passed_over, "dry_run": dry_run}
    session.show(value, lambda: plain("; ".join(lines)))
