"""Handler registrations: the module and function that handle a facet's tasks. Every change is logged with its actor."""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.kernel.telemetry.events import Emit, Operated, log_event
from treadle.model.errors import HandlerNotFound
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.records import HandlerRegistration


class Registrations:
    """The registrations of one namespace. The loader, not this service, decides which modules may be loaded."""

    def __init__(self, store: Store, emit: Emit = log_event, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._emit = emit
        self._namespace = namespace

    async def list_all(self) -> list[HandlerRegistration]:
        """All registrations, by name."""
        return await self._store.operators.list_handlers(self._namespace)

    async def get(self, facet_name: str) -> HandlerRegistration:
        """The registration of the facet, or `HandlerNotFound`."""
        found = next((each for each in await self.list_all() if each.facet_name == facet_name), None)
        if found is None:
            raise HandlerNotFound(facet_name)
        return found

    async def save(self, registration: HandlerRegistration, *, actor: str = "operator") -> HandlerRegistration:
        """Insert or replace the registration of its facet; returns it as stored."""
        await self._store.operators.save_handler(self._namespace, registration)
        entrypoint = f"{registration.entrypoint} of {registration.module_uri}"
        self._emit(Operated(f"handler of {registration.facet_name}: {entrypoint}", actor))
        return await self.get(registration.facet_name)

    async def remove(self, facet_name: str, *, actor: str = "operator") -> None:
        """Remove the registration of the facet, or raise `HandlerNotFound`."""
        if not await self._store.operators.delete_handler(self._namespace, facet_name):
            raise HandlerNotFound(facet_name)
        self._emit(Operated(f"handler of {facet_name} removed", actor))
