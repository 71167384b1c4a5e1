"""Declarative plans: an ordered list of steps, each a handler with arguments, checked before the first one starts. Pure.

An argument may refer to the result of an earlier step, or to the plan's inputs: `{"$from": "charge.receipt"}` is the field
`receipt` of the result of the step `charge`, `{"$from": "charge"}` the whole result, `{"$from": "inputs.order"}` an input.
`{"$value": X}` is the literal X.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from treadle.model.errors import InvalidName, InvalidPlan, InvalidPolicy
from treadle.model.names import check_name
from treadle.model.retry import RetryPolicy, as_policy
from treadle.model.values import Json

FROM, VALUE, INPUTS = "$from", "$value", "inputs"
_KEYS = ("name", "handler", "arguments", "retry", "approval", "task_list")
_MAX_STEPS = 10_000
_DIGITS = 20
"""A number with this many digits is not a list index."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan."""

    name: str
    handler: str
    arguments: dict[str, Json]
    retry: RetryPolicy | None = None
    approval: dict[str, Json] | None = None
    """Options of the approval required before the step, if any."""
    task_list: str | None = None


def read_plan(steps: Any) -> list[PlanStep]:
    """Return the steps of a plan, checked; raise `InvalidPlan` with the step and the reason."""
    if isinstance(steps, str) or not isinstance(steps, Sequence) or not steps:
        raise InvalidPlan("A plan is a list of one or more steps, each like {'name': 'charge', 'handler': 'billing.Charge'}.")
    if len(steps) > _MAX_STEPS:
        raise InvalidPlan(f"A plan has at most {_MAX_STEPS} steps, not {len(steps)}.")
    read: dict[str, PlanStep] = {}
    for number, document in enumerate(steps, 1):
        try:
            step = _read_step(document, number, read)
        except RecursionError:
            raise InvalidPlan(f"The arguments of step {number} of the plan are nested too deeply.") from None
        read[step.name] = step
    return list(read.values())


def _read_step(given: Any, number: int, earlier: Collection[str]) -> PlanStep:
    if not isinstance(given, Mapping):
        raise InvalidPlan(f"Step {number} of the plan must be an object, not {type(given).__name__}.")
    if unknown := [str(key) for key in given if key not in _KEYS]:
        raise InvalidPlan(f"Step {number} of the plan has the unknown key {unknown[0]!r}; the keys are {', '.join(_KEYS)}.")
    where = f"Step {number} of the plan"
    if missing := [key for key in ("name", "handler") if key not in given]:
        raise InvalidPlan(f"{where} has no {missing[0]}; a step looks like {{'name': 'charge', 'handler': 'billing.Charge'}}.")
    try:
        name = check_name(given["name"], "step name")
        handler = check_name(given["handler"])
        task_list = None if given.get("task_list") is None else check_name(given["task_list"], "task list")
    except InvalidName as error:
        raise InvalidPlan(f"{where}: {error}") from None
    where = f"Step {name} of the plan"
    if "." in name or name == INPUTS:
        raise InvalidPlan(f"{where}: the name of a step has no dot and is not {INPUTS!r}, so that others can refer to it.")
    if name in earlier:
        raise InvalidPlan(f"{where} appears twice; each name is used once.")
    arguments = given.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise InvalidPlan(f"{where}: arguments must be an object, not {type(arguments).__name__}.")
    for place in _references(dict(arguments)):
        first = place.partition(".")[0]
        if first != INPUTS and first not in earlier:
            available = ", ".join([INPUTS, *earlier])
            raise InvalidPlan(f"{where} refers to {place!r}, but no earlier step is called {first!r}; available: {available}.")
    approval = given.get("approval") or None
    if approval is True:
        approval = {}
    if approval is not None and not isinstance(approval, Mapping):
        raise InvalidPlan(f"{where}: approval must be true, false or an object with options, not {approval!r}.")
    return PlanStep(
        name, handler, dict(arguments), _policy(where, given.get("retry")), None if approval is None else dict(approval), task_list
    )


def _policy(where: str, retry: Any) -> RetryPolicy | None:
    try:
        return msgspec.convert(retry, RetryPolicy) if isinstance(retry, Mapping) else as_policy(retry)
    except (InvalidPolicy, msgspec.ValidationError) as error:
        raise InvalidPlan(f"{where}: {error}") from None


def _references(value: Json) -> list[str]:
    """Return the places that arguments refer to."""
    if isinstance(value, Mapping):
        if FROM in value:
            if len(value) != 1 or not isinstance(value[FROM], str) or not value[FROM]:
                raise InvalidPlan(f"A reference must be {{'{FROM}': 'step.field'}} and nothing else, not {dict(value)!r}.")
            return [value[FROM]]
        return [] if set(value) == {VALUE} else [place for part in value.values() for place in _references(part)]
    if isinstance(value, list | tuple):
        return [place for part in value for place in _references(part)]
    return []


def resolve(value: Json, known: Mapping[str, Json]) -> Json:
    """Replace the references in arguments; `known` has the inputs and the results so far."""
    if isinstance(value, Mapping):
        if FROM in value:
            return _look_up(value[FROM], known)
        if set(value) == {VALUE}:
            return value[VALUE]
        return {key: resolve(part, known) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(part, known) for part in value]
    return value


def _look_up(place: str, known: Mapping[str, Json]) -> Json:
    current: Json = known
    seen: list[str] = []
    for part in place.split("."):
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list) and part.isdecimal() and len(part) < _DIGITS and int(part) < len(current):
            current = current[int(part)]
        else:
            raise InvalidPlan(f"The plan refers to {place!r}, but {'.'.join(seen) or 'it'} has no {part!r}.")
        seen.append(part)
    return current
