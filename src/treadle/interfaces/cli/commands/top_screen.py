"""The screen of `treadle top`: three tables under a headline, refreshed periodically."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from treadle.api.facade import Api
from treadle.interfaces.cli.commands.top import TABLES, Look, headline
from treadle.interfaces.cli.format import cell


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
                    table.add_columns(*(column.heading for column in columns))
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
        if self.look.status is None:
            return
        for name, (columns, records_of) in TABLES.items():
            table = self.query_one(f"#{name}-table", DataTable)
            at = table.cursor_row
            table.clear()
            for record in records_of(self.look):
                table.add_row(*(cell(column, column.value(record), self.look.status.now) for column in columns))
            table.move_cursor(row=min(at, max(table.row_count - 1, 0)))

    def action_show(self, name: str) -> None:
        """Show that table."""
        self.query_one("#tabs", TabbedContent).active = name
        self.query_one(f"#{name}-table", DataTable).focus()
