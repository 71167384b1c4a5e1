"""`treadle dlq ...`: what failed for good, grouped by what it failed of; retried and discarded one by one or in bulk."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.inputs import payload as parse_payload
from treadle.cli.inputs import seconds
from treadle.cli.session import Session
from treadle.cli.shapes import task_json
from treadle.cli.words import ago, facts, grid, plain, short, when
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput, NothingMatches
from treadle.model.tasks import Task
from treadle.model.values import Json, decode
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.deadletters import Bulk
    from treadle.kernel.ports import DeadFilter, DeadGroup

Name = Annotated[str | None, typer.Option(help="Only of this handler name")]
List = Annotated[str | None, typer.Option("--list", metavar="LIST", help="Only of this task list")]
Code = Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only with this error code")]
Fingerprint = Annotated[str | None, typer.Option(metavar="PRINT", help="Only with this fingerprint, as `dlq show` gives it")]
OlderThan = Annotated[str | None, typer.Option(metavar="AGE", help="Only what failed longer ago, e.g. 2h")]
NewerThan = Annotated[str | None, typer.Option(metavar="AGE", help="Only what failed since, e.g. 15m")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These tasks, instead of a filter")]
All = Annotated[bool, typer.Option("--all", help="Yes, all dead letters of the namespace")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many; change nothing")]

_SHOWN = 10


_PAGE = 50


async def list_letters(
    session: Session,
    name: Name = None,
    task_list: List = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Annotated[int, typer.Option(help="At most that many, up to 1000")] = _PAGE,
    before: Annotated[int | None, typer.Option(metavar="SEQ", help="The next page: only what failed before this")] = None,
) -> None:
    """List dead letters, the last to fail first."""
    async with session.engine() as engine:
        which = await _filter(engine, name, task_list, code, fingerprint, older_than, newer_than)
        if before is not None:
            which = replace(which, until_seq=before - 1)
        found = await engine.dead_letters.list_letters(which, limit)
        now = await engine.store.now()
    more = found[-1].seq if len(found) == limit else None
    value = {"letters": [letter_json(task) for task in found], "next_before": more}
    given = {"name": name, "list": task_list, "code": code, "fingerprint": fingerprint}
    times = {"older_than": older_than, "newer_than": newer_than, "limit": None if limit == _PAGE else limit}
    hint = session.again("dlq list", **given, **times, before=more)
    session.show(value, lambda: _letters(found, now, hint if more else None))


async def show(
    session: Session,
    wanted: Annotated[str | None, typer.Argument(metavar="[FINGERPRINT]", help="One group, with its last error")] = None,
    name: Name = None,
    task_list: List = None,
    code: Code = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Annotated[int, typer.Option(help="At most that many groups, up to 1000")] = 50,
) -> None:
    """Show dead letters grouped by what they failed of, the biggest group first; or one group in full."""
    async with session.engine() as engine:
        which = await _filter(engine, name, task_list, code, wanted, older_than, newer_than)
        groups = await engine.dead_letters.list_groups(which, limit)
        if wanted is not None and not groups:
            raise NothingMatches(f"No dead letter has the fingerprint {wanted}; `treadle dlq show` lists what there is.")
        samples = {task.id: task for task in await engine.store.find_finished([group.last_id for group in groups])}
        letters = [] if wanted is None else await engine.dead_letters.list_letters(which, _SHOWN)
        now = await engine.store.now()
    shown = [(group, decode(samples[group.last_id].error) if group.last_id in samples else None) for group in groups]
    value: dict[str, Json] = {"groups": [group_json(group, error) for group, error in shown]}
    if wanted is not None:
        value["letters"] = [letter_json(task) for task in letters]
    session.show(value, lambda: _groups(shown, now) if wanted is None else _group(shown, letters, now))


async def retry(
    session: Session,
    ids: Ids = None,
    name: Name = None,
    task_list: List = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    dry_run: DryRun = False,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="A new payload for all of them: JSON object, @file or -")
    ] = None,
) -> None:
    """Make dead letters live again, by id or by filter, in batches. Those of runs are retried with their run."""
    edited = parse_payload(payload)
    async with _chosen(session, ids, everything, name, task_list, code, fingerprint, older_than, newer_than) as (engine, which):
        if which is None:
            done = await _each(
                ids or (), dry_run, lambda task_id: engine.retry(task_id, actor=session.actor, payload=edited), engine
            )
        else:
            done = await engine.dead_letters.retry(
                which, actor=session.actor, payload=edited, dry_run=dry_run, progress=_progress(session, "retried")
            )
    _told(session, done, "retried")


async def discard(
    session: Session,
    ids: Ids = None,
    name: Name = None,
    task_list: List = None,
    code: Code = None,
    fingerprint: Fingerprint = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    dry_run: DryRun = False,
) -> None:
    """Take dead letters out of the queue, by id or by filter: they end as canceled, and keep what they failed of."""
    async with _chosen(session, ids, everything, name, task_list, code, fingerprint, older_than, newer_than) as (engine, which):
        if which is None:
            done = await _each(ids or (), dry_run, lambda task_id: engine.queue.discard(task_id, actor=session.actor), engine)
        else:
            done = await engine.dead_letters.discard(
                which, actor=session.actor, dry_run=dry_run, progress=_progress(session, "discarded")
            )
    _told(session, done, "discarded")


# --- choosing ---


@asynccontextmanager
async def _chosen(
    session: Session, ids: list[str] | None, everything: bool, *filters: str | None
) -> AsyncIterator[tuple[Engine, DeadFilter | None]]:
    """An open engine and the filter; None where ids were given. Bad input does not even open the store."""
    given = any(value is not None for value in filters)
    if sum((bool(ids), given, everything)) != 1:
        raise InvalidInput(
            "Say which: ids, or a filter (--name, --list, --code, --fingerprint, --older-than, --newer-than), or --all."
        )
    seconds(filters[4], "--older-than"), seconds(filters[5], "--newer-than")
    async with session.engine() as engine:
        yield engine, None if ids else await _filter(engine, *filters)


async def _filter(
    engine: Engine,
    name: str | None = None,
    task_list: str | None = None,
    code: str | None = None,
    fingerprint: str | None = None,
    older_than: str | None = None,
    newer_than: str | None = None,
) -> DeadFilter:
    return await engine.dead_letters.filter(
        name=name,
        task_list=task_list,
        error_code=code,
        fingerprint=fingerprint,
        older_than=seconds(older_than, "--older-than"),
        newer_than=seconds(newer_than, "--newer-than"),
    )


async def _each(ids: list[str] | tuple[str, ...], dry_run: bool, act: Callable[[str], object], engine: Engine) -> Bulk:
    """The tasks by id, all looked at before the first is changed."""
    from inspect import isawaitable

    from treadle.kernel.deadletters import Bulk

    tasks = [await engine.get_task(task_id) for task_id in dict.fromkeys(ids)]
    for task in tasks if not dry_run else ():
        acting = act(task.id)
        if isawaitable(acting):
            await acting
    return Bulk(len(tasks), len(tasks), dry_run=dry_run)


# --- telling ---


def letter_json(task: Task) -> dict[str, Json]:
    """A dead letter."""
    return task_json(task) | {"seq": task.seq, "fingerprint": task.fingerprint}


def group_json(group: DeadGroup, error: Json) -> dict[str, Json]:
    """Dead letters with one fingerprint."""
    return asdict(group) | {"first_at": as_text(group.first_at), "last_at": as_text(group.last_at), "error": error}


def _progress(session: Session, word: str) -> Callable[[int, int], None]:
    def told(done: int, total: int) -> None:
        if sys.stderr.isatty() and not session.json:
            sys.stderr.write(f"\r{done} of {total} {word}" + ("\n" if done >= total else ""))
            sys.stderr.flush()

    return told


def _told(session: Session, done: Bulk, word: str) -> None:
    parts = [f"{done.done} {'would be ' if done.dry_run else ''}{word}"]
    if done.of_runs:
        parts.append(f"{done.of_runs} left alone: they belong to runs (`treadle runs retry RUN`)")
    if done.passed_over:
        parts.append(f"{done.passed_over} passed over: somebody else has changed them meanwhile")
    session.show(asdict(done), lambda: plain("; ".join(parts)))


def _letters(found: list[Task], now: int, more: str | None) -> RenderableType:
    from rich.console import Group

    if not found:
        return plain("No dead letters.")
    table = grid("id", "name", "code", "fingerprint", ">attempt", "failed", "error")
    for task in found:
        message = (decode(task.error) or {}).get("message", "")
        table.add_row(
            task.id,
            plain(task.name),
            plain(task.error_code),
            plain(task.fingerprint),
            str(task.attempt),
            ago(task.finished_at, now),
            plain(short(message)),
        )
    return Group(table, plain(f"More: {more}", "dim")) if more else table


def _groups(shown: list[tuple[DeadGroup, Json]], now: int) -> RenderableType:
    if not shown:
        return plain("No dead letters.")
    table = grid("fingerprint", "name", "code", ">count", "first", "last", "last error")
    for group, error in shown:
        table.add_row(
            plain(group.fingerprint),
            plain(group.name),
            plain(group.error_code),
            str(group.count),
            ago(group.first_at, now),
            ago(group.last_at, now),
            plain(short((error or {}).get("message", ""))),
        )
    return table


def _group(shown: list[tuple[DeadGroup, Json]], letters: list[Task], now: int) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    for group, error in shown:
        rows: list[tuple[str, object]] = [
            ("name", group.name),
            ("code", group.error_code),
            ("count", f"{group.count}, {group.of_runs} of them of runs" if group.of_runs else group.count),
            ("first", when(group.first_at, now)),
            ("last", when(group.last_at, now)),
            ("error", (error or {}).get("message", "")),
        ]
        trace = (error or {}).get("traceback")
        parts += [plain(group.fingerprint, "bold"), facts(rows), *([plain(f"\n{trace}", "dim")] if trace else [])]
    return Group(*parts, _letters(letters, now, None))
