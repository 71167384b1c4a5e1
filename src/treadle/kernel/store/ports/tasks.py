"""The ports for tasks: the queue and its one write, reads of tasks, dead letters, and wake-up signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    Extension,
    LaneDepth,
    Renewal,
    TaskFilter,
    Woken,
)
from treadle.kernel.store.units import Answer, Unit
from treadle.model.names import Lane
from treadle.model.tasks import Task

LATER = 0
"""A marker among the lane ids of a signal: no task became ready, but a task was stored that will be due later."""

STREAM = -2
"""A marker among the lane ids of a signal: no task became ready, but entries were appended to a stream."""

SERVERS = -3
"""A marker among the lane ids of a signal: a server has started or died."""

CHANGED = -4
"""A marker among the lane ids of a signal: no task became ready, but something else was stored, e.g. the end of a task."""


class TaskStore(StoreClock, Protocol):
    """Tasks: claim them, wake them, commit units, read them."""

    parallel_commits: int
    """The number of concurrent `commit` calls that the store benefits from: 1 for a single writer."""

    async def lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """Return the ids of the lanes; create missing lanes. Lanes are never removed, and an id never changes."""

    async def list_lanes(self) -> dict[int, Lane]:
        """Return all lanes by id."""

    async def claim(self, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        """Atomically take up to `limit` ready tasks of those lanes, raising each claim version by one.

        Each call takes from one lane: the first task of that lane has the best priority (smaller first), then the
        oldest due time. Fewer than `limit` tasks does not mean that the lanes are empty; no task means that none was
        ready, or that other callers were taking them. No two callers receive the same (task, version). A task with a
        `wake_at`, an owner or a hold is never taken, nor is a task of a paused lane; a lane with a rate yields at most as
        many tasks as it has tokens (`next_token_for`). `claimed_at`, `heartbeat_at` and `progress_at` become now, and
        `wake_at` the end of the lease. A claim writes no row to the log. The engine releases the tasks of a caller that is
        canceled during the call.
        """

    async def claim_of_run(self, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int) -> list[str]:
        """Take up to `limit` ready tasks of that run and kind, as `claim` takes those of a lane; return their ids.

        Skips paused lanes; ignores the rates of lanes.
        """

    async def wake(self, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        """Make up to `limit` tasks with a past `wake_at` ready: a sleep, backoff or delay is over, or a lease expired.

        An expired lease counts as a takeover, raises `attempt` if the task was executing (state pending), and logs a
        move `expire`. The claim version stays, so the former holder cannot settle (no owner matches) and cannot be
        mistaken for the next one. With `expire_leases` false, the call leaves owned tasks alone and reports them in
        `overdue` (D6). Concurrent callers never wake the same task twice. With `find_ready`, the call also reports in `ready`
        whether any task was ready before it, also one of a paused lane: the signal of that task may have been lost.
        """

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """Extend claims like `LeaseConnection.renew`, but never past the attempt's timeout either.

        For holders with attempts that no other process ends. A claim past one of these limits expires immediately.
        Returns the new end of each extended claim, by task id.
        """

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Apply each unit completely or not at all, independently of the others, durably, in one transaction if possible.

        - A guard that does not match changes nothing and yields `claim_lost`, as does a unit on a task that an
          earlier unit of the same call has changed.
        - Resending a committed unit (the connection died during COMMIT) yields `done` and changes nothing, for
          settlements under a `Claim` and for new tasks (by id). A repeated `Seen` unit yields `claim_lost`, because an
          operator may repeat an action only after reading again.
        - The run guard is checked first: if the run's version has moved on, the unit yields `deferred`, unless its
          claims show that it was committed before.
        - A record that is at another version yields `deferred` likewise. A unit with a new run or record that
          exists was sent before and yields `done`.
        - Messages to runs are delivered after everything else of the call.
        - A new task with an existing id or live unique key (per namespace) is not inserted; `existing` names the live one.
        - A task has at most one limit key: its own, or else its lane's. After the call, no more tasks of a key are
          admitted (the over-limit bit of `hold` is clear) than its limit allows, and the next ones in line are: by
          priority, then due time. A task without an owner that sleeps, awaits something or is paused has given up its
          slot; a task with an expired lease keeps it.
        - A unit without a guard may be refused: `BacklogFull` if its tasks raise the number of ready tasks of a lane
          above its cap, `ListDraining` if it has new tasks for a list that accepts none. Units with a guard are not.
        - A new task with an idempotency key that identifies another task (live, finished or pruned) is not inserted
          until the key expires; `same` names that task. If a task is refused for its unique key, its idempotency key
          identifies the live task.
        - If a unit raises, nothing of the call is applied: the caller sends the units one by one to find the culprit.
        """

    async def next_token_for(self, lane_ids: Sequence[int]) -> int | None:
        """Return the milliseconds until a claim may take from a lane with a rate and ready tasks; None without such a lane."""

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        """Expire the leases of owners that are known to be dead, so that the next `wake` takes over; return their number."""

    async def list_unpolled(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Return the ids of up to `limit` tasks of those lanes that await an external job and are ready to be polled."""

    async def list_failing(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Return the ids of up to `limit` tasks of those lanes that wait after an error.

        Only the 10,000 waiting tasks that are due next are looked at.
        """

    async def find_task(self, task_id: str) -> Task | None:
        """Return the task, live or finished."""

    async def find_tasks(self, task_ids: Sequence[str]) -> list[Task]:
        """Return those of the tasks that exist, live or finished."""

    async def find_unique(self, namespace: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the task list of the live task that has each of these unique keys; keys that none has are left out."""

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Return those of the tasks that are finished."""

    async def list_tasks(self, which: TaskFilter, limit: int) -> list[Task]:
        """Return up to `limit` tasks, live and finished, newest first (by creation time, then id)."""

    async def list_depths(self) -> list[LaneDepth]:
        """Return the depth of every lane that has a live task."""

    async def count_finished(self) -> dict[str, int]:
        """Count finished tasks by state, without reading a long history: numbers above 20,000 may be estimates."""


class DeadLetterStore(StoreClock, Protocol):
    """Failed tasks, for inspection and bulk operations."""

    async def list_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Return up to `limit` failed tasks, the most recent failure first (by seq, downwards from `until_seq`)."""

    async def walk_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        """Return up to `limit` failed tasks, the oldest failure first (by seq, upwards from `after_seq`)."""

    async def group_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        """Return up to `limit` groups of failed tasks by (fingerprint, error code, name), the largest first."""

    async def count_dead_letters(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        """Return the number of failed tasks, the number of them that belong to runs, and their greatest seq (0 for none)."""


class SignalStore(Protocol):
    """Wake-up signals: hints that save polling. Correctness never depends on them."""

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` (on this event loop) soon after tasks became ready in the given lanes, in this or another process.

        An empty tuple means that anything may have happened: poll all lanes. `LATER` among the ids means that a task
        was stored that will be due later; `STREAM` that entries were appended to a stream; `SERVERS` that a server has
        started or died; `CHANGED`, which only some stores send, that another process has stored something else. Returns a
        function that ends the subscription.
        """

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Signal all subscribers of this database. Called after a commit, coalesced by the caller; may be lost."""
