"""Limits and schedules declared in code: synchronised when a worker starts, by one owner, with two versions at once."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.engines import Refusing, url_of
from tests.sizes import POSTGRES

from treadle import Engine
from treadle.kernel.declarations.records import ProgramDeclarations, shown_value, text_of
from treadle.kernel.declarations.service import Declarations
from treadle.kernel.telemetry.events import DeclarationSynced, TelemetryEvent
from treadle.model.errors import InvalidInput, InvalidPolicy, InvalidSchedule, StoreUnavailable, TreadleError
from treadle.settings import Settings
from treadle.testing import ManualClock


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of("sqlite", request, tmp_path)


def make(url: str, release: int | str = 0, said: list[TelemetryEvent] | None = None, **options: Any) -> Engine:
    """An engine of the program shop, with a handler `report`."""
    emit = (lambda _: None) if said is None else said.append
    engine = Engine(url, settings=Settings(), program="shop", release=release, emit=emit, **options)

    @engine.handler("report")
    async def report(payload: Any) -> None:
        pass

    return engine


async def limits_of(engine: Engine) -> dict[str, tuple[int | None, float | None, int | None]]:
    return {each.key: (each.max_running, each.rate, each.burst) for each in (await engine.kernel.lists.limits()).limits}


async def crons_of(engine: Engine) -> dict[str, str | None]:
    return {each.name: each.when.cron for each in (await engine.schedules.list()).schedules}


def lines(said: list[TelemetryEvent]) -> list[str]:
    return [each.text for each in said if isinstance(each, DeclarationSynced)]


async def start(engine: Engine) -> None:
    async with engine, engine.worker():
        pass


@pytest.mark.postgres
async def test_two_releases_of_a_rolling_deployment_do_not_alternate(url: str):
    said: list[TelemetryEvent] = []
    old, new = make(url, 1, said), make(url, 2, said)
    old.declare.limit("stripe", rate="20/s", burst=5, max=3)
    old.declare.schedule("nightly", cron="30 2 * * *", task="report")
    old.declare.schedule("gone", every=60, task="report")
    new.declare.limit("stripe", rate="90/min", max=4)
    new.declare.schedule("nightly", cron="0 4 * * *", task="report", inputs={"kind": "full"})
    await start(old)
    assert len(lines(said)) == 4
    said.clear()
    await start(old)
    assert lines(said) == []
    await start(new)
    assert [line.split(" changed")[0] for line in lines(said)] == [
        "maximum of key stripe",
        "rate of key stripe",
        "schedule gone removed: every 60 s, task report",
        "schedule nightly",
    ]
    said.clear()
    await start(old)
    assert len(lines(said)) == 4
    assert all("newer release 2" in line for line in lines(said))
    async with new:
        assert await limits_of(new) == {"stripe": (4, 1.5, 2)}
        assert await crons_of(new) == {"nightly": "0 4 * * *"}
        assert (await new.kernel.verify()).holds
        created, entry = (await new.schedules.transitions("nightly")).transitions
        assert (created.transition, created.actor) == ("create", "program:shop")
        assert (entry.transition, entry.actor) == ("edit", "program:shop")


async def test_manual_changes_are_kept_until_they_are_overwritten(sqlite_url: str):
    said: list[TelemetryEvent] = []
    engine = make(sqlite_url, 1, said)
    engine.declare.limit("stripe", rate=20)
    engine.declare.schedule("nightly", cron="30 2 * * *", task="report")
    async with engine:
        async with engine.worker():
            await engine.kernel.lists.limit_key_rate("stripe", 7)
            await engine.schedules.edit("nightly", cron="0 5 * * *")
            await engine.schedules.pause("nightly")
        said.clear()
        async with engine.worker():
            pass
        assert [line.split(":")[0] for line in lines(said)] == [
            "rate of key stripe kept as set by hand",
            "schedule nightly kept as set by hand",
        ]
        assert await limits_of(engine) == {"stripe": (None, 7.0, 7)}
        await engine.kernel.trigger_services.declarations.sync(engine.declare, overwrite=True)
        assert await limits_of(engine) == {"stripe": (None, 20.0, 20)}
        assert (await engine.schedules.get("nightly")).state == "paused"
        assert await crons_of(engine) == {"nightly": "30 2 * * *"}
        await engine.schedules.remove("nightly")
        async with engine.worker():
            pass
        assert await crons_of(engine) == {}


async def test_an_item_of_another_program_is_refused(sqlite_url: str):
    await start(declaring := make(sqlite_url))
    declaring.declare.limit("stripe", max=3)
    await start(declaring)
    said: list[TelemetryEvent] = []
    other = Engine(sqlite_url, settings=Settings(), program="desk", emit=said.append)
    other.declare.limit("stripe", max=9, rate=5)
    await start(other)
    assert lines(said)[0].startswith("maximum of key stripe refused, because it belongs to the program shop: 3 running")
    async with other:
        assert await limits_of(other) == {"stripe": (3, 5.0, 5)}


class Stepping(Declarations):
    """Calls `step` before each durable write and each read of values."""

    step: Any

    async def _save(self, *arguments: Any) -> int:
        await self.step()
        return await super()._save(*arguments)

    async def _apply(self, *arguments: Any) -> None:
        await self.step()
        await super()._apply(*arguments)

    async def _read(self, *arguments: Any) -> Any:
        found = await super()._read(*arguments)
        await self.step()
        return found


def stepping(engine: Engine, step: Any) -> Stepping:
    kernel = engine.kernel
    made = Stepping(replace(kernel.core, emit=lambda _: None), kernel.reads, {"schedule": engine.schedules})
    made.step = step
    return made


def declared(release: int, **more: int) -> ProgramDeclarations:
    made = ProgramDeclarations("shop", release)
    made.limit("stripe", rate=10 + release, max=2 + release)
    made.add_trigger("schedule", "nightly", {"cron": "30 2 * * *", "task": "report", "priority": release})
    for name, value in more.items():
        made.limit(name, max=value)
    return made


async def found(engine: Engine) -> dict[str, Any]:
    schedules = {each.name: each.target.priority for each in (await engine.schedules.list()).schedules}
    return await limits_of(engine) | schedules


async def test_a_crash_before_any_write_is_repaired_by_the_next_start(url: str):
    engine = make(url)
    async with engine:
        release, at, crashed = 0, 0, True
        while crashed:
            release, at, crashed = release + 1, at + 1, False
            left = iter(range(at))

            async def crash(left: Any = left) -> None:
                if next(left, None) is None:
                    raise ConnectionError

            more = {f"only{release}": 1}  # is removed again by the next release
            try:
                await stepping(engine, crash).sync(declared(release, **more))
            except ConnectionError:
                crashed = True
            await engine.kernel.trigger_services.declarations.sync(declared(release, **more))
            assert await found(engine) == {
                "stripe": (2 + release, 10.0 + release, 10 + release),
                "nightly": release,
                f"only{release}": (1, None, None),
            }
        assert at > 7


async def test_releases_that_start_at_the_same_time_end_with_the_newest():
    engine = make("memory://")
    async with engine:
        for seed in range(30):
            rng = random.Random(seed)

            async def step(rng: random.Random = rng) -> None:
                for _ in range(rng.choice((0, 0, 1, 5, 40))):
                    await asyncio.sleep(0)

            base = 3 * seed
            starts = [declared(base + 1, old=1), declared(base + 1, old=1), declared(base + 2), declared(base + 2)]
            rng.shuffle(starts)
            await asyncio.gather(*(stepping(engine, step).sync(each) for each in starts))
            newest = base + 2
            assert await found(engine) == {"stripe": (2 + newest, 10.0 + newest, 10 + newest), "nightly": newest}, seed
            again = await engine.kernel.trigger_services.declarations.sync(declared(newest))
            assert {change.verdict for change in again.changes} == {"unchanged"}


async def test_a_past_one_time_schedule_is_not_created_again():
    clock = ManualClock()
    engine = make("memory://", clock=clock)
    at = datetime.fromtimestamp(clock.now() / 1000 + 60, UTC)
    engine.declare.schedule("launch", at=at, task="report")
    engine.declare.schedule("past", at=datetime(2001, 1, 1, tzinfo=UTC), task="report")
    async with engine:
        sync = engine.kernel.trigger_services.declarations.sync
        await sync(engine.declare)
        assert [each.name for each in (await engine.schedules.list()).schedules] == ["launch"]
        clock.advance(120_000)
        await engine.schedules.remove("launch")  # as its firing does
        assert {change.verdict for change in (await sync(engine.declare)).changes} == {"unchanged"}
        assert (await engine.schedules.list()).schedules == []


async def test_a_decorated_handler_or_function_is_the_target():
    engine = make("memory://")

    @engine.declare.schedule("tidy", every=3600)
    @engine.handler("clean.Up")
    async def clean_up(payload: Any) -> None:
        pass

    @engine.declare.schedule("month", cron="@monthly")
    @engine.function
    async def close_books(payload: Any) -> None:
        pass

    async with engine, engine.worker():
        targets = {each.name: (each.target.kind, each.target.name) for each in (await engine.schedules.list()).schedules}
        assert targets == {"tidy": ("task", "clean.Up"), "month": ("function", "close_books")}
        assert (await engine.schedules.get("tidy")).next_at.ms % 3_600_000 == 0


async def test_an_invalid_declaration_stops_the_start_before_anything_is_changed():
    engine = make("memory://")
    with pytest.raises(InvalidPolicy):
        engine.declare.limit("stripe", rate="many")
    with pytest.raises(InvalidInput, match="needs a rate or a max"):
        engine.declare.limit("stripe")
    with pytest.raises(InvalidInput, match="has no option 'evry'"):
        engine.declare.schedule("nightly", evry=3, task="report")
    with pytest.raises(InvalidInput, match="release"):
        Engine("memory://", release="latest")
    engine.declare.limit("stripe", max=3)
    with pytest.raises(InvalidInput, match="maximum of key stripe is declared twice"):
        engine.declare.limit("stripe", max=4)
    engine.declare.schedule("never", cron="0 0 30 2 *", task="report")
    with pytest.raises(InvalidSchedule):
        await start(engine)
    unfinished = make("memory://")
    unfinished.declare.schedule("nothing", every=60)
    with pytest.raises(InvalidInput, match="nothing starts nothing"):
        await start(unfinished)


async def test_a_store_that_fails_stops_the_start(sqlite_url: str):
    refusing = Refusing(set_limit=1)
    engine = make(sqlite_url, store_of=refusing.store_of)
    engine.declare.limit("stripe", max=3)
    async with engine:
        with pytest.raises(StoreUnavailable):
            async with engine.worker():
                pass
        async with engine.worker():
            assert await limits_of(engine) == {"stripe": (3, None, None)}


CODE = """
from treadle import Engine

engine = Engine({named})
engine.declare.limit("stripe", rate="100/min", max={most})


@engine.declare.schedule("nightly", cron="30 2 * * *")
@engine.handler("report")
async def report(payload):
    pass
"""


def test_the_command_shows_the_differences_and_applies_them(treadle: Treadle):
    def verdicts(*options: str) -> dict[str, str]:
        (told,) = treadle.json("declare", "--handlers", "shop.py", *options)["programs"]
        return {change["item"]: change["verdict"] for change in told["changes"]}

    code = treadle.folder / "shop.py"
    code.write_text(CODE.format(named="", most=3))
    items = ("max stripe", "rate stripe", "schedule nightly")
    treadle.json("store", "migrate")
    assert verdicts("--dry-run") == dict.fromkeys(items, "added")
    assert verdicts() == dict.fromkeys(items, "added")
    code.write_text(CODE.format(named="program='shop', release=2", most=4))  # the default is the name of the file
    said = treadle("declare", "--handlers", "shop.py")
    assert (said.code, "maximum of key stripe changed from 3 running to 4 running" in said.out) == (0, True)
    code.write_text(
        CODE.format(named="program='shop', release=3", most=50)
    )  # another size: the same second may have the same bytecode
    assert verdicts("--release", "1.9") == {**dict.fromkeys(items, "unchanged"), "max stripe": "skipped"}
    (limit,) = treadle.json("lists", "list")["limits"]
    assert (limit["max_running"], limit["burst"]) == (4, 2)
    refused = treadle("declare", "--json")
    assert (refused.code, refused.error["code"]) == (2, "invalid_input")


def declare_triggers(engine: Engine, folder: Path, **changes: Any) -> None:
    """A watcher, an alert rule and the limit of a handler, with some other options."""
    engine.declare.watcher("incoming", **{"directory": str(folder), "task": "report", "every": 60, **changes.get("watcher", {})})
    engine.declare.alert("imports", **{"when": "run_failed", "to": "TREADLE_ALERT_ONCALL", "every": 60, **changes.get("alert", {})})
    engine.declare.limit(handler="report", **{"rate": "10/s", "max": 3, **changes.get("limit", {})})


async def triggers_of(engine: Engine) -> dict[str, Any]:
    watchers = {each.name: (each.source.place, each.every_for, each.state) for each in (await engine.watchers.list()).watchers}
    rules = {
        each.name: (each.when, each.every_for, each.silenced_until is not None) for each in (await engine.alerts.rules()).rules
    }
    return {**watchers, **rules, **await limits_of(engine)}


async def test_watchers_alert_rules_and_limits_of_handlers_follow_the_code(url: str, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    said: list[TelemetryEvent] = []
    first = make(url, 1, said)
    declare_triggers(first, tmp_path / "a")
    await start(first)
    assert [line.partition(":")[0] for line in lines(said)] == [
        "alert imports added",
        "maximum of handler report added",
        "rate of handler report added",
        "watcher incoming added",
    ]
    async with first:
        place = str(tmp_path / "a")
        assert await triggers_of(first) == {
            "incoming": (place, 60_000, "active"),
            "imports": ("run_failed", 60_000, False),
            "handler:report": (3, 10.0, 10),
        }
        ids = (await first.watchers.get("incoming")).id, (await first.alerts.rules()).rules[0].id
        await first.watchers.pause("incoming")  # and what operators do besides is kept
        await first.alerts.silence("imports", 3600)
    second = make(url, 2, said)
    declare_triggers(second, tmp_path / "a", watcher={"every": 5}, alert={"every": 5}, limit={"max": 4})
    await start(second)
    async with second:
        assert await triggers_of(second) == {
            "incoming": (place, 5_000, "paused"),
            "imports": ("run_failed", 5_000, True),
            "handler:report": (4, 10.0, 10),
        }
        assert ids == ((await second.watchers.get("incoming")).id, (await second.alerts.rules()).rules[0].id)
    third = make(url, 3, said)
    declare_triggers(third, tmp_path / "b", alert={"when": "worker_lost"})  # another source, another condition: made anew
    await start(third)
    async with third:
        assert (await triggers_of(third))["incoming"] == (str(tmp_path / "b"), 60_000, "active")
        assert (await triggers_of(third))["imports"] == ("worker_lost", 60_000, False)
    said.clear()
    await start(third)
    assert lines(said) == []
    await start(make(url, 4, said))
    async with third:
        assert await triggers_of(third) == {}


async def test_triggers_changed_by_hand_are_kept(sqlite_url: str, tmp_path: Path):
    said: list[TelemetryEvent] = []
    engine = make(sqlite_url, 1, said)
    declare_triggers(engine, tmp_path)
    async with engine:
        async with engine.worker():
            await engine.watchers.edit("incoming", every=7)
            await engine.alerts.remove("imports")
        said.clear()
        async with engine.worker():
            pass
        assert [line.split(":")[0] for line in lines(said)] == [
            "alert imports kept as set by hand",
            "watcher incoming kept as set by hand",
        ]
        assert (await engine.watchers.get("incoming")).every_for == 7_000
        await engine.kernel.trigger_services.declarations.sync(engine.declare, overwrite=True)
        assert (await engine.watchers.get("incoming")).every_for == 60_000
        assert [rule.name for rule in (await engine.alerts.rules()).rules] == ["imports"]


async def test_a_decorated_handler_is_the_target_of_a_watcher(tmp_path: Path):
    engine = make("memory://")

    @engine.declare.watcher("incoming", directory=str(tmp_path), pattern="*.csv")
    @engine.handler("import")
    async def import_file(payload: Any) -> None:
        pass

    async with engine, engine.worker():
        assert (await engine.watchers.get("incoming")).target.name == "import"


def test_the_target_of_an_alert_rule_is_not_shown_with_its_secrets():
    engine = make("memory://")
    engine.declare.alert("imports", when="run_failed", to="https://hooks.example.org/secret?key=1")
    ((item, value),) = engine.declare.items.items()
    assert "secret" not in text_of(item, value)
    assert shown_value(value) == value | {"to": "https://hooks.example.org"}


@pytest.mark.parametrize(
    "declare",
    [
        lambda declare: declare.limit(),
        lambda declare: declare.limit("stripe", handler="report", max=3),
        lambda declare: declare.limit(handler="report"),
        lambda declare: declare.watcher("incoming", directory="relative", task="report"),
        lambda declare: declare.alert("imports", when="never", to="TREADLE_ALERT_ONCALL"),
    ],
)
def test_an_invalid_trigger_is_refused_where_it_is_declared(declare: Any):
    with pytest.raises(TreadleError):
        declare(make("memory://").declare)


async def test_limits_and_triggers_show_the_program_that_declares_them(tmp_path: Path) -> None:
    async with Engine("memory://", settings=Settings(), program="shop") as engine:
        engine.declare.limit("stripe", rate=10)
        engine.declare.limit("mail", max=2)
        engine.declare.schedule("nightly", cron="0 2 * * *", task="report")
        engine.declare.watcher("incoming", directory=str(tmp_path), task="report")
        engine.declare.alert("failures", when="run_failed", to="https://example.org")
        services = engine.kernel.trigger_services
        await services.declarations.sync(engine.declare)
        await engine.kernel.lists.limit_key("other", 1)
        await engine.schedules.create("other", cron="0 2 * * *", task="report")
        limits = (await engine.kernel.lists.limits()).limits
        assert {limit.key: limit.program for limit in limits} == {"stripe": "shop", "mail": "shop", "other": None}
        schedules = (await engine.schedules.list()).schedules
        assert {schedule.name: schedule.program for schedule in schedules} == {"nightly": "shop", "other": None}
        assert [watcher.program for watcher in (await engine.watchers.list()).watchers] == ["shop"]
        assert [rule.program for rule in (await services.alerts.rules()).rules] == ["shop"]
        assert (await engine.schedules.get("nightly")).program == "shop"
        await engine.schedules.remove("nightly")
        (removed,) = [schedule for schedule in (await engine.schedules.list(every=True)).schedules if schedule.name == "nightly"]
        assert removed.program is None
