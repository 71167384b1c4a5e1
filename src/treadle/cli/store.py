"""`treadle store ...`: the schema, the log, and what is in there."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.api.wire import to_builtins
from treadle.cli.command import option
from treadle.cli.exits import FAILED
from treadle.cli.format import ago, facts, grid, plain, state
from treadle.cli.progress import end_progress, tell_progress
from treadle.cli.session import Session
from treadle.model.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.store import StoreHealth, StoreInfo


async def migrate(
    session: Session,
    to: Annotated[int | None, option(metavar="N", help="To this version instead of the newest; down drops data")] = None,
    yes: Annotated[bool, option("--yes", help="Yes, go down and drop what the later versions hold")] = False,
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
    checked, problems, after = 0, list[str](), None
    async with session.api() as api:
        while True:
            page = await api.store.verify(after=after)
            checked, after = checked + page.checked, page.next_after
            problems += page.problems
            if after is None:
                break
            tell_progress(session, f"{checked} histories checked")
    end_progress(session)
    session.show({"holds": not problems, "checked": checked, "problems": problems}, lambda: _report(checked, problems))
    if problems:
        raise Exit(FAILED)


def _report(checked: int, problems: list[str]) -> RenderableType:
    from rich.console import Group

    if not problems:
        return plain(f"The log holds: {checked} histories checked, nothing wrong.", "green")
    return Group(
        plain(f"The log does NOT hold: {checked} histories checked, {len(problems)} problem(s):", "bold red"),
        *(plain(f"  {problem}") for problem in problems),
    )


async def info(session: Session) -> None:
    """What the store is, what is in it, how it is doing, and what is risky about it."""
    async with session.api() as api:
        found = await api.store.info()
        now = (await api.system.time()).now
    said = to_builtins(found)
    value = {"store": said.pop("store"), **said.pop("described"), **said}
    session.show(value, lambda: _overview(found, now))


def _overview(found: StoreInfo, now: datetime) -> RenderableType:
    from rich.console import Group

    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), value)
        for name, value in found.described.items()
        if value is not None and name not in ("finished_tasks", "url")
    ]
    finished = ", ".join(f"{count} {name}" for name, count in sorted(found.finished.items())) or "none"
    parts: list[RenderableType] = [plain(found.store, "bold"), facts([*rows, ("finished", finished)])]
    if found.lanes:
        table = grid("name", "list", ">ready", ">running", ">waiting", ">held", "oldest due")
        for lane in found.lanes:
            counts = (lane.ready, lane.running, lane.waiting, lane.held)
            table.add_row(plain(lane.name), plain(lane.task_list), *map(str, counts), ago(lane.oldest_due_at, now))
        parts += [plain("\nLive tasks", "bold"), table]
    return Group(*parts, *_health(found.health, now))


def _health(health: StoreHealth, now: datetime) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if health.tables:
        table = grid("table", ">KiB", ">rows", ">dead rows", "vacuumed")
        for each in health.tables:
            rows = ["" if count is None else str(count) for count in (each.rows, each.dead_rows)]
            vacuumed = "" if each.rows is None else ago(each.vacuumed_at, now)
            table.add_row(plain(each.name), str(each.bytes // 1024), *rows, vacuumed)
        parts += [plain("\nTables", "bold"), table]
    if risky := [finding for finding in health.findings if finding.verdict != "ok"]:
        table = grid("", "risk", "found", "what to do")
        for finding in risky:
            table.add_row(state(finding.verdict), plain(finding.name), plain(finding.found), plain(finding.do))
        parts += [plain("\nRisks", "bold"), table]
    return parts
