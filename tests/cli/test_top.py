"""`treadle top` in a terminal that a test drives."""

from __future__ import annotations

from textual.widgets import DataTable

from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.interfaces.cli.commands.top import Look, headline, spark
from treadle.interfaces.cli.commands.top_screen import Details, TopApp
from treadle.model.access import OPEN
from treadle.model.errors import StoreUnavailable


def cells(app: TopApp, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}-table", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


async def test_it_shows_lists_runs_and_workers_and_follows_them():
    async with Engine("memory://") as engine:
        for n in range(3):
            await engine.enqueue("greet", {"n": n})
        app = TopApp(Operations(engine, OPEN), 60, where="memory://")
        async with app.run_test() as pilot:
            assert cells(app, "lists")[0][:3] == ["default", "greet", "3"]
            await engine.enqueue("greet", {"n": 4})
            await pilot.press("space")
            await pilot.pause()
            assert cells(app, "lists")[0][2] == "4"
            await pilot.press("w")
            async with engine.worker(name="here"):
                await pilot.press("space")
                await pilot.pause()
                assert [row[0] for row in cells(app, "workers")] == ["here"]


async def test_keys_show_details_and_pause_and_resume_the_row():
    async with Engine("memory://") as engine:
        await engine.enqueue("greet", {"n": 1}, task_list="mail")
        run = await engine.start_function("order.Ship", {}, version=1)
        app = TopApp(Operations(engine, OPEN), 60, where="memory://")
        async with app.run_test() as pilot:

            async def pressed(*keys: str) -> str:
                await pilot.press(*keys)
                await pilot.pause()
                return app.screen.text if isinstance(app.screen, Details) else ""

            assert "pause the list" in await pressed("question_mark")
            assert await pressed("x") == ""
            await pressed("l")
            app.query_one("#lists-table", DataTable).move_cursor(row=[row[0] for row in cells(app, "lists")].index("mail"))
            assert "handler: greet" in await pressed("enter")
            await pressed("escape", "p")
            assert (await engine.kernel.lists.get("mail")).paused
            await pressed("r")
            assert not (await engine.kernel.lists.get("mail")).paused
            text = await pressed("n", "enter")
            assert run.id in text
            assert "no live worker" in text
            await pressed("escape", "p")
            assert (await engine.runs.get(run.id)).state == "paused"


async def test_store_errors_are_shown_until_the_store_recovers(monkeypatch):
    async with Engine("memory://") as engine:
        look = Look(Operations(engine, OPEN))

        async def down() -> None:
            raise StoreUnavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(engine.kernel.store, "now", down)
            await look.again()
            assert "the store is away" in headline(look, "").plain
        await look.again()
        assert headline(look, "").plain.startswith("ok")


def test_bars_grow_with_the_numbers():
    assert spark([0, 1, 2, 4, 8]) == " ▁▂▄█"
    assert spark([0, 0]) == "▁▁"
    assert spark([]) == ""
