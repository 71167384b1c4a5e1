"""`treadle store ...`: the schema, the log, and what is in there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exits import FAILED
from treadle.cli.session import Session
from treadle.cli.shapes import depth_json
from treadle.cli.words import ago, facts, grid, plain, state
from treadle.kernel.health import findings
from treadle.kernel.ports import Health
from treadle.kernel.reads import Overview
from treadle.kernel.verify import VerifyReport
from treadle.model.errors import InvalidInput, Refused
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType


async def migrate(
    session: Session,
    to: Annotated[int | None, typer.Option(metavar="N", help="To this version instead of the newest; down drops data")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, go down and drop what the later versions hold")] = False,
) -> None:
    """Make the tables, or bring them up to date."""
    if to is not None and to < 0:
        raise InvalidInput("--to takes a schema version from 0.")
    async with session.engine(migrate=True) as engine:
        version = (await engine.store.describe())["schema_version"]
        if to is not None and to != version:
            if isinstance(version, int) and to < version and not yes:
                raise Refused(f"Going from schema {version} down to {to} drops data. Add --yes if that is meant.")
            await engine.store.migrate_to(to)
            version = to
        url = engine.store.url
    session.show({"store": url, "schema_version": version}, lambda: plain(f"{url} is at schema version {version}"))


async def verify(session: Session) -> None:
    """Check that the log explains every row; exit 1 and a list of what is wrong if it does not."""
    async with session.engine() as engine:
        report = await engine.verify()
    value = {"holds": report.holds, "checked": report.checked, "problems": list(report.problems)}
    session.show(value, lambda: _report(report))
    if not report.holds:
        raise typer.Exit(FAILED)


def _report(report: VerifyReport) -> RenderableType:
    from rich.console import Group

    if report.holds:
        return plain(f"The log holds: {report.checked} histories checked, nothing wrong.", "green")
    count = len(report.problems)
    return Group(
        plain(f"The log does NOT hold: {report.checked} histories checked, {count} problem(s):", "bold red"),
        *(plain(f"  {problem}") for problem in report.problems),
    )


async def info(session: Session) -> None:
    """What the store is, what is in it, how it is doing, and what is risky about it."""
    async with session.engine() as engine:
        described: dict[str, Json] = dict(await engine.store.describe())
        health = await engine.store.health()
        overview = await engine.reads.overview()
        now = await engine.store.now()
        url = engine.store.url
    value = {
        "store": url,
        **described,
        "finished": overview.finished,
        "lanes": [depth_json(depth) for depth in overview.depths],
        "health": {**asdict(health), "findings": [asdict(finding) for finding in findings(health)]},
    }
    session.show(value, lambda: _overview(url, described, overview, health, now))


def _overview(url: str, described: dict[str, Json], overview: Overview, health: Health, now: int) -> RenderableType:
    from rich.console import Group

    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), value)
        for name, value in described.items()
        if value is not None and name not in ("finished_tasks", "url")
    ]
    finished = ", ".join(f"{count} {name}" for name, count in sorted(overview.finished.items())) or "none"
    parts: list[RenderableType] = [plain(url, "bold"), facts([*rows, ("finished", finished)])]
    if overview.depths:
        table = grid("name", "list", ">ready", ">running", ">waiting", ">held", "oldest due")
        for depth in overview.depths:
            counts = (depth.ready, depth.running, depth.waiting, depth.held)
            table.add_row(plain(depth.lane.name), plain(depth.lane.task_list), *map(str, counts), ago(depth.oldest_due_at, now))
        parts += [plain("\nLive tasks", "bold"), table]
    return Group(*parts, *_health(health, now))


def _health(health: Health, now: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if health.tables:
        table = grid("table", ">KiB", ">rows", ">dead rows", "vacuumed")
        for each in health.tables:
            rows = ["" if count is None else str(count) for count in (each.rows, each.dead_rows)]
            vacuumed = "" if each.rows is None else ago(each.vacuumed_at, now)
            table.add_row(plain(each.name), str(each.bytes // 1024), *rows, vacuumed)
        parts += [plain("\nTables", "bold"), table]
    if risky := [finding for finding in findings(health) if finding.verdict != "ok"]:
        table = grid("", "risk", "found", "what to do")
        for finding in risky:
            table.add_row(state(finding.verdict), plain(finding.name), plain(finding.found), plain(finding.do))
        parts += [plain("\nRisks", "bold"), table]
    return parts
