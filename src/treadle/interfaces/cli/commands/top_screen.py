"""The screen of `treadle top`: three tables under a headline, refreshed periodically."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from treadle.api.facade import Api
from treadle.interfaces.cli.commands.top import TABLES, Look, change, details, headline
from treadle.interfaces.cli.format import cell, plain
from treadle.model.errors import TreadleError

KEYS = """Enter  details of the row
p      pause the list or the run
r      resume it
l n w  lists, runs, workers
Space  refresh
q      quit"""


class Details(ModalScreen[None]):
    """A text over the tables, until a key is pressed."""

    CSS = "Details { align: center middle; } #details { width: 80%; height: auto; max-height: 80%; border: round; padding: 1 2; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """Build the widgets."""
        yield Static(plain(self.text), id="details")

    def on_key(self, event: Key) -> None:
        """Close it."""
        event.stop()
        self.dismiss()


class TopApp(App[None]):
    """Refreshes periodically and shows the last snapshot."""

    TITLE = "treadle top"
    CSS = "#head { height: 3; padding: 0 1; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Leave"),
        ("l", "show('lists')", "Lists"),
        ("n", "show('runs')", "Runs"),
        ("w", "show('workers')", "Workers"),
        ("p", "change('pause')", "Pause"),
        ("r", "change('resume')", "Resume"),
        ("question_mark", "keys", "Keys"),
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

    @property
    def chosen(self) -> object | None:
        """The record of the selected row."""
        name = self.query_one("#tabs", TabbedContent).active
        records, at = TABLES[name][1](self.look), self.query_one(f"#{name}-table", DataTable).cursor_row
        return records[at] if 0 <= at < len(records) else None

    async def on_data_table_row_selected(self) -> None:
        """Show the details of the selected row."""
        try:
            self.push_screen(Details(await details(self.look, self.chosen)))
        except TreadleError as error:
            self.notify(str(error), severity="error")

    async def action_change(self, act: Literal["pause", "resume"]) -> None:
        """Pause or resume the selected row."""
        try:
            self.notify(await change(self.look, self.chosen, act))
        except TreadleError as error:
            self.notify(str(error), severity="error")
        await self.action_look()

    def action_keys(self) -> None:
        """Show the keys."""
        self.push_screen(Details(KEYS))

    def action_show(self, name: str) -> None:
        """Show that table."""
        self.query_one("#tabs", TabbedContent).active = name
        self.query_one(f"#{name}-table", DataTable).focus()
