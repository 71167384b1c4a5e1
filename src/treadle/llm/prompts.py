"""Prompt templates: exactly `{identifier}` is replaced, so that JSON and code in a prompt stay unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from treadle.model.values import Json

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, Json]) -> str:
    """Replace each `{name}` that has a value; unknown names and other braces stay.

    Text is inserted literally, other values as JSON. Inserted text is not expanded again.
    """
    return _PLACEHOLDER.sub(lambda found: as_text(values[found[1]]) if found[1] in values else found[0], text)


def as_text(value: Json) -> str:
    """Render a value for a model."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
