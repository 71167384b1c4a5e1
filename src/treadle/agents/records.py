"""Steps, runs, servers, handler registrations and locks for agents: reads return copies, writes go through the kernel.

Each lock is a task of kind `lock` (D54); only the object that acquired it may extend and release it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, fields
from typing import Any

import msgspec

from treadle.agents.connection import Connection, Lock, on_loop
from treadle.agents.entities import (
    MANAGED_BY,
    STORED_SERVER_STATES,
    HandlerRegistration,
    LockDefinition,
    LockMetaData,
    RunnerDefinition,
    ServerDefinition,
    StepDefinition,
    runner_of,
    server_of,
    step_of,
)
from treadle.agents.modules import check_requirement
from treadle.evaluator import StepRow
from treadle.evaluator.draft import task_id_of
from treadle.kernel.runs.step_codec import load_step
from treadle.model.errors import InvalidInput, RunNotFound
from treadle.model.ids import parse_id
from treadle.model.names import check_name
from treadle.model.runs import Run
from treadle.model.tasks import Server
from treadle.model.values import BlobRef, Json, decode, encode

_PAGE = 1000
_LIMIT = 2**31


class Records(Connection):
    """The methods of a store that do not concern tasks."""

    # steps and runs

    @on_loop
    async def get_step(self, step_id: str) -> StepDefinition | None:
        found = await self.engine.kernel.store.runs.find_step(parse_id(step_id, "step id"))
        return None if found is None else await self._step(load_step(found, self.engine.kernel.value_store))

    def step_exists(self, step_id: str) -> bool:
        return self.get_step(step_id) is not None

    @on_loop
    async def get_steps_by_workflow(self, workflow_id: str) -> list[StepDefinition]:
        return [await self._step(shown.row) for shown in await self.engine.kernel.run_reads.list_steps(workflow_id)]

    def get_steps_by_state(self, workflow_id: str, state: str) -> list[StepDefinition]:
        return [step for step in self.get_steps_by_workflow(workflow_id) if step.state == state]

    def get_steps_by_container(self, workflow_id: str, container_id: str) -> list[StepDefinition]:
        return [step for step in self.get_steps_by_workflow(workflow_id) if step.container_id == container_id]

    def get_workflow_root(self, workflow_id: str) -> StepDefinition | None:
        return next((step for step in self.get_steps_by_workflow(workflow_id) if step.container_id is None), None)

    @on_loop
    async def get_runner(self, runner_id: str) -> RunnerDefinition | None:
        try:
            return await self._runner(await self.engine.runs.get_run(runner_id))
        except RunNotFound:
            return None

    @on_loop
    async def get_runners_by_state(self, state: str) -> list[RunnerDefinition]:
        return [await self._runner(run) for run in await self.engine.kernel.run_reads.list_runs(states=(state,), limit=_PAGE)]

    @on_loop
    async def get_step_logs(self, step_id: str) -> list[dict[str, Any]]:
        step = await self.engine.kernel.store.runs.find_step(parse_id(step_id, "step id"))
        row = None if step is None else load_step(step, self.engine.kernel.value_store)
        lines = [] if row is None else await self.engine.kernel.store.log.list_lines(row.task_id or task_id_of(row), _PAGE)
        return [
            {"time": line.at, "level": line.level, "source": line.source, "message": line.message, "details": line.said or None}
            for line in lines
        ]

    # servers

    def save_server(self, server: ServerDefinition) -> None:
        self.run(self.engine.kernel.store.servers.save(_stored(server, self.engine.kernel.settings.namespace)))

    def get_server(self, server_id: str) -> ServerDefinition | None:
        return next((server for server in self.list_servers() if server.uuid == server_id), None)

    @on_loop
    async def list_servers(self) -> list[ServerDefinition]:
        return [server_of(shown.server, shown.state) for shown in await self.engine.kernel.reads.list_servers()]

    @on_loop
    async def ping_server(self, server_id: str) -> bool:
        for server in await self.engine.kernel.store.servers.list_all(self.engine.kernel.settings.namespace):
            if server.id == server_id:
                await self.engine.kernel.store.servers.save(server)
                return True
        return False

    # handler registrations

    def save_handler_registration(self, registration: HandlerRegistration) -> None:
        check_registration(registration)
        self.run(self.engine.kernel.store.operators.save_handler(self.engine.kernel.settings.namespace, registration))

    register_handler = save_handler_registration

    def get_handler_registration(self, facet_name: str) -> HandlerRegistration | None:
        return next((each for each in self.list_handler_registrations() if each.facet_name == facet_name), None)

    def list_handler_registrations(self) -> list[HandlerRegistration]:
        return self.run(self.engine.kernel.store.operators.list_handlers(self.engine.kernel.settings.namespace))

    def delete_handler_registration(self, facet_name: str) -> bool:
        return self.run(self.engine.kernel.store.operators.delete_handler(self.engine.kernel.settings.namespace, facet_name))

    # locks

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        return self._keep_lock(key, self.run(self.locks.acquire(key, duration_ms, None if meta is None else asdict(meta))))

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        held = self._held_locks.get(key)
        return held is not None and self._keep_lock(key, self.run(self.locks.extend(held, duration_ms)))

    def release_lock(self, key: str) -> bool:
        held = self._held_locks.pop(key, None)
        return held is not None and self.run(self.locks.release(held))

    def check_lock(self, key: str) -> LockDefinition | None:
        found = self.run(self.locks.find(key))
        if found is None:
            return None
        acquired_at, expires_at, details = found
        known = {each.name for each in fields(LockMetaData)}
        meta = LockMetaData(**{name: value for name, value in details.items() if name in known})
        return LockDefinition(key, acquired_at, expires_at, meta)

    def _keep_lock(self, key: str, lock: Lock | None) -> bool:
        if lock is not None:
            self._held_locks[key] = lock
        return lock is not None

    async def _step(self, row: StepRow) -> StepDefinition:
        return step_of(row, await self._plain(row.params), await self._plain(row.returns))

    async def _plain(self, attributes: dict[str, Any]) -> dict[str, Json]:
        """Return a copy of the attributes with their large values."""
        wanted = [value.digest for value in attributes.values() if isinstance(value, BlobRef)]
        found = await self.engine.kernel.value_store.load(wanted) if wanted else {}
        whole = {name: found[value.digest] if isinstance(value, BlobRef) else value for name, value in attributes.items()}
        copy: dict[str, Json] = decode(encode(whole, "attributes", _LIMIT))
        return copy

    async def _runner(self, run: Run) -> RunnerDefinition:
        return runner_of(run, await self.engine.runs.inputs(run), await self.engine.runs.outputs(run))


_TEXTS = {"module_uri": 1000, "entrypoint": 200, "version": 200, "checksum": 200}
"""The longest texts of a registration."""


def check_registration(registration: HandlerRegistration) -> None:
    """Reject a registration that no runner could use, regardless of the module's location."""
    check_name(registration.facet_name, "facet name")
    if registration.facet_name.startswith("afl:"):
        raise InvalidInput("Names that start with afl: are reserved for the engine.")
    if not isinstance(registration.module_uri, str) or not registration.module_uri.strip():
        raise InvalidInput("A handler needs a module_uri: package.module, or file:///path/to/module.py.")
    for name, limit in _TEXTS.items():
        if len(text := str(getattr(registration, name))) > limit or not text.isprintable():
            raise InvalidInput(f"The {name} of a handler has up to {limit} printable characters.")
    if not isinstance(registration.entrypoint, str) or not registration.entrypoint.isidentifier():
        raise InvalidInput(f"The entry point {registration.entrypoint!r} is not a function name.")
    if type(registration.timeout_ms) is not int or not 0 < registration.timeout_ms <= 24 * 3_600_000:
        raise InvalidInput(f"timeout_ms must be from 1 to 86,400,000 (a day), not {registration.timeout_ms!r}.")
    for each in registration.requirements:
        check_requirement(each)
    if not isinstance(registration.metadata, dict):
        raise InvalidInput(f"metadata is a dict, not {type(registration.metadata).__name__}.")
    registration.check_readable()
    encode(registration.metadata, "metadata")


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
        handled=sum(each.handled + each.not_handled for each in server.handled),
        failed=sum(each.not_handled for each in server.handled),
        server_group=server.server_group,
        service_name=server.service_name,
        topics=list(server.topics),
        counts={each.handler: [each.handled, each.not_handled] for each in server.handled},
        error=None if server.error is None else msgspec.json.encode(server.error).decode(),
        namespace=namespace,
    )
