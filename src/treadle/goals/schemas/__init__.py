"""The schemas of the goal pipeline's artifacts, and the check of every document before it is written."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from treadle.goals.records import InvalidArtifact
from treadle.model.values import Json

NAMES = (
    "blocker_ref",
    "claim_record",
    "context_snapshot",
    "event",
    "objective",
    "output_bundle",
    "pause_state",
    "run_record",
    "workorder",
)

_MESSAGE_LIMIT = 300


@cache
def load_schema(name: str) -> dict[str, Json]:
    """Return the schema of that name."""
    text = resources.files("treadle.goals.schemas").joinpath(f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, Json] = json.loads(text)
    return schema


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    registry = Registry().with_resources(
        [(f"urn:treadle:{schema_name}", Resource.from_contents(load_schema(schema_name))) for schema_name in NAMES]
    )
    return Draft202012Validator(load_schema(name), registry=registry, format_checker=Draft202012Validator.FORMAT_CHECKER)


def check_document(name: str, document: Json) -> None:
    """Raise `InvalidArtifact` for a document that does not fit the schema of that name."""
    error = next(iter(sorted(_validator(name).iter_errors(document), key=lambda error: (len(error.path), str(error.path)))), None)
    if error is not None:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".") or "the document"
        raise InvalidArtifact(f"This {name} does not fit its schema: {place}: {error.message[:_MESSAGE_LIMIT]}.")


def check_schema(schema: Json) -> str | None:
    """Return the error in a user's schema, or None."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return str(error.message)[:_MESSAGE_LIMIT]
    return None


def first_error(schema: Json, document: Json) -> str | None:
    """Return the reason why the document does not fit the user's schema, or None."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    validator = Draft202012Validator(schema, registry=Registry())  # it fetches no remote references
    error = next(iter(validator.iter_errors(document)), None)
    if error is None:
        return None
    place = "/".join(str(part) for part in error.path) or "the whole"
    return f"{place}: {error.message[:_MESSAGE_LIMIT]}"
