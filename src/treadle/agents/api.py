"""The store interface of agents. Every method blocks and is thread-safe; records are copies."""

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
        """Atomically move the oldest pending task of those names to RUNNING and return it; None if there is none.

        A short name also matches qualified tasks. No two callers, in any process, receive the same task. This object remembers
        the claim and settles under it; the claim expires after two minutes, unless `extend_task` extends it.
        """

    def extend_task(self, task_id: str, duration_ms: int = 120_000) -> bool:
        """Extend the claim on a task claimed here to that duration from now; False if the claim was lost."""

    def get_task(self, task_id: str) -> TaskDefinition | None:
        """Return the task in any state."""

    def get_pending_tasks(self, task_list: str = "default") -> list[TaskDefinition]:
        """Return up to 1000 tasks of the list that wait to be claimed, newest first."""

    def get_tasks_by_state(self, state: str) -> list[TaskDefinition]:
        """Return up to 1000 tasks in that state, newest first."""

    def get_task_for_step(self, step_id: str) -> TaskDefinition | None:
        """Return the latest task of the step."""

    def save_task(self, task: TaskDefinition) -> None:
        """Store a new task in any state but ignored and canceled; or end, release or cancel a stored one."""

    # steps and runs

    def get_step(self, step_id: str) -> StepDefinition | None:
        """Return the step."""

    def step_exists(self, step_id: str) -> bool:
        """Whether the step exists."""

    def get_steps_by_workflow(self, workflow_id: str) -> list[StepDefinition]:
        """Return all steps and blocks of the run, in program order."""

    def get_steps_by_state(self, workflow_id: str, state: str) -> list[StepDefinition]:
        """Return the steps of the run in that state."""

    def get_steps_by_container(self, workflow_id: str, container_id: str) -> list[StepDefinition]:
        """Return the steps of the run directly below that step or block."""

    def get_workflow_root(self, workflow_id: str) -> StepDefinition | None:
        """Return the root step of the run."""

    def get_runner(self, runner_id: str) -> RunnerDefinition | None:
        """Return the run."""

    def get_runners_by_state(self, state: str) -> list[RunnerDefinition]:
        """Return up to 1000 runs in that state, newest first."""

    def get_step_logs(self, step_id: str) -> list[dict[str, Any]]:
        """Return the log lines of the step's latest task, oldest first."""

    # locks

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        """Acquire the lock if it is free or expired; never waits."""

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        """Extend the lock to that duration from now; False if this object no longer holds it."""

    def release_lock(self, key: str) -> bool:
        """Release the lock; False if this object no longer held it."""

    def check_lock(self, key: str) -> LockDefinition | None:
        """Return the lock, if it is held."""

    # servers

    def save_server(self, server: ServerDefinition) -> None:
        """Insert or update the server; its `ping_time` becomes now."""

    def get_server(self, server_id: str) -> ServerDefinition | None:
        """Return the server."""

    def list_servers(self) -> list[ServerDefinition]:
        """Return all servers, newest first."""

    def ping_server(self, server_id: str) -> bool:
        """Set its `ping_time` to now; False if there is no such server."""

    # handler registrations

    def save_handler_registration(self, registration: HandlerRegistration) -> None:
        """Insert the registration, or replace the one of that facet."""

    def get_handler_registration(self, facet_name: str) -> HandlerRegistration | None:
        """Return the registration of exactly that name."""

    def list_handler_registrations(self) -> list[HandlerRegistration]:
        """Return all registrations, by name."""

    def delete_handler_registration(self, facet_name: str) -> bool:
        """Delete the registration; False if there was none."""
