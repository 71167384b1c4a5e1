"""`validate`: the errors of a parsed program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.lang import Diagnostic as ValidationError


@dataclass
class ValidationResult:
    """The errors of a program, each with its `message`, `line` and `column`."""

    errors: list[ValidationError] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Whether there is none."""
        return not self.errors


class AFLValidator:
    """Checks programs."""

    def validate(self, ast: Mapping[str, Any]) -> ValidationResult:
        """Return the errors that the parser has found beyond the grammar; a compiled program has none."""
        return ValidationResult(list(getattr(ast, "errors", ())))


validate = AFLValidator().validate
