"""The record of declarations that were applied: the programs of a namespace and their items."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from treadle.model.ids import uuid7
from treadle.model.states import DECLARATIONS as MACHINE
from treadle.model.stored import Stored

MAX, RATE = "max", "rate"

Value = dict[str, Any] | None


class Applied(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """An item that a program has applied."""

    value: Value = None
    before: tuple[Value, ...] = ()
    """The values that it may still have, while it is not certain that `value` was applied."""


class DeployedProgram(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """A program: its newest release that was applied, and its items."""

    release: str = "0"
    items: dict[str, Applied] = msgspec.field(default_factory=dict)


class DeclarationsDocument(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The document of the record: the programs by name. An item belongs to one program."""

    programs: dict[str, DeployedProgram] = msgspec.field(default_factory=dict)


def declarations_id(namespace: str) -> str:
    """Return the id of the record of a namespace."""
    return uuid7(0, hashlib.sha256(f"{MACHINE.entity}\0{namespace}".encode()).digest())
