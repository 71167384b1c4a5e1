"""What agents ask of a store. Every method blocks, and may be called from any thread; what is read is a copy."""

from __future__ import annotations

from typing import Any, Protocol

from treadle.agents.entities import (
    HandlerRegistration,
    LockDefinition,
    LockMetaData,
    RunnerDefinition,
    ServerDefinition,
    StepDefinition,
    TaskDefinition,
)


class PersistenceAPI(Protocol):
    """The store of an agent: tasks, steps, runs, locks, servers and handler registrations."""

    # tasks

    def claim_task(self, task_names: list[str], task_list: str = "default") -> TaskDefinition | None:
        """Atomically move one pending task of those names, the oldest, to RUNNING and return it; None if there is none.

        A short name also matches qualified tasks. No two callers, in whatever process, receive the same task. The claim is
        remembered by this object, which settles under it; nobody renews it, so it is free for others after two minutes.
        """

    def get_task(self, task_id: str) -> TaskDefinition | None:
        """The task, whatever has become of it."""

    def get_pending_tasks(self, task_list: str = "default") -> list[TaskDefinition]:
        """Up to 1000 tasks of the list that wait to be claimed, newest first."""

    def get_tasks_by_state(self, state: str) -> list[TaskDefinition]:
        """Up to 1000 tasks in that state, newest first."""

    def get_task_for_step(self, step_id: str) -> TaskDefinition | None:
        """The latest task of the step."""

    def save_task(self, task: TaskDefinition) -> None:
        """Store a new task; or, for one that this object has claimed, the end that its state says."""

    # steps and runs

    def get_step(self, step_id: str) -> StepDefinition | None:
        """The step."""

    def step_exists(self, step_id: str) -> bool:
        """Whether there is such a step."""

    def get_steps_by_workflow(self, workflow_id: str) -> list[StepDefinition]:
        """All steps and blocks of the run, in the order of the program."""

    def get_steps_by_state(self, workflow_id: str, state: str) -> list[StepDefinition]:
        """Those of the run in that state."""

    def get_steps_by_container(self, workflow_id: str, container_id: str) -> list[StepDefinition]:
        """Those of the run right below that step or block."""

    def get_workflow_root(self, workflow_id: str) -> StepDefinition | None:
        """The step that stands for the whole run."""

    def get_runner(self, runner_id: str) -> RunnerDefinition | None:
        """The run."""

    def get_runners_by_state(self, state: str) -> list[RunnerDefinition]:
        """Up to 1000 runs in that state, newest first."""

    def get_step_logs(self, step_id: str) -> list[dict[str, Any]]:
        """What was written about the step's latest task, oldest first."""

    # locks

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        """Take the lock if it is free or has run out; never waits."""

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        """Hold the lock for that long from now; False if this object does not hold it any more."""

    def release_lock(self, key: str) -> bool:
        """Let the lock go; False if this object did not hold it any more."""

    def check_lock(self, key: str) -> LockDefinition | None:
        """The lock, if somebody holds it."""

    # servers

    def save_server(self, server: ServerDefinition) -> None:
        """Insert or update the server; its `ping_time` becomes now."""

    def get_server(self, server_id: str) -> ServerDefinition | None:
        """The server."""

    def list_servers(self) -> list[ServerDefinition]:
        """All servers, newest first."""

    def ping_server(self, server_id: str) -> bool:
        """Set its `ping_time` to now; False if there is no such server."""

    # handler registrations

    def save_handler_registration(self, registration: HandlerRegistration) -> None:
        """Insert the registration, or replace the one of that facet."""

    def get_handler_registration(self, facet_name: str) -> HandlerRegistration | None:
        """The registration of exactly that name."""

    def list_handler_registrations(self) -> list[HandlerRegistration]:
        """All registrations, by name."""

    def delete_handler_registration(self, facet_name: str) -> bool:
        """Remove the registration; False if there was none."""
