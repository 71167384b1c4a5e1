"""Prompt templates: exactly `{identifier}` is replaced, so that JSON and code in a prompt stay unchanged."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from treadle.model.errors import NonRetryable, PayloadTooLarge
from treadle.model.values import Json

PROMPT_LIMIT = 4 * 1024 * 1024
"""Characters of a template with its values; no model reads as many."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, Json]) -> str:
    """Replace each `{name}` that has a value; unknown names and other braces stay.

    Text is inserted literally, other values as JSON. Inserted text is not expanded again. A prompt that would be longer than
    `PROMPT_LIMIT` raises `NonRetryable` before it is built.
    """
    found = Counter(name for name in _PLACEHOLDER.findall(text) if name in values)
    inserted = {name: as_text(values[name]) for name in found}
    size = len(text) + sum(count * len(inserted[name]) for name, count in found.items())
    if size > PROMPT_LIMIT:
        raise NonRetryable(
            f"The prompt would have {size} characters; the limit is {PROMPT_LIMIT}. Insert shorter values, or fewer.",
            PayloadTooLarge.code,
        )
    return _PLACEHOLDER.sub(lambda place: inserted.get(place[1], place[0]), text)


def as_text(value: Json) -> str:
    """Render a value for a model."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
