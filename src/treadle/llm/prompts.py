"""Filling in prompts: exactly `{identifier}` is replaced, so that JSON and code in a prompt stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from treadle.model.values import Json

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, Json]) -> str:
    """The text with each `{name}` of a value replaced by it; unknown names and all other braces stay.

    Texts go in as they are, everything else as JSON. What was put in is not looked at again.
    """
    return _PLACEHOLDER.sub(lambda found: as_text(values[found[1]]) if found[1] in values else found[0], text)


def as_text(value: Json) -> str:
    """A value as a model reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
