"""Every structure that is stored as JSON keeps the fields that this version does not know (issue 16.3)."""

from __future__ import annotations

import enum
import importlib
import pkgutil
import re
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest

import treadle
from treadle.goals.records import is_artifact, with_unknown
from treadle.kernel.queue.decide import policy_of
from treadle.model.approvals import split_checkpoint, with_decision, with_decisions_of
from treadle.model.errors import UnreadableValue
from treadle.model.retry import PolicyWithCode, RetryPolicy
from treadle.model.schedules import CatchUp, ScheduleDocument, Target
from treadle.model.stored import AnyStored, Stored, StoredRow, convert, plain, read, write
from treadle.model.tasks import Task
from treadle.model.watchers import WatcherDocument, WatchSource

SOURCE = Path(treadle.__file__).parent
ROOMS = ("model", "kernel", "evaluator", "goals")
UNKNOWN = {"from_a_newer_version": {"deep": [1, None, "x"]}}


def _structures() -> list[type[AnyStored]]:
    for room in ROOMS:
        package = importlib.import_module(f"treadle.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    found, queue = [], [*Stored.__subclasses__(), *StoredRow.__subclasses__()]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if kind is not PolicyWithCode:  # which `as_policy` refuses to store
            found.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def _sample(hint: Any) -> Any:
    """A value of this type as JSON, with an unknown field in every structure of it."""
    if isinstance(hint, type) and issubclass(hint, AnyStored):
        fields = [each for each in msgspec.structs.fields(hint) if each.name != "more"]
        return {each.encode_name: not each.default if each.type is bool else _sample(each.type) for each in fields} | UNKNOWN
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)[-1].value
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return arguments[1].pattern.strip("^()$").split("|")[0]
    match get_origin(hint) or hint:
        case origin if origin in (Union, types.UnionType):
            return _sample(next(each for each in arguments if each is not types.NoneType))
        case origin if origin is tuple and arguments[-1] is not ...:
            return [_sample(each) for each in arguments]
        case origin if origin in (tuple, list):
            return [_sample(arguments[0])]
        case origin if origin is dict:
            return {"key": _sample(arguments[1])}
        case origin if origin is float:
            return 1.0
        case origin if origin is bool:
            return True
        case origin if origin is int:
            return 2000
        case _:
            return "text"


STRUCTURES = _structures()


def _document(kind: type[AnyStored]) -> dict[str, Any]:
    made: dict[str, Any] = _sample(kind)
    return _policies(made) if kind is not RetryPolicy else made | {"jitter": 0.5, "cap_for": 5000}


def _policies(value: Any) -> Any:
    if isinstance(value, list):
        return [_policies(each) for each in value]
    if isinstance(value, dict):
        value = {key: _policies(each) for key, each in value.items()}
        return value | {"jitter": 0.5, "cap_for": 5000} if "jitter" in value else value
    return value


def test_the_registry_lists_every_stored_structure() -> None:
    names = {kind.__name__ for kind in STRUCTURES}
    assert names >= {
        "RetryPolicy",
        "ScheduleDocument",
        "WatcherDocument",
        "Item",
        "Approval",
        "ApprovalRequest",
        "StepRow",
        "Recorded",
    }
    assert names >= {
        "ExternalProductionRecord",
        "ExternalEvent",
        "TokenDocument",
        "SessionDocument",
        "RequestDocument",
        "StepError",
        "Vote",
    }


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: kind.__name__)
def test_an_unknown_field_is_read_kept_and_written_back(kind: type[AnyStored]) -> None:
    document = _document(kind)
    for found in (read(kind, msgspec.json.encode(document)), convert(kind, document)):
        assert found.more == UNKNOWN
        changed = msgspec.structs.replace(found)
        assert msgspec.json.decode(msgspec.json.encode(plain(changed))) == document
        assert msgspec.json.decode(write(changed)) == document
        assert read(kind, write(changed)) == found


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: kind.__name__)
def test_a_structure_without_unknown_fields_stores_only_its_own_fields(kind: type[AnyStored]) -> None:
    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: known(each) for key, each in value.items() if key not in UNKNOWN}
        return [known(each) for each in value] if isinstance(value, list) else value

    document = known(_document(kind))
    found = read(kind, msgspec.json.encode(document))
    assert not found.more
    assert msgspec.json.decode(write(found)) == msgspec.json.decode(msgspec.json.encode(plain(found))) == document
    assert "more=" not in repr(found)


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: kind.__name__)
def test_a_structure_that_cannot_be_read_is_reported_as_such(kind: type[AnyStored]) -> None:
    whole = msgspec.json.encode(_document(kind)).decode()
    for text in ("", whole[:-1], "[]", "7", "null", '"x"', "\ud800"):
        with pytest.raises(UnreadableValue):
            read(kind, text)


def test_a_word_of_a_newer_version_is_not_mistaken_for_another_one() -> None:
    for kind, field in (
        (CatchUp, "policy"),
        (Target, "kind"),
        (WatchSource, "kind"),
        (ScheduleDocument, "overlap"),
        (WatcherDocument, "existing"),
    ):
        with pytest.raises(UnreadableValue):
            convert(kind, _document(kind) | {field: "unheard-of"})


def test_stored_structures_are_decoded_in_one_place() -> None:
    """A decoder of its own would refuse or drop the fields of a newer version."""
    names = "|".join(kind.__name__ for kind in STRUCTURES)
    own = re.compile(rf"Decoder\(({names})\)|decode\([^\n]*type=({names})\)|msgspec\.convert\([^\n]*\b({names})\)")
    allowed = {"model/approvals.py", "model/plans.py"}  # they check input of users, which must have no unknown fields
    found = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if own.search(path.read_text())]
    assert set(found) <= allowed


def test_a_policy_with_a_new_field_still_decides_the_retries() -> None:
    task = Task(id="t", queue_id=1, policy='{"retries":3,"surge":{"by":2}}')
    assert policy_of(task).retries == 3
    assert msgspec.json.decode(write(policy_of(task))) == {"retries": 3, "surge": {"by": 2}}


def test_the_parts_of_a_checkpoint_that_a_newer_version_added_are_kept() -> None:
    before = {"@approvals": [{"by": "ann"}], "checkpoint": {"page": 1}, "added": 7}
    assert split_checkpoint(before) == ([{"by": "ann"}], {"page": 1})
    assert with_decisions_of(before, {"page": 2}) == before | {"checkpoint": {"page": 2}}
    assert with_decision(before, {"by": "bob"}) == before | {"@approvals": [{"by": "ann"}, {"by": "bob"}]}


def test_artifacts_keep_unknown_fields_at_every_depth() -> None:
    from treadle.api import objectives

    kinds = [each for each in vars(objectives).values() if is_artifact(each) and each.__struct_fields__]
    assert len(kinds) >= 7
    for kind in kinds:
        first = next(iter(kind.__struct_fields__))
        assert with_unknown(kind, {first: "a"} | UNKNOWN, {first: "b"}) == {first: "b"} | UNKNOWN
    before = {"objective_id": "o", "blockers": [{"blocker_id": "b", "since": 5}], "colour": "red"}
    made = {"objective_id": "o", "blockers": [{"blocker_id": "b", "resolved": True}, {"blocker_id": "c"}]}
    assert with_unknown(objectives.Objective, before, made) == {
        "objective_id": "o",
        "blockers": [{"blocker_id": "b", "since": 5, "resolved": True}, {"blocker_id": "c"}],
        "colour": "red",
    }
