"""`treadle status`: how the system is, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.cli.command import option
from treadle.cli.exits import FAILED
from treadle.cli.format import ago, facts, plain, when
from treadle.cli.session import Session
from treadle.model.clock import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.system import Status


async def status(
    session: Session, check: Annotated[bool, option("--check", help="Exit 1 if something is wrong, for scripts")] = False
) -> None:
    """Say how the system is: what is wrong, what there is to do, and who does it."""
    async with session.api() as api:
        found = await api.system.status()
    session.show(found, lambda: _shown(found))
    if check and found.health != "ok":
        raise Exit(FAILED)


def _shown(found: Status) -> RenderableType:
    from rich.console import Group

    tasks, store = found.tasks, found.store
    oldest = f", the oldest due {ago(tasks.oldest_due_at, found.now)}" if tasks.oldest_due_at else ""
    rows: list[tuple[str, object]] = [
        ("tasks", f"{tasks.ready} ready{oldest}; {tasks.running} running, {tasks.waiting} waiting, {tasks.held} held"),
        *([("engine", f"{found.engine_tasks} of its own (pruning, schedules, watchers)")] if found.engine_tasks else []),
        ("runs", _counts(found.runs)),
        ("dead letters", plain(found.dead_letters, "red" if found.dead_letters else "")),
        ("approvals", f"{found.approvals} waiting"),
        ("objectives", f"{found.blocked_objectives} blocked"),
        ("servers", _counts(found.servers)),
        ("store", f"{store.kind}, answers in {span(store.latency_for)}"),
        *(("next", f"{each.schedule} {when(each.at, found.now)}") for each in found.next_firings),
        ("version", found.version),
    ]
    head = plain(f"{found.health} (namespace {found.namespace})", "bold green" if found.health == "ok" else "bold yellow")
    return Group(head, *(plain(f"  {reason}", "yellow") for reason in found.reasons), facts(rows))


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "none"
