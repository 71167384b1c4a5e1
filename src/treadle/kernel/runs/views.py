"""The rows of runs that the advancer works on: loaded as the evaluator asks for them, and cached between advances."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.evaluator import Changes, Errored, Event, Finished, Limits, Need, RunRef, StepRow, View, advance, steps_of
from treadle.kernel.runs.decide import inbox_event
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.step_codec import load_step
from treadle.kernel.store.ports import RunStore
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import StoreError
from treadle.model.runs import Run
from treadle.model.states import RunState

ENDS = (Finished, Errored)

INBOX_LIMIT = 250
"""Limit on the inboxes that one advance reads."""

_RUNS = 2000
_ROWS_OF_RUN = 40_000
"""Limit on the cached rows of one run. Of a larger run, open rows and their children are cached if they are not more than half as
many: so the cache is searched for them only once in many advances."""
_ROWS = 100_000


@dataclass(slots=True)
class Known:
    """A run with the steps loaded so far, as of the run's version."""

    run: Run
    view: View
    inbox: dict[str, Event] = field(default_factory=dict)
    """Events found in inboxes, by step."""

    @property
    def ref(self) -> RunRef:
        return RunRef(id=self.run.id, workflow=self.run.workflow, rows=self.run.steps)


class EvaluatorFailed(Exception):
    """Wraps an exception of the evaluator or its inputs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RunViews:
    """Loads and caches the runs of one process."""

    def __init__(self, store: RunStore, flows: Flows, value_store: ValueStore, limits: Limits) -> None:
        self._store = store
        self._flows = flows
        self._value_store = value_store
        self._limits = limits
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._known_rows: dict[str, int] = {}
        self._rows_in_all = 0

    async def get(self, run_id: str, *, fresh: bool) -> Known | None:
        """The cached run; with `fresh`, or for an unknown run, its row and inboxes from the store.

        The cached steps are those of the stored run as long as its version is the same.
        """
        cached = self._known.get(run_id)
        if not fresh and cached is not None:
            return cached
        run = await self._store.find_run(run_id)
        if run is None:
            return None
        known = Known(run, cached.view if cached is not None and cached.run.version == run.version else View())
        if fresh and not run.finished:
            try:
                for step in await self._store.list_inbox(run_id, INBOX_LIMIT):
                    known.inbox[step.id] = inbox_event(step.id, step.inbox or "", self._value_store)
            except StoreError:
                raise
            except Exception as error:
                raise EvaluatorFailed(error) from error
        return known

    def remember(self, known: Known) -> None:
        """Cache the run for its next advance, if it is small and unfinished."""
        run_id = known.run.id
        self.forget(run_id)
        if known.run.state != RunState.RUNNING:
            return
        if len(known.view.rows) > _ROWS_OF_RUN:
            known.view.drop_ended()
            if len(known.view.rows) > _ROWS_OF_RUN // 2:
                return
        rows = len(known.view.rows)
        self._known[run_id] = known
        self._known_rows[run_id] = rows
        self._rows_in_all += rows
        while len(self._known) > _RUNS or self._rows_in_all > _ROWS:
            self.forget(next(iter(self._known)))

    def forget(self, run_id: str) -> None:
        """Drop the cached run: someone else has changed it."""
        if self._known.pop(run_id, None) is not None:
            self._rows_in_all -= self._known_rows.pop(run_id)

    async def evaluate(self, known: Known, events: Sequence[Event]) -> Changes:
        """Evaluate the events, loading the rows that the evaluator asks for."""
        program = await self._flows.program(known.run.flow_id)
        unseen = [step_id for step_id in steps_of(events, self._limits) if step_id not in known.view.rows]
        if unseen:
            await self._load(known, Need(), unseen)
        while isinstance(result := advance(program, known.ref, known.view, events, self._limits), Need):
            await self._load(known, result)
        return result

    async def find_root(self, run: Run) -> StepRow | None:
        """The stored root row of the run."""
        root_id = RunRef(id=run.id, workflow=run.workflow).root_id
        return next((load_step(step, self._value_store) for step in await self._store.load_steps(run.id, rows=[root_id])), None)

    async def _load(self, known: Known, need: Need, near: Sequence[str] = ()) -> None:
        """Load the requested rows into the view."""
        view = known.view
        if near or need.rows or need.children_of:
            steps = await self._store.load_steps(known.run.id, near, need.rows, need.children_of)
            rows = [load_step(step, self._value_store) for step in steps]
            view.add(*[row for row in rows if row.id not in view.rows or view.rows[row.id] is None])
            view.add_absent(*need.rows, *near)
            self._complete(view, rows, near, need.children_of)
        if need.blobs:
            for digest, value in (await self._value_store.load(need.blobs)).items():
                view.add_blob(digest, value)

    @staticmethod
    def _complete(view: View, rows: Sequence[StepRow], near: Sequence[str], asked: Sequence[str]) -> None:
        """Mark parents whose children are all loaded: those asked for, and everything near except foreach blocks."""
        complete: dict[str, list[StepRow]] = {row_id: [] for row_id in asked}
        by_id = {row.id: row for row in rows}
        for step_id in near:
            row = by_id.get(step_id)
            while row is not None and row.id not in complete:
                if row.total is None:
                    complete[row.id] = []
                row = by_id.get(row.parent_id or "")
        for row in rows:
            if row.parent_id in complete:
                complete[row.parent_id].append(row)
        for row_id, children in complete.items():
            view.add_children(row_id, children)
