"""The check of entered payloads against the registered parameters, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.model.errors import Forbidden, InvalidPayload, NotFound
from treadle.model.json_schema import mismatches
from treadle.workers.signatures import TRIGGERED

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.tasks import Parameters

_HANDLER = 0


class MismatchedInputs(InvalidPayload):
    """Inputs do not match the parameters; `fields` has the mistakes by path."""

    def __init__(self, name: str, fields: Mapping[str, str]) -> None:
        problems = "; ".join(f"{path or 'it'} {problem}" for path, problem in fields.items())
        super().__init__(f"The payload does not match the parameters of {name}: {problems}.")
        self.fields = dict(fields)


class Start(NamedTuple):
    """The handler or function that an operation would start, and its inputs."""

    name: str
    version: int | None
    inputs: str
    """The argument that holds them."""


def start_of(operation: str, arguments: Mapping[str, Any]) -> Start | None:
    """Return the handler or function that an operation would start; None for a workflow, whose inputs the kernel checks."""
    match operation, arguments:
        case "tasks.enqueue", {"name": str() as name}:
            return Start(name, _HANDLER, "payload")
        case "functions.start", {"name": str() as name}:
            return Start(name, arguments.get("version"), "payload")
        case "schedules.create" | "watchers.create", {"task": str() as name}:
            return Start(name, _HANDLER, "inputs")
        case "schedules.create" | "watchers.create", {"function": str() as name}:
            return Start(name, arguments.get("version"), "inputs")
    return None


async def find_parameters(api: Api, start: Start) -> Parameters | None:
    """Return the registered parameters; None if there are none, or the caller may not see them."""
    try:
        return await api.tasks.parameters(start.name, version=start.version)
    except (NotFound, Forbidden):
        return None


async def check_inputs(api: Api, operation: str, arguments: Mapping[str, Any]) -> None:
    """Raise `MismatchedInputs` if an operation would start a handler or function with inputs that it cannot take."""
    start = start_of(operation, arguments)
    if start is None or (parameters := await find_parameters(api, start)) is None:
        return
    wrong = mismatches([parameters.schema, *parameters.former], arguments.get(start.inputs) or {})
    later = TRIGGERED if start.inputs == "inputs" else ()
    if wrong := {path: problem for path, problem in wrong.items() if path not in later}:
        raise MismatchedInputs(start.name, wrong)
