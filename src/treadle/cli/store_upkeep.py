"""`treadle store prune|keep|backup`: what keeps a store small and safe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.inputs import seconds
from treadle.cli.session import Session
from treadle.cli.words import plain, span
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.kernel.retention import PruneReport


async def prune(
    session: Session,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="By this age instead of the default rules, e.g. 7d; lists' own rules still win"),
    ] = None,
    tree: Annotated[str | None, typer.Option(metavar="ID", help="Only the tree of this task or run, however young")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much; change nothing")] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Then write the SQLite file anew, as small as it can be")] = False,
) -> None:
    """Remove finished trees that are past their time; nothing of an active tree ever goes. Workers do this every hour."""
    age = seconds(older_than, "--older-than")
    if age is not None and age < 0:
        raise InvalidInput(f"--older-than must be zero or more, not {older_than}.")
    if tree is not None and (dry_run or age is not None):
        raise InvalidInput("--tree goes alone: it takes one tree, whatever its age.")
    if dry_run and compact:
        raise InvalidInput("--compact changes the file; it does not go with --dry-run.")
    async with session.engine() as engine:
        if tree is not None:
            report = await engine.retention.prune_tree(tree)
        else:
            report = await engine.retention.prune(older_than=age, dry_run=dry_run, progress=_progress(session))
        if compact:
            report.freed += await engine.store.compact(whole=True)
    session.show(asdict(report), lambda: plain(_words(report)))


def _progress(session: Session) -> Callable[[PruneReport], None]:
    def told(report: PruneReport) -> None:
        if sys.stderr.isatty() and not session.json:
            sys.stderr.write(f"\r{report.trees} trees, {report.tasks} tasks")
            sys.stderr.flush()

    return told


def _words(report: PruneReport) -> str:
    if report.dry_run:
        return f"{report.trees} trees with {report.tasks} finished tasks would be pruned; nothing was changed."
    counts = {
        "tasks": report.tasks,
        "runs": report.runs,
        "steps": report.steps,
        "moves": report.moves,
        "lines": report.lines,
        "big values": report.blobs,
        "records": report.records,
        "outcomes of effects": report.outcomes,
        "idempotency keys": report.dedupe_keys,
        "servers": report.servers,
    }
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    freed = f"; {report.freed // 1024} KiB given back" if report.freed else ""
    return f"{report.trees} trees pruned{f' ({parts})' if parts else ''}{freed}."


async def keep(
    session: Session,
    task_list: Annotated[str, typer.Argument(metavar="LIST", help="The task list's name")],
    completed: Annotated[
        str | None, typer.Option(metavar="AGE", help="How long completed, canceled and ignored ends are kept, e.g. 7d")
    ] = None,
    failed: Annotated[str | None, typer.Option(metavar="AGE", help="How long failed ends are kept, e.g. 90d")] = None,
) -> None:
    """Say how long what ends in a list is kept; what is not given is as the defaults say."""
    ages = [seconds(completed, "--completed"), seconds(failed, "--failed")]
    if any(age is not None and age < 0 for age in ages):
        raise InvalidInput("An age is zero or more.")
    async with session.engine() as engine:
        await engine.retention.keep(task_list, completed=ages[0], failed=ages[1])
        rules = engine.retention.rules
    kept = [
        rules.keep_completed_for if ages[0] is None else round(ages[0] * 1000),
        rules.keep_failed_for if ages[1] is None else round(ages[1] * 1000),
    ]
    value = {"task_list": task_list, "keep_completed_for": kept[0], "keep_failed_for": kept[1]}
    session.show(value, lambda: plain(f"{task_list}: completed ends are kept for {span(kept[0])}, failed ones for {span(kept[1])}"))


async def backup(
    session: Session, path: Annotated[str, typer.Argument(metavar="PATH", help="A file that does not exist yet")]
) -> None:
    """Copy the store into a new file while it is used (SQLite; on PostgreSQL, says how to use pg_dump)."""
    async with session.engine() as engine:
        size = await engine.store.backup(path)
        url = engine.store.url
    session.show({"store": url, "path": path, "bytes": size}, lambda: plain(f"{url} copied to {path} ({size // 1024} KiB)"))
