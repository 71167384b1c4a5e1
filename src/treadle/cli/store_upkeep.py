"""`treadle store prune|keep|backup`: what keeps a store small and safe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from treadle.api.wire import to_builtins
from treadle.cli.command import argument, option
from treadle.cli.format import plain
from treadle.cli.inputs import seconds
from treadle.cli.progress import end_progress, tell_progress
from treadle.cli.session import NotOverHttp, Session
from treadle.model.clock import span
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.store import PruneStep

_COUNTS = {
    "trees": "",
    "tasks": "tasks",
    "runs": "runs",
    "steps": "steps",
    "moves": "moves",
    "lines": "lines",
    "blobs": "big values",
    "records": "records",
    "outcomes": "outcomes of effects",
    "dedupe_keys": "idempotency keys",
    "servers": "servers",
    "freed": "",
}
"""What is counted, and what people call it."""


async def prune(
    session: Session,
    older_than: Annotated[
        str | None,
        option(metavar="AGE", help="By this age instead of the default rules, e.g. 7d; lists' own rules still win"),
    ] = None,
    tree: Annotated[str | None, option(metavar="ID", help="Only the tree of this task or run, however young")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only say how much; change nothing")] = False,
    compact: Annotated[bool, option("--compact", help="Then write the SQLite file anew, as small as it can be")] = False,
) -> None:
    """Remove finished trees that are past their time; nothing of an active tree ever goes. Workers do this every hour."""
    age = seconds(older_than, "--older-than")
    if age is not None and age < 0:
        raise InvalidInput(f"--older-than must be zero or more, not {older_than}.")
    if tree is not None and (dry_run or age is not None):
        raise InvalidInput("--tree goes alone: it takes one tree, whatever its age.")
    if dry_run and compact:
        raise InvalidInput("--compact changes the file; it does not go with --dry-run.")
    if compact and session.chosen.remote:
        raise NotOverHttp("--compact writes the file anew, and only the store's own machine can do that: leave --server out.")
    async with session.api() as api:
        total = to_builtins(await (_prune(session, api, age, dry_run) if tree is None else api.store.prune_tree(tree)))
    if compact:
        async with session.engine() as engine:
            total["freed"] += await engine.store.compact(whole=True)
    del total["next_after"]
    session.show(total, lambda: plain(_words(total)))


async def _prune(session: Session, api: Api, older_than: float | None, dry_run: bool) -> PruneStep:
    """A whole pass, step by step."""
    total = step = await api.store.prune(older_than=older_than, dry_run=dry_run)
    while step.next_after is not None:
        tell_progress(session, f"{total.trees} trees, {total.tasks} tasks")
        step = await api.store.prune(older_than=older_than, dry_run=dry_run, after=step.next_after)
        added = {name: getattr(total, name) + getattr(step, name) for name in _COUNTS}
        total = replace(total, **added)
    end_progress(session)
    return total


def _words(total: dict[str, Any]) -> str:
    if total["dry_run"]:
        return f"{total['trees']} trees with {total['tasks']} finished tasks would be pruned; nothing was changed."
    parts = ", ".join(f"{total[name]} {word}" for name, word in _COUNTS.items() if word and total[name])
    freed = f"; {total['freed'] // 1024} KiB given back" if total["freed"] else ""
    return f"{total['trees']} trees pruned{f' ({parts})' if parts else ''}{freed}."


async def keep(
    session: Session,
    task_list: Annotated[str, argument(metavar="LIST", help="The task list's name")],
    completed: Annotated[
        str | None, option(metavar="AGE", help="How long completed, canceled and ignored ends are kept, e.g. 7d")
    ] = None,
    failed: Annotated[str | None, option(metavar="AGE", help="How long failed ends are kept, e.g. 90d")] = None,
) -> None:
    """Say how long what ends in a list is kept; what is not given is as the defaults say."""
    ages = [seconds(completed, "--completed"), seconds(failed, "--failed")]
    if any(age is not None and age < 0 for age in ages):
        raise InvalidInput("An age is zero or more.")
    async with session.api() as api:
        rule = await api.store.keep(task_list, completed=ages[0], failed=ages[1])
    kept = f"completed ends are kept for {span(rule.keep_completed_for)}, failed ones for {span(rule.keep_failed_for)}"
    session.show(rule, lambda: plain(f"{task_list}: {kept}"))


async def backup(session: Session, path: Annotated[str, argument(metavar="PATH", help="A file that does not exist yet")]) -> None:
    """Copy the store into a new file while it is used (SQLite; on PostgreSQL, says how to use pg_dump)."""
    async with session.engine() as engine:
        size = await engine.store.backup(path)
        url = engine.store.url
    session.show({"store": url, "path": path, "bytes": size}, lambda: plain(f"{url} copied to {path} ({size // 1024} KiB)"))
