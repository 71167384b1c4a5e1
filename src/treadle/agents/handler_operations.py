"""Operations on handler registrations, as the API declares them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from treadle.agents.handler_check import try_outside
from treadle.agents.modules import Modules, OutsideRoots, check_registration, missing_requirements
from treadle.api.handlers import Handler, HandlerList, HandlerRates, HandlerRemoved, HandlersApi, HandlerTest
from treadle.api.tasks import WAIT_LIMIT
from treadle.api.wire import Instant, record_of
from treadle.engine import Engine
from treadle.kernel.operations import operation_entry
from treadle.kernel.queue.why import find_hold, shown_server_state
from treadle.kernel.telemetry.events import Operated
from treadle.model.clock import milliseconds
from treadle.model.errors import InvalidInput, not_found
from treadle.model.records import HandlerRegistration
from treadle.model.tasks import LIVE_SERVER_STATES
from treadle.model.values import Json


class HandlerOperations(HandlersApi):
    """The handler registrations of one namespace."""

    def __init__(self, engine: Engine) -> None:
        self._kernel = engine.kernel
        self._modules = Modules(engine.kernel.settings.handler_roots)

    async def list(self) -> HandlerList:
        problems = await self._problems()
        return HandlerList([self._record(registration, problems) for registration in await self._registrations()])

    async def rates(self) -> HandlerRates:
        return await self._kernel.throughput.rates()

    async def get(self, facet_name: str) -> Handler:
        return self._record(await self._find(facet_name), await self._problems())

    async def register(
        self,
        facet_name: str,
        module_uri: str,
        *,
        entrypoint: str = "handle",
        version: str = "1.0.0",
        checksum: str = "",
        timeout: float = 30.0,
        requirements: Sequence[str] = (),
        metadata: dict[str, Json] | None = None,
        actor: str = "operator",
    ) -> Handler:
        timeout_ms = milliseconds(timeout, "timeout")
        return await self._save(
            "register",
            actor,
            HandlerRegistration(facet_name, module_uri, entrypoint, version, checksum, timeout_ms, [*requirements], metadata or {}),
        )

    async def edit(
        self,
        facet_name: str,
        *,
        module_uri: str | None = None,
        entrypoint: str | None = None,
        version: str | None = None,
        checksum: str | None = None,
        timeout: float | None = None,
        requirements: Sequence[str] | None = None,
        metadata: dict[str, Json] | None = None,
        actor: str = "operator",
    ) -> Handler:
        changes: dict[str, Any] = {
            "module_uri": module_uri,
            "entrypoint": entrypoint,
            "version": version,
            "checksum": checksum,
            "timeout_ms": None if timeout is None else milliseconds(timeout, "timeout"),
            "requirements": None if requirements is None else [*requirements],
            "metadata": metadata,
        }
        updates = {name: value for name, value in changes.items() if value is not None}
        registration = await self._find(facet_name)
        if requirements is None or metadata is None:
            registration.check_readable()
        return await self._save("edit", actor, replace(registration, **updates))

    async def remove(self, facet_name: str, *, actor: str = "operator") -> HandlerRemoved:
        before = _settings(await self._find(facet_name))
        entry = operation_entry(self._kernel.core, "handlers.remove", facet_name, actor, before)
        if not await self._kernel.store.operators.delete_handler(self._kernel.settings.namespace, facet_name, entry):
            raise not_found("handler", facet_name)
        self._kernel.emit(Operated(f"handler of {facet_name} removed", actor))
        return HandlerRemoved(facet_name)

    async def test(
        self, facet_name: str, payload: dict[str, Json] | None = None, *, wait_for: float = WAIT_LIMIT, actor: str = "operator"
    ) -> HandlerTest:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        registration = await self._find(facet_name)
        registration.check_readable()
        self._kernel.emit(Operated(f"handler of {facet_name} tried", actor))
        return await try_outside(registration, payload or {}, self._kernel.settings.handler_roots, wait_for)

    async def _save(self, operation: str, actor: str, registration: HandlerRegistration) -> Handler:
        check_registration(registration)
        _locate(self._modules, registration.module_uri)
        facet_name = registration.facet_name
        before = next((_settings(old) for old in await self._registrations() if old.facet_name == facet_name), None)
        entry = operation_entry(self._kernel.core, f"handlers.{operation}", facet_name, actor, before, _settings(registration))
        await self._kernel.store.operators.save_handler(self._kernel.settings.namespace, registration, entry)
        entrypoint = f"{registration.entrypoint} of {registration.module_uri}"
        self._kernel.emit(Operated(f"handler of {registration.facet_name}: {entrypoint}", actor))
        return await self.get(registration.facet_name)

    async def _registrations(self) -> builtins.list[HandlerRegistration]:
        """All registrations, by name."""
        return await self._kernel.store.operators.list_handlers(self._kernel.settings.namespace)

    async def _find(self, facet_name: str) -> HandlerRegistration:
        """The registration of the facet, or `NotFound`."""
        match = next((registration for registration in await self._registrations() if registration.facet_name == facet_name), None)
        if match is None:
            raise not_found("handler", facet_name)
        return match

    async def _problems(self) -> dict[str, str]:
        """Problems of live workers by handler."""
        store = self._kernel.store
        now = await store.now()
        servers = await store.servers.list_all(self._kernel.settings.namespace)
        live = [server for server in servers if shown_server_state(server, now) in LIVE_SERVER_STATES]
        return {hold.handler: hold.message for server in live if (hold := find_hold(server, now)) is not None and hold.handler}

    def _record(self, registration: HandlerRegistration, problems: dict[str, str]) -> Handler:
        try:
            missing = _locate(self._modules, registration.module_uri)
        except OutsideRoots as error:
            missing = str(error)
        return record_of(
            Handler,
            registration,
            missing_requirements=missing_requirements(registration.requirements),
            missing_module=missing,
            problem=problems.get(registration.facet_name),
            created_at=None if registration.created is None else Instant.of(registration.created),
            updated_at=None if registration.updated is None else Instant.of(registration.updated),
        )


def _locate(modules: Modules, module_uri: str) -> str | None:
    """The reason that the module is missing (it may be added later), or None; raises `OutsideRoots`."""
    try:
        modules.locate(module_uri)
    except OutsideRoots:
        raise
    except InvalidInput as error:
        return str(error) if modules.roots else None  # without roots, only runners know
    return None


make_operations = HandlerOperations


def _settings(registration: HandlerRegistration) -> dict[str, Any]:
    """Return the fields that people set, for the log."""
    return {name: value for name, value in asdict(registration).items() if name not in ("created", "updated")}
