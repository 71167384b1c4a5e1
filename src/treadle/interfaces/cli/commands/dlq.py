"""`treadle dlq ...`: permanently failed tasks, grouped by cause; retry or discard them by id or by filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from treadle.api.dead_letters import BATCH
from treadle.api.view import short
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.input.values import payload as parse_payload
from treadle.interfaces.cli.input.values import seconds
from treadle.interfaces.cli.output.format import ago, facts, grid, plain, when
from treadle.interfaces.cli.output.messages import end_progress, tell_progress
from treadle.interfaces.cli.session import Session
from treadle.model.errors import InvalidInput, NothingMatches

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.dead_letters import DeadLetter, DeadLetterGroup, DeadLettersChanged

Ids = Annotated[list[str] | None, argument(metavar="[ID]...", help="These tasks, instead of a filter")]
Fingerprint = Annotated[str | None, option(metavar="PRINT", help="Only with this fingerprint, from `dlq show`")]

_SHOWN = 10
_PAGE = 50


class Filter(TypedDict):
    """Selects dead letters."""

    name: Annotated[str | None, option(help="Only of this handler")]
    task_list: Annotated[str | None, option("--list", metavar="LIST", help="Only of this task list")]
    code: Annotated[str | None, option("--code", metavar="CODE", help="Only with this error code")]
    older_than: Annotated[str | None, option(metavar="AGE", help="Only if failed longer ago than this, e.g. 2h")]
    newer_than: Annotated[str | None, option(metavar="AGE", help="Only if failed within this time, e.g. 15m")]


class Choice(Filter):
    """Selects the dead letters to change."""

    fingerprint: Fingerprint
    everything: Annotated[bool, option("--all", help="Confirm that all dead letters of the namespace are meant")]
    dry_run: Annotated[bool, option("--dry-run", help="Change nothing; print the number")]


def _asked(which: Filter) -> dict[str, Any]:
    """Convert the filter to the arguments of the API."""
    return {
        "name": which["name"],
        "task_list": which["task_list"],
        "error_code": which["code"],
        "older_than": seconds(which["older_than"], "--older-than"),
        "newer_than": seconds(which["newer_than"], "--newer-than"),
    }


def _batches(ids: list[str] | None, which: Choice) -> list[dict[str, Any]]:
    """The arguments of each API call; bad input is rejected before the store is opened."""
    filters = _asked(which) | {"fingerprint": which["fingerprint"]}
    given = any(value is not None for value in filters.values())
    if sum((bool(ids), given, bool(which["everything"]))) != 1:
        raise InvalidInput(
            "Select dead letters by id, by a filter (--name, --list, --code, --fingerprint, --older-than, --newer-than), or --all."
        )
    dry_run = bool(which["dry_run"])
    if ids:
        once = list(dict.fromkeys(ids))
        return [{"ids": once[at : at + BATCH], "dry_run": dry_run} for at in range(0, len(once), BATCH)]
    return [filters | {"everything": bool(which["everything"]), "dry_run": dry_run}]


async def list_dead_letters(
    session: Session,
    fingerprint: Fingerprint = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000")] = _PAGE,
    before: Annotated[int | None, option(metavar="SEQ", help="Next page: only tasks that failed before this one")] = None,
    **which: Unpack[Filter],
) -> None:
    """List dead letters, most recent failure first."""
    asked = _asked(which)
    async with session.api() as api:
        page = await api.dead_letters.list(**asked, fingerprint=fingerprint, limit=limit, before=before)
        now = (await api.system.time()).now
    session.show_page(page, page.letters, "No dead letters.", lambda: _letters(page.letters, now), before=page.next_before)


async def show(
    session: Session,
    wanted: Annotated[str | None, argument(metavar="[FINGERPRINT]", help="One group, with its last error")] = None,
    limit: Annotated[int, option(help="Maximum number of groups, up to 1000")] = 50,
    **which: Unpack[Filter],
) -> None:
    """Show dead letters grouped by cause, largest group first; or one group in full."""
    asked = _asked(which) | {"fingerprint": wanted}
    letters: list[DeadLetter] = []
    async with session.api() as api:
        groups = (await api.dead_letters.groups(**asked, limit=limit)).groups
        if wanted is not None and not groups:
            raise NothingMatches(f"No dead letter has the fingerprint {wanted}; `treadle dlq show` lists the fingerprints.")
        if wanted is not None:
            letters = (await api.dead_letters.list(**asked, limit=_SHOWN)).letters
        now = (await api.system.time()).now
    value = {"groups": to_builtins(groups)} | ({} if wanted is None else {"letters": to_builtins(letters)})
    session.show(value, lambda: _groups(groups, now) if wanted is None else _group(groups, letters, now))


async def retry(
    session: Session,
    ids: Ids = None,
    payload: Annotated[str | None, option(metavar="JSON", help="A new payload for all of them: a JSON object, @file or -")] = None,
    **which: Unpack[Choice],
) -> None:
    """Retry dead letters, by id or by filter, in batches. For those of runs, everything that failed in the run is retried."""
    edited, parts = parse_payload(payload), _batches(ids, which)
    async with session.api() as api:
        await _tell(session, "retried", _changes(parts, lambda **options: api.dead_letters.retry(payload=edited, **options)))


async def discard(session: Session, ids: Ids = None, **which: Unpack[Choice]) -> None:
    """Discard dead letters, by id or by filter: they end as canceled and keep their error."""
    parts = _batches(ids, which)
    async with session.api() as api:
        await _tell(session, "discarded", _changes(parts, api.dead_letters.discard))


async def _changes(
    parts: Sequence[dict[str, Any]], act: Callable[..., Awaitable[DeadLettersChanged]]
) -> AsyncIterator[DeadLettersChanged]:
    """Call `act` for each part until all pages are done."""
    for part in parts:
        after: str | None = None
        while True:
            changed = await act(**part, after=after)
            yield changed
            if (after := changed.next_after) is None:
                break


# --- output ---


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


def _letters(found: list[DeadLetter], now: datetime) -> RenderableType:
    table = grid("id", "name", "?about", "code", "?fingerprint", "?>attempt", "?failed", "error")
    for task in found:
        table.add_row(
            task.id,
            plain(task.name),
            plain(short(task.about, 40)),
            plain(task.error_code),
            plain(task.fingerprint),
            str(task.attempt),
            ago(task.finished_at, now),
            plain(short(_message(task.error))),
        )
    return table


def _groups(groups: list[DeadLetterGroup], now: datetime) -> RenderableType:
    if not groups:
        return plain("No dead letters.")
    table = grid("fingerprint", "name", "?code", ">count", "?first", "last", "last error")
    for group in groups:
        table.add_row(
            plain(group.fingerprint),
            plain(group.name),
            plain(group.error_code),
            str(group.count),
            ago(group.first_at, now),
            ago(group.last_at, now),
            plain(short(_message(group.error))),
        )
    return table


def _group(groups: list[DeadLetterGroup], letters: list[DeadLetter], now: datetime) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    for group in groups:
        rows: list[tuple[str, object]] = [
            ("name", group.name),
            ("code", group.error_code),
            ("count", f"{group.count}, {group.of_runs} of them of runs" if group.of_runs else group.count),
            ("first", when(group.first_at, now)),
            ("last", when(group.last_at, now)),
            ("error", _message(group.error)),
        ]
        trace = (group.error or {}).get("traceback")
        parts += [plain(group.fingerprint, "bold"), facts(rows), *([plain(f"\n{trace}", "dim")] if trace else [])]
    return Group(*parts, _letters(letters, now))


def _message(error: Any) -> str:
    return str((error or {}).get("message", ""))
