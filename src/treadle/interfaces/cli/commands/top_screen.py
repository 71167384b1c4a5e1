"""The screen of `treadle top`: three tables under a headline, refreshed periodically."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from treadle.api.facade import Api
from treadle.interfaces.cli.commands.top import Look, headline, list_rows, run_rows, server_rows
from treadle.interfaces.cli.format import plain

TABLES: dict[str, tuple[tuple[str, ...], Callable[[Look], list[tuple[object, ...]]]]] = {
    "lists": (("list", "handler", "ready", "running", "waiting", "held", "oldest", ""), list_rows),
    "runs": (("workflow", "state", "steps", "started", "took", "id"), run_rows),
    "workers": (("server", "state", "busy", "handled", "failed", "lists", "heard"), server_rows),
}


class TopApp(App[None]):
    """Refreshes periodically and shows the last snapshot."""

    TITLE = "treadle top"
    CSS = "#head { height: 3; padding: 0 1; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Leave"),
        ("l", "show('lists')", "Lists"),
        ("r", "show('runs')", "Runs"),
        ("w", "show('workers')", "Workers"),
        ("space", "look", "Refresh"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, api: Api, every: float, *, where: str) -> None:
        super().__init__()
        self.look = Look(api)
        self._every = every
        self._where = where
        self._looking = False

    def compose(self) -> ComposeResult:
        """Build the widgets."""
        yield Static(id="head")
        with TabbedContent(id="tabs"):
            for name, (columns, _) in TABLES.items():
                with TabPane(name.capitalize(), id=name):
                    table: DataTable[Any] = DataTable(id=f"{name}-table", cursor_type="row", zebra_stripes=True)
                    table.add_columns(*columns)
                    yield table
        yield Footer()

    async def on_mount(self) -> None:
        """Start refreshing."""
        await self.action_look()
        self.set_interval(self._every, self.action_look)

    async def action_look(self) -> None:
        """Refresh now, unless a refresh is in progress."""
        if self._looking:
            return
        self._looking = True
        try:
            await self.look.again()
            self.draw()
        finally:
            self._looking = False

    def draw(self) -> None:
        """Show the last snapshot; the cursor stays in place."""
        self.query_one("#head", Static).update(headline(self.look, self._where))
        for name, (_, rows_of) in TABLES.items():
            table = self.query_one(f"#{name}-table", DataTable)
            at = table.cursor_row
            table.clear()
            for row in rows_of(self.look):
                table.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in row))
            table.move_cursor(row=min(at, max(table.row_count - 1, 0)))

    def action_show(self, name: str) -> None:
        """Show that table."""
        self.query_one("#tabs", TabbedContent).active = name
        self.query_one(f"#{name}-table", DataTable).focus()
