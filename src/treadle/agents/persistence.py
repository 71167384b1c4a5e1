"""The store of agents: `PersistenceAPI` over the kernel, blocking, thread-safe, one object per process or per agent.

store = open_persistence("postgresql://...")  # or MemoryStore(), SqliteStore("work.db")
task = store.claim_task(["billing.ProcessPayment"])
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from treadle.agents.connection import LEASE_FOR, Connection, on_loop
from treadle.agents.entities import (
    MANAGED_BY,
    STORED_SERVER_STATES,
    HandlerRegistration,
    LockDefinition,
    LockMetaData,
    RunnerDefinition,
    ServerDefinition,
    StepDefinition,
    TaskDefinition,
    TaskState,
    runner_of,
    server_of,
    step_of,
    task_of,
    with_kept,
)
from treadle.agents.modules import check_registration
from treadle.api.tasks import TaskSpec
from treadle.evaluator import StepRow
from treadle.evaluator.draft import task_id_of
from treadle.kernel.core import STORE_TIMEOUT
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Seen, Unit
from treadle.model.errors import InvalidInput, InvalidPayload, Refused, RunNotFound, TaskNotFound, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.names import DEFAULT_LIST, HANDLER, short_name
from treadle.model.outcomes import Failed, Outcome, Problem, Released, Succeeded
from treadle.model.runs import Run
from treadle.model.tasks import Preclaimed, Server, Task
from treadle.model.values import BlobRef, Json, decode, encode, unreadable_json
from treadle.settings import Settings

_PAGE = 1000
_LIMIT = 2**31


class Persistence(Connection):
    """The store of an agent: tasks, steps, runs, locks, servers and handler registrations."""

    @on_loop
    async def claim_task(self, task_names: list[str], task_list: str = DEFAULT_LIST) -> TaskDefinition | None:
        """Atomically move the oldest pending task of those names to RUNNING and return it; None if there is none.

        A short name also matches qualified tasks. No two callers, in any process, receive the same task. This object remembers
        the claim and settles under it; the claim expires after two minutes, unless `extend_task` extends it.
        """
        wanted = set(task_names)

        def matches(kind: str, name: str) -> bool:
            return kind == HANDLER and (name in wanted or short_name(name) in wanted)

        for task in await self.claim_where(matches, task_list, 1):
            return await self._shown(task)
        return None

    @on_loop
    async def extend_task(self, task_id: str, duration_ms: int = LEASE_FOR) -> bool:
        """Extend the claim on a task claimed here to that duration from now; False if the claim was lost."""
        task_id = id_of(task_id)
        held = self.claims.get(task_id)
        if held is None:
            return False
        return task_id in await self.kernel.store.tasks.extend([Renewal(held.claim)], duration_ms)

    @on_loop
    async def get_task(self, task_id: str) -> TaskDefinition | None:
        """Return the task in any state."""
        try:
            return await self._shown(await self.engine.kernel.reads.get_task(id_of(task_id)))
        except (TaskNotFound, InvalidInput):
            return None

    def get_pending_tasks(self, task_list: str = DEFAULT_LIST) -> list[TaskDefinition]:
        """Return up to 1000 tasks of the list that wait to be claimed, newest first."""
        return self.run(self._list(task_list=task_list, states=(TaskState.PENDING,)))

    def get_tasks_by_state(self, state: str) -> list[TaskDefinition]:
        """Return up to 1000 tasks in that state, newest first."""
        return self.run(self._list(states=(state,)))

    def get_tasks_by_facet(self, name: str) -> list[TaskDefinition]:
        """Return tasks of that qualified name."""
        return self.run(self._list(name=name))

    @on_loop
    async def get_task_for_step(self, step_id: str) -> TaskDefinition | None:
        """Return the latest task of the step."""
        row = await self.find_step_row(step_id)
        task = None if row is None else await self.kernel.store.tasks.find(row.task_id or task_id_of(row))
        return None if task is None else await self._shown(task)

    def save_task(self, task: TaskDefinition) -> None:
        """Store a new task under its `uuid` (any text; `task.uuid` becomes the id), or another state of a stored one.

        A new task may be pending, running (claimed by this object), completed or failed. A stored one can be canceled, and ended
        or released under the claim of this object; a finished one stays unchanged. Raises `Refused` for the end of a task that
        this object does not hold, for states that only the engine may set, and for a second live task of a step.
        """
        ends = (TaskState.COMPLETED, TaskState.FAILED)
        stored = None if not task.uuid else self.get_task(task.uuid)
        if stored is None:
            check_payload(task.data)
            if task.state not in (TaskState.PENDING, TaskState.RUNNING, *ends):
                raise Refused(f"A new task cannot be {task.state}; it is pending, running, completed or failed.")
            task.uuid = self.run(self._create(task))
            begun = task.state != TaskState.PENDING
            stored = TaskDefinition(task.uuid, task.name, state=TaskState.RUNNING if begun else TaskState.PENDING)
        if stored.state in (*ends, TaskState.IGNORED, TaskState.CANCELED, task.state):
            return
        held = self.claims.get(stored.uuid)
        if task.state == TaskState.CANCELED:
            self.run(self.engine.cancel(stored.uuid, actor=self.owner_id))
        elif task.state == TaskState.PENDING and held is not None:
            self.run(self.release(held, Released.by_holder("released by its agent", held.claim_version)))
        elif task.state not in ends:
            raise Refused(f"A task that is {stored.state} cannot be made {task.state}; claim it, or cancel or retry it.")
        elif not self.run(self._end(stored.uuid, _outcome(task))):
            raise Refused(f"The task {task.uuid} is not held by this object: claim it with claim_task first.")

    async def _create(self, task: TaskDefinition) -> str:
        """Insert the task; if it has begun, as claimed by this object."""
        task_id = None if not task.uuid else id_of(task.uuid)
        row = await self.find_step_row(task.step_id)
        current = None if row is None else await self.kernel.store.tasks.find(row.task_id or task_id_of(row))
        spec = TaskSpec(
            name=task.name,
            payload=with_kept(task),
            task_list=task.task_list_name,
            id=task_id,
            unique_key=None if row is None else f"step {row.id}",
            created_by=self.owner_id,
        )
        new, blobs = self.kernel.queue.make(spec)
        if task.state != TaskState.PENDING:
            new = msgspec.structs.replace(new, preclaimed=Preclaimed(self.owner_id, LEASE_FOR))
        answer = None
        if current is None or current.finished:
            answer = await self.kernel.committer.submit(Unit(tasks=(new,), rows=blobs), STORE_TIMEOUT)
        if answer is None or new.unique_key in answer.existing:
            raise Refused(f"The step {task.step_id} has a live task; a second one is not stored.", code="step_has_task")
        if new.preclaimed is not None:
            stored = await self.engine.kernel.reads.get_task(new.id)
            if stored.owner_id != self.owner_id:
                raise Refused(f"{task.name} is paused or limited, so the task {new.id} was stored as pending.")
            self.claims[stored.id] = stored
        return new.id

    def complete_task(self, task_id: str, result: dict[str, Json] | None = None) -> bool:
        """Complete a task that was claimed here; False if the claim was lost."""
        return self.run(self._end(task_id, Succeeded(dict(result or {}))))

    def fail_task(self, task_id: str, message: str, *, code: str = "failed") -> bool:
        """Fail a task that was claimed here; False if the claim was lost."""
        return self.run(self._end(task_id, Failed(Problem(code, message))))

    @on_loop
    async def retry_task(self, task_id: str, *, actor: str = "operator") -> None:
        """Retry as an operator: a failed task of a run retries its step, any other failed task becomes pending."""
        task = await self.engine.kernel.reads.get_task(task_id)
        if task.run_id is not None and task.step_id is not None:
            await self.engine.kernel.runs.retry(task.run_id, task.step_id, actor=actor)
        else:
            await self.engine.retry(task_id, actor=actor)

    async def _end(self, task_id: str, outcome: Outcome) -> bool:
        held = self.claims.pop(id_of(task_id), None)
        return held is not None and await self.settle(held, outcome)

    async def _list(self, **which: Any) -> list[TaskDefinition]:
        return [await self._shown(task) for task in await self.engine.kernel.reads.list_tasks(limit=_PAGE, **which)]

    async def _shown(self, task: Task) -> TaskDefinition:
        try:
            return task_of(task, await self.whole_payload_of(task))
        except UnreadableValue as error:
            return task_of(task, unreadable_json(error))

    # steps and runs

    @on_loop
    async def get_step(self, step_id: str) -> StepDefinition | None:
        """Return the step."""
        row = await self.find_step_row(step_id)
        return None if row is None else await self._step(row)

    def step_exists(self, step_id: str) -> bool:
        """Whether the step exists."""
        return self.get_step(step_id) is not None

    @on_loop
    async def get_steps_by_workflow(self, workflow_id: str) -> list[StepDefinition]:
        """Return all steps and blocks of the run, in program order; none of an unknown run."""
        try:
            steps = await self.kernel.run_reads.list_steps(workflow_id)
        except (RunNotFound, InvalidInput):
            return []
        return [await self._step(step.row) for step in steps]

    def get_steps_by_state(self, workflow_id: str, state: str) -> list[StepDefinition]:
        """Return the steps of the run in that state."""
        return [step for step in self.get_steps_by_workflow(workflow_id) if step.state == state]

    def get_steps_by_container(self, workflow_id: str, container_id: str) -> list[StepDefinition]:
        """Return the steps of the run directly below that step or block."""
        return [step for step in self.get_steps_by_workflow(workflow_id) if step.container_id == container_id]

    def get_workflow_root(self, workflow_id: str) -> StepDefinition | None:
        """Return the root step of the run."""
        return next((step for step in self.get_steps_by_workflow(workflow_id) if step.container_id is None), None)

    @on_loop
    async def get_runner(self, runner_id: str) -> RunnerDefinition | None:
        """Return the run."""
        try:
            return await self._runner(await self.engine.kernel.runs.get_run(runner_id))
        except (RunNotFound, InvalidInput):
            return None

    @on_loop
    async def get_runners_by_state(self, state: str) -> list[RunnerDefinition]:
        """Return up to 1000 runs in that state, newest first."""
        return [await self._runner(run) for run in await self.kernel.run_reads.list_runs(states=(state,), limit=_PAGE)]

    @on_loop
    async def get_step_logs(self, step_id: str) -> list[dict[str, Any]]:
        """Return the log lines of the step's latest task, oldest first."""
        row = await self.find_step_row(step_id)
        lines = [] if row is None else await self.kernel.store.log.list_lines(row.task_id or task_id_of(row), _PAGE)
        return [
            {
                "time": line.at,
                "level": line.level,
                "source": line.source,
                "message": line.message,
                "details": line.public_details or None,
            }
            for line in lines
        ]

    # servers

    def save_server(self, server: ServerDefinition) -> None:
        """Insert or update the server; its `ping_time` becomes now."""
        self.run(self.kernel.store.servers.save(_stored(server, self.kernel.settings.namespace)))

    def get_server(self, server_id: str) -> ServerDefinition | None:
        """Return the server."""
        return next((server for server in self.list_servers() if server.uuid == server_id), None)

    @on_loop
    async def list_servers(self) -> list[ServerDefinition]:
        """Return all servers, newest first."""
        return [server_of(server) for server in await self.kernel.reads.list_servers()]

    @on_loop
    async def ping_server(self, server_id: str) -> bool:
        """Set its `ping_time` to now; False if there is no such server."""
        for server in await self.kernel.store.servers.list_all(self.kernel.settings.namespace):
            if server.id == server_id:
                await self.kernel.store.servers.save(server)
                return True
        return False

    # handler registrations

    def save_handler_registration(self, registration: HandlerRegistration) -> None:
        """Insert the registration, or replace the one of that facet."""
        check_registration(registration)
        self.run(self.kernel.store.operators.save_handler(self.kernel.settings.namespace, registration))

    register_handler = save_handler_registration

    def get_handler_registration(self, facet_name: str) -> HandlerRegistration | None:
        """Return the registration of exactly that name."""
        return next(
            (registration for registration in self.list_handler_registrations() if registration.facet_name == facet_name), None
        )

    def list_handler_registrations(self) -> list[HandlerRegistration]:
        """Return all registrations, by name."""
        return self.run(self.kernel.store.operators.list_handlers(self.kernel.settings.namespace))

    def delete_handler_registration(self, facet_name: str) -> bool:
        """Delete the registration; False if there was none."""
        return self.run(self.kernel.store.operators.delete_handler(self.kernel.settings.namespace, facet_name))

    # locks

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        """Acquire the lock if it is free or expired; never waits."""
        return self._keep_lock(key, self.run(self.locks.acquire(key, duration_ms, None if meta is None else asdict(meta))))

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        """Extend the lock to that duration from now; False if this object no longer holds it."""
        held = self._held_locks.get(key)
        return held is not None and self._keep_lock(key, self.run(self.locks.extend(held, duration_ms)))

    def release_lock(self, key: str) -> bool:
        """Release the lock; False if this object no longer held it."""
        held = self._held_locks.pop(key, None)
        return held is not None and self.run(self.locks.release(held))

    def check_lock(self, key: str) -> LockDefinition | None:
        """Return the lock, if it is held."""
        lock = self.run(self.locks.find(key))
        if lock is None:
            return None
        acquired_at, expires_at, details = lock
        names = {field.name for field in fields(LockMetaData)}
        meta = LockMetaData(**{name: value for name, value in details.items() if name in names})
        return LockDefinition(key, acquired_at, expires_at, meta)

    def _keep_lock(self, key: str, lock: Seen | None) -> bool:
        if lock is not None:
            self._held_locks[key] = lock
        return lock is not None

    async def _step(self, row: StepRow) -> StepDefinition:
        return step_of(row, await self._plain(row.params), await self._plain(row.returns))

    async def _plain(self, attributes: dict[str, Any]) -> dict[str, Json]:
        """Return a copy of the attributes with their large values."""
        wanted = [value.digest for value in attributes.values() if isinstance(value, BlobRef)]
        blobs = await self.kernel.value_store.load(wanted) if wanted else {}
        whole = {name: blobs[value.digest] if isinstance(value, BlobRef) else value for name, value in attributes.items()}
        copy: dict[str, Json] = decode(encode(whole, "attributes", _LIMIT))
        return copy

    async def _runner(self, run: Run) -> RunnerDefinition:
        return runner_of(run, await self.engine.kernel.runs.inputs(run), await self.engine.kernel.runs.outputs(run))


PersistenceAPI = Persistence
"""The name in the specification."""


class MemoryStore(Persistence):
    """A store in memory, private to this object."""

    def __init__(self, *, settings: Settings | None = None) -> None:
        super().__init__("memory://", settings=settings)


class SqliteStore(Persistence):
    """A store in a file, shared by the processes of one machine."""

    def __init__(self, path: str | Path = "treadle.db", *, settings: Settings | None = None) -> None:
        super().__init__(f"sqlite:///{path}", settings=settings)


class PostgresStore(Persistence):
    """A store in PostgreSQL, shared by any number of machines."""

    def __init__(self, url: str, *, settings: Settings | None = None) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise InvalidInput("A PostgreSQL store has a URL like postgresql://user@host/database.")
        super().__init__(url, settings=settings)


def open_persistence(url: str | None = None, *, settings: Settings | None = None) -> Persistence:
    """Open the store with that URL; by default `TREADLE_STORE`, else `sqlite:///treadle.db`."""
    return Persistence(url, settings=settings)


def id_of(text: str) -> str:
    """Return the id of a record that another system named; a name that is not a UUID has an id derived from it."""
    try:
        return parse_id(text)
    except InvalidInput:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"treadle:{text}"))


def _stored(server: ServerDefinition, namespace: str) -> Server:
    return Server(
        id=server.uuid,
        name=server.server_name or socket.gethostname(),
        host=",".join(server.server_ips) or socket.gethostname(),
        pid=os.getpid(),
        version=MANAGED_BY + server.manager if server.manager else "",
        state=STORED_SERVER_STATES.get(server.state, server.state),
        handlers=list(server.handlers),
        task_lists=["default"],
        started_at=server.start_time,
        handled=sum(count.handled + count.not_handled for count in server.handled),
        failed=sum(count.not_handled for count in server.handled),
        server_group=server.server_group,
        service_name=server.service_name,
        topics=list(server.topics),
        counts={count.handler: [count.handled, count.not_handled] for count in server.handled},
        error=None if server.error is None else msgspec.json.encode(server.error).decode(),
        namespace=namespace,
    )


def _outcome(task: TaskDefinition) -> Outcome:
    if task.state == TaskState.COMPLETED:
        return Succeeded()
    error = task.error or {}
    return Failed(Problem(str(error.get("code", "failed")), str(error.get("message", "failed"))))


def check_payload(payload: object) -> None:
    """Reject a payload with keys that start with an underscore, which are reserved for runners."""
    if isinstance(payload, dict):
        for key in payload:
            if isinstance(key, str) and key.startswith("_"):
                raise InvalidPayload(
                    f"The payload key {key!r} starts with an underscore; such keys are added by runners. Rename it."
                )
