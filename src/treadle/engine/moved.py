"""Follow a namespace that was moved: continue on the store that the directory names, and repeat the call once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from treadle.model.errors import NamespaceMoved, NotFound
from treadle.settings import read_directory

if TYPE_CHECKING:
    from treadle.engine.wiring.kernel import Kernel

F = TypeVar("F", bound=Callable[..., Any])


class Following:
    """The part of an engine that replaces its kernel after a move of its namespace."""

    kernel: Kernel
    _url: str
    _make_kernel: partial[Kernel]
    _places: bool
    """Whether the directory chose the store."""
    _following: asyncio.Lock
    _former: list[Kernel]
    """Kernels on former stores, open for those who still use them, until the engine is closed."""
    _workers = 0
    """The number of workers of this engine; each belongs to one store, so the engine does not follow while it has any."""

    async def _follow(self, former: Kernel) -> bool:
        """Return whether the engine uses another kernel than `former`, after switching to it if the namespace was moved."""
        async with self._following:
            if self.kernel is not former:
                return True
            settings = former.settings
            if not self._places or self._workers or not former.is_open:
                return False
            found = read_directory(settings.directory).find(settings.namespace)
            if found in (None, self._url):
                return False
            made = self._make_kernel(found, replace(settings, store=found))
            try:
                await made.open()
            except BaseException:
                for extension in former.extensions:
                    extension.attach(former)
                raise
            self.kernel, self._url = made, found
            self._former.append(former)
            for waiters in former.results:
                await waiters.close()  # their callers wait on the new store
            return True


def follows(method: F) -> F:
    """Let a method of the engine, which writes everything or nothing, be called again if the engine follows its namespace."""

    @wraps(method)
    async def call(self: Following, /, *arguments: Any, **options: Any) -> Any:
        kernel = self.kernel
        try:
            return await method(self, *arguments, **options)
        except (NamespaceMoved, NotFound):
            if not await self._follow(kernel):
                raise
        except asyncio.CancelledError:  # of a caller that waited for a result when another call followed
            task = asyncio.current_task()
            if self.kernel is kernel or task is None or task.cancelling():
                raise
        return await method(self, *arguments, **options)

    return cast("F", call)
