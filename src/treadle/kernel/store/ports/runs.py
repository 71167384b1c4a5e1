"""The port for runs: runs, their steps, flows, and large values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import LATEST_FAILURE, FailedRun, OpenWork, RunFilter, StepTask
from treadle.model.runs import Flow, FlowVersion, Run, Step


class RunStore(StoreClock, Protocol):
    """Reads of runs, steps, flows and large values. Units write them (`TaskStore.commit`)."""

    async def find_run(self, run_id: str) -> Run | None:
        """Return the run."""

    async def find_last_link(self, chain_id: str) -> Run | None:
        """Return the last run of the chain; None if its first run was not continued."""

    async def find_finished_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Return those of the runs that are finished."""

    async def list_runs(self, which: RunFilter, limit: int) -> list[Run]:
        """Return up to `limit` runs, newest first (by creation time, then id)."""

    async def list_failed_runs(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        """Return up to `limit` runs that are failed and ended after the instant, latest first, from the one next to `before`."""

    async def count_runs(self, namespace: str) -> dict[str, int]:
        """Count the runs of the namespace by state."""

    async def count_matching_runs(self, which: RunFilter) -> dict[str, int]:
        """Count the runs that match the filter, by state."""

    async def count_doing(self, which: RunFilter, limit: int) -> dict[str, int]:
        """Count the newest `limit` unfinished runs that match the filter, by what they are doing (`model.activity`)."""

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        """Return the live tasks of the runs, counted by run and activity; in no order."""

    async def list_step_tasks(self, step_ids: Sequence[str]) -> list[StepTask]:
        """Return the live tasks of the steps; in no order."""

    async def list_children(self, run_id: str) -> list[str]:
        """Return the ids of the unfinished runs that steps of this run started (runs with a `parent_step_id`).

        Includes runs started by such a child that has finished meanwhile, at any depth.
        """

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        """Return steps of the run, each once, in no order.

        These are the steps `near`, their ancestors, and all children of both that are not items of a foreach; the steps
        `rows`; and all children of the steps `children_of`.
        """

    async def list_inbox(self, run_id: str, limit: int) -> list[Step]:
        """Return up to `limit` steps of the run with a non-empty inbox."""

    async def list_steps(self, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        """Return a page of the run's steps in order of id."""

    async def find_step(self, step_id: str) -> Step | None:
        """Return the step with that id, of any run."""

    async def find_flow(self, flow_id: str) -> Flow | None:
        """Return the flow with that digest."""

    async def publish_flow(self, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        """Publish the flow as the next version of the name; if it already is the newest version, change nothing."""

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        """Return a version of a published flow, the newest by default."""

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        """Return all versions of one name, or the newest version of every name."""

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the large values that exist, by digest."""
