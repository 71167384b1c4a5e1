"""A run while it runs: on a terminal a table of its steps, elsewhere a line for each change; all on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.cli.session import Session
from treadle.cli.show_run import doing, is_shown, steps_table
from treadle.cli.words import plain
from treadle.model.errors import RunCanceled, RunFailed
from treadle.model.runs import Run
from treadle.model.tasks import LogLine, Task
from treadle.model.values import Json
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from treadle.kernel.run_reads import ShownStep

_LOOK_EVERY = 0.15
_MOST_STEPS = 300
"""A run with more is shown in numbers."""
_MOST_ROWS = 40
_NUMBERS_EVERY = 2.0


@dataclass
class Scene:
    """The run as last looked at."""

    run: Run | None = None
    steps: list[ShownStep] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    """Live tasks by step."""
    now: int = 0


class Watcher:
    """Shows a run until it ends or `stop` is set."""

    def __init__(self, session: Session, engine: Engine, run_id: str) -> None:
        self._session, self._engine, self._run_id = session, engine, run_id
        self._scene = Scene()
        self._told: dict[str, str] = {}
        self._began = engine.clock.monotonic()
        self._numbers_at = 0.0
        self._console = _console()

    async def watch(self, stop: asyncio.Event) -> dict[str, Json] | RunFailed | RunCanceled | None:
        """The outputs, or how the run failed; None if it was told to stop first."""
        result = asyncio.ensure_future(self._engine.run_result(self._run_id))
        stopping = asyncio.ensure_future(stop.wait())
        heard = self._engine.run_kernel.advancer.on_line
        heard.append(self._hear)
        try:
            with self._live():
                while not (result.done() or stopping.done()):
                    await self._look()
                    await asyncio.wait([result, stopping], timeout=_LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                await self._look()
        finally:
            heard.remove(self._hear)
            stopping.cancel()
            result.cancel()
            await asyncio.gather(result, stopping, return_exceptions=True)
        if result.cancelled():
            return None
        error = result.exception()
        if isinstance(error, RunFailed | RunCanceled):
            return error
        returned: dict[str, Json] = result.result()
        return returned

    async def _look(self) -> None:
        if self._session.json:
            return
        reads, before = self._engine.run_reads, self._scene.run
        run = await reads.get_run(self._run_id)
        if before is None or before.version != run.version:
            self._scene.steps = await reads.list_steps(run.id) if run.steps <= _MOST_STEPS else []
        self._scene.tasks = {task.step_id or "": task for task in await reads.list_live_tasks(run.id, 100)}
        self._scene.run, self._scene.now = run, await self._engine.store.now()
        if not self._console.is_terminal:
            if before is None:
                self._say(f"run {run.id} of {run.workflow}")
            self._tell()

    def _tell(self) -> None:
        """A line for each step whose state has changed."""
        run = self._scene.run
        if run is not None and run.steps > _MOST_STEPS:
            if self._elapsed() - self._numbers_at >= _NUMBERS_EVERY or run.finished:
                self._numbers_at = self._elapsed()
                self._say(f"{run.steps} steps so far, {len(self._scene.tasks)} or more tasks to do")
            return
        ended = sorted(
            (each for each in self._scene.steps if each.row.is_terminal), key=lambda each: (each.updated_at, -each.row.depth)
        )
        for shown in [*(each for each in self._scene.steps if not each.row.is_terminal), *ended]:
            row = shown.row
            said = ", ".join(part for part in (row.status, doing(shown, self._scene.tasks.get(row.id))) if part)
            if is_shown(row) and self._told.get(row.id) != said:
                self._told[row.id] = said
                self._say(f"{row.path}{f' ({row.facet})' if row.facet else ''}: {said}")

    def _hear(self, line: LogLine) -> None:
        """What the flow logs, as it comes."""
        if line.run_id == self._run_id and not self._session.json:
            self._say(f"log {line.message}")

    def _say(self, text: str) -> None:
        self._console.print(plain(f"{self._elapsed():6.1f} s  {text}"), soft_wrap=True)

    def _elapsed(self) -> float:
        return self._engine.clock.monotonic() - self._began

    @contextmanager
    def _live(self) -> Iterator[None]:
        if self._session.json or not self._console.is_terminal:
            yield
            return
        from rich.live import Live

        with Live(get_renderable=self._picture, console=self._console, refresh_per_second=8):
            yield

    def _picture(self) -> RenderableType:
        from rich.console import Group

        scene = self._scene
        if scene.run is None:
            return plain("")
        head = plain(f"{scene.run.workflow}  {scene.run.state}  {scene.run.id}  {self._elapsed():.1f} s", "bold")
        if scene.run.steps > _MOST_STEPS:
            return Group(head, plain(f"  {scene.run.steps} steps so far, {len(scene.tasks)} or more tasks to do"))
        rows = [shown for shown in scene.steps if is_shown(shown.row)]
        hidden = 0
        if len(rows) > _MOST_ROWS:
            kept = [shown for shown in rows if shown.row.status != "completed"][-_MOST_ROWS:]
            hidden, rows = len(rows) - len(kept), kept
        table = steps_table(rows, scene.tasks, with_ids=False)
        return Group(head, table, plain(f"  and {hidden} more", "dim")) if hidden else Group(head, table)


def _console() -> Console:
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Console(stderr=True, markup=False, highlight=False, emoji=False, width=240)
