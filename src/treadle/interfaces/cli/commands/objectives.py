"""`treadle objectives board`: the objectives of the goal pipeline side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.api.objectives import STATUSES, BoardColumn, describe_state
from treadle.api.view import short
from treadle.interfaces.cli.format import STYLES, plain
from treadle.interfaces.cli.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.facade import Api
    from treadle.api.objectives import Objective, ObjectiveBoard


async def show_board(session: Session, _: Api, board: ObjectiveBoard) -> None:
    """Show all objectives side by side, by status."""
    session.show(board, lambda: _columns(board))


def _columns(board: ObjectiveBoard) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", expand=True)
    cells = []
    for status in STATUSES:
        column: BoardColumn = getattr(board, status)
        table.add_column(f"{status} {column.count}", ratio=1, overflow="fold", header_style=STYLES[status])
        left = column.count - len(column.objectives)
        more = [plain(f"and {left} more", "dim")] if left > 0 else []
        cells.append([*(_card(objective) for objective in column.objectives), *more])
    for row in range(max((len(cell) for cell in cells), default=0)):
        table.add_row(*(cell[row] if row < len(cell) else "" for cell in cells))
    return table


def _card(objective: Objective) -> RenderableType:
    note = short(describe_state(objective), 80)
    return plain(f"{short(objective.title, 80)}\n{objective.objective_id}" + (f"\n{note}" if note else ""))
