"""`treadle recover`: what a worker does at its start before it claims anything; or only what it would do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from treadle.cli.command import option
from treadle.cli.format import facts, plain
from treadle.cli.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.recovery import RecoveryReport


async def recover(
    session: Session,
    dry_run: Annotated[bool, option("--dry-run", help="Only say what a start-up would do; change nothing")] = False,
    name: Annotated[
        str | None, option(metavar="NAME", help="As the server of this name on this host: what it held before is freed")
    ] = None,
) -> None:
    """See to what crashed processes left: approvals, expired leases, schedules, watchers. Live work of others is never touched.

    Workers do the same when they start, and leases see to it all the time; safe to do at any time, and twice.
    """
    from treadle.kernel.recovery import Place
    from treadle.wiring.machine import SystemMachine

    machine = SystemMachine()
    place = None if name is None else Place(name, machine.host, machine.is_alive)
    async with session.engine() as engine:
        report = await engine.recovery.recover(place, dry_run=dry_run)
    session.show(asdict(report), lambda: _report(report))


def _report(report: RecoveryReport) -> RenderableType:
    from rich.console import Group

    closed = "would be canceled" if report.dry_run else "canceled"
    freed = "would be made ready" if report.dry_run else "made ready"
    rows: list[tuple[str, object]] = [
        ("1. approvals", f"{report.pending_approvals} pending, {report.overdue_approvals} of them past their time"),
        ("", f"{len(report.orphaned_approvals)} without a task, {closed}"),
        ("2. running work", f"{report.expired_leases} with an expired lease, {freed}"),
        ("", f"{report.own_tasks} of {len(report.own_servers)} earlier process(es) of this server, {freed}"),
        ("", f"{report.unknown_effects} effect(s) of these are unknown"),
    ]
    for number, service in enumerate(("schedules", "watchers"), 3):
        found = report.others.get(service, [])
        rows.append((f"{number}. {service}", f"{len(found)} missed something"))
        rows += [("", f"{each.name}: {each.text}") for each in found]
        rows += [("", f"{each}: has a task again") for each in report.repaired.get(service, [])]
    rows += [("not seen to", each) for each in report.problems]
    rows.append(("5. loops", "then a worker starts to claim" if report.dry_run else "none: `treadle worker` starts them"))
    head = "What a start-up would do (nothing was changed):" if report.dry_run else "Recovered:"
    return Group(plain(head, "bold"), facts(rows))
