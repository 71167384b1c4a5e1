"""The dataclasses of trees and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: type[_T]) -> type[_T]:
    """Make a dataclass that only type checkers treat as frozen: instances of a frozen one take three times as long to create."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
