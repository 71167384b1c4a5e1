"""The contract (`treadle.api`) on an engine.

Every interface uses it: the routes are made from it, and pages, tools and commands call it. Each call checks the caller's
access, calls a service of the kernel, and returns a public record.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from treadle.api.facade import Api
from treadle.engine import Engine
from treadle.model.access import Access

__all__ = ["Service"]


class Service(Api):
    """The contract on an engine, for one caller. A group is the class of its name in the module of its name."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    def make_group(self, name: str) -> Any:
        """Load the group for this caller."""
        return _class_of(name)(self.engine, self.access)


@cache
def _class_of(group: str) -> Any:
    return getattr(import_module(f"treadle.service.{group}"), group.title().replace("_", ""))
