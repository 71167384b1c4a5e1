"""`treadle status`, `servers` and `recover`: health of the system, live processes, recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from click.exceptions import Exit

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.exits import FAILED
from treadle.interfaces.cli.format import ago, facts, plain, when
from treadle.interfaces.cli.session import Session
from treadle.model.clock import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.system import Status
    from treadle.kernel.recovery import RecoveryReport


async def status(
    session: Session, check: Annotated[bool, option("--check", help="Exit 1 if there is a problem, for scripts")] = False
) -> None:
    """Show the health of the system: problems, pending work, and servers."""
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
        ("tasks", f"{tasks.ready} ready{oldest}; {tasks.running} running, {tasks.waiting} waiting, {tasks.held} on hold"),
        *([("engine", f"{found.engine_tasks} internal (pruning, schedules, watchers)")] if found.engine_tasks else []),
        ("runs", _counts(found.runs)),
        ("dead letters", plain(found.dead_letters, "red" if found.dead_letters else "")),
        ("approvals", f"{found.approvals} waiting"),
        ("objectives", f"{found.blocked_objectives} blocked"),
        ("servers", _counts(found.servers)),
        ("store", f"{store.kind}, responds in {span(store.latency_for)}"),
        *(("next", f"{each.schedule} {when(each.at, found.now)}") for each in found.next_firings),
        ("version", found.version),
    ]
    head = plain(f"{found.health} (namespace {found.namespace})", "bold green" if found.health == "ok" else "bold yellow")
    if found.open_servers:
        rows.append(("access", f"open to every caller, because of --open: {', '.join(found.open_servers)}"))
    elif found.access is not None:
        rows.append(("access", "open to every caller, because of --open" if found.access == "open" else "requires a token"))
    return Group(head, *(plain(f"  {reason}", "yellow") for reason in found.reasons), facts(rows))


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "none"


async def recover(
    session: Session,
    dry_run: Annotated[bool, option("--dry-run", help="Change nothing; print the actions")] = False,
    name: Annotated[
        str | None,
        option(metavar="NAME", help="Act as the server with this name on this host: release the leases of its earlier processes"),
    ] = None,
) -> None:
    """Clean up after crashed processes: approvals, expired leases, schedules, watchers. Never touches the live work of others.

    Workers do the same when they start, and expired leases are taken over anyway. Safe to repeat at any time.
    """
    from treadle.engine.machine import SystemMachine
    from treadle.kernel.recovery import Place

    machine = SystemMachine()
    place = Place(name, machine.host, machine.is_alive, has_ended=machine.has_ended)
    async with session.engine() as engine:
        report = await engine.kernel.recovery.recover(place, dry_run=dry_run)
    session.show(msgspec.to_builtins(report), lambda: _report(report))


def _report(report: RecoveryReport) -> RenderableType:
    from rich.console import Group

    closed = "would be canceled" if report.dry_run else "canceled"
    freed = "would be made ready" if report.dry_run else "made ready"
    rows: list[tuple[str, object]] = [
        ("1. approvals", f"{report.pending_approvals} pending, {report.overdue_approvals} of them overdue"),
        ("", f"{len(report.orphaned_approvals)} without a task, {closed}"),
        ("2. running work", f"{report.expired_leases} with an expired lease, {freed}"),
        ("", f"{report.own_tasks} of {len(report.own_servers)} dead process(es) of this machine, {freed}"),
        ("", f"{report.unknown_effects} effect(s) of these are unknown"),
    ]
    for number, service in enumerate(("schedules", "watchers"), 3):
        found = report.others.get(service, [])
        rows.append((f"{number}. {service}", f"{len(found)} with missed events"))
        rows += [("", f"{each.name}: {each.text}") for each in found]
        rows += [("", f"{each}: its task was restored") for each in report.repaired.get(service, [])]
    rows += [("problem", each) for each in report.problems]
    rows.append(("5. loops", "then a worker starts to claim" if report.dry_run else "none: `treadle worker` starts them"))
    head = "Actions of a start-up (nothing was changed):" if report.dry_run else "Recovered:"
    return Group(plain(head, "bold"), facts(rows))
