"""Views of the demo: a live table on a terminal, plain lines elsewhere, only the result as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from treadle.interfaces.cli.format import grid, plain, state
from treadle.interfaces.cli.session import Session
from treadle.model.clock import Clock
from treadle.model.tasks import Move, Task
from treadle.model.values import Json, decode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Scene = tuple[dict[str, str], list[Task], dict[str, int], str]
"""Labels by task id, the tasks, pids by owner id, and the workflow in a few words."""

_BAR = 24


class View:
    """Shows the story; this one shows nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()

    def elapsed(self) -> float:
        """Seconds since the story began."""
        return self._clock.monotonic() - self._began

    def say(self, text: str) -> None:
        """Print a sentence of the story."""

    def note(self, text: str) -> None:
        """Print a detail, for views without a live table."""

    @contextmanager
    def live(self, scene: Callable[[], Scene]) -> Iterator[None]:
        """Show the scene as it changes."""
        yield


class PlainView(View):
    """Lines with the elapsed time in front."""

    def __init__(self, clock: Clock, console: Console) -> None:
        super().__init__(clock)
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(plain(f"{self.elapsed():5.1f} s  {text}"), soft_wrap=True)

    def note(self, text: str) -> None:
        self.say(f"  {text}")


class LiveView(View):
    """A live table with progress bars, with the story above it."""

    def __init__(self, clock: Clock, console: Console) -> None:
        super().__init__(clock)
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(plain(f"{self.elapsed():5.1f} s  {text}", "bold"))

    @contextmanager
    def live(self, scene: Callable[[], Scene]) -> Iterator[None]:
        from rich.live import Live

        with Live(get_renderable=lambda: _picture(*scene()), console=self._console, refresh_per_second=8, transient=True):
            yield


def make_view(session: Session, clock: Clock) -> View:
    """Choose the view for the output."""
    if session.json:
        return View(clock)
    if session.console.is_terminal:
        return LiveView(clock, session.console)
    return PlainView(clock, session.console)


def _picture(labels: dict[str, str], tasks: list[Task], pids: dict[str, int], order: str) -> RenderableType:
    from rich.console import Group

    table = grid("task", "state", "progress", ">worker", ">attempt", "")
    for task in tasks:
        done = 1.0 if task.finished else (decode(task.progress) or {}).get("fraction", 0.0) if task.owner_id else 0.0
        filled = round(done * _BAR)
        bar = plain("━" * filled, "green" if task.finished else "cyan") + plain("━" * (_BAR - filled), "grey35")
        note = (decode(task.error) or {}).get("message", "") if not task.finished else ""
        note = note or ("taken over" if task.takeovers and task.owner_id and not task.finished else "")
        worker = str(pids.get(task.owner_id or "", ""))
        table.add_row(plain(labels[task.id]), state(task.shown_state), bar, worker, str(task.attempt), plain(note, "yellow"))
    return Group(table, plain(f" {order}"))


def summary(
    labels: dict[str, str],
    tasks: list[Task],
    moves: dict[str, list[Move]],
    pids: dict[str, int],
    checks: list[tuple[str, bool]],
    took: float,
    outputs: dict[str, Json],
) -> RenderableType:
    """The tasks with their workers, and whether each claim of the story holds."""
    from rich.console import Group

    table = grid("task", "state", ">worker", ">attempts", "its log")
    for task in tasks:
        history = ", ".join(move.move for move in moves[task.id])
        worker = str(pids.get(task.owner_id or "", ""))
        table.add_row(plain(labels[task.id]), state(task.state), worker, str(task.attempt), plain(history))
    told = plain(f"Outputs of the order: {json.dumps(outputs)}\n")
    claims = [plain(f"{'✔' if holds else '✘'} {claim}", "green" if holds else "bold red") for claim, holds in checks]
    return Group(
        table, told, *claims, plain(f"\nThat took {took:.1f} s. Next: `treadle --help`, and the README for your own handlers.")
    )
