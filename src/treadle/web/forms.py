"""What people type into forms, as the contract wants it."""

from __future__ import annotations

import json
from typing import Any

from treadle.model.errors import InvalidInput


def parse_object(text: object) -> dict[str, Any] | None:
    """A JSON object that was typed; None where nothing was."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"That is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInput("That is JSON, but no object: it must look like {...}.")
    return value
