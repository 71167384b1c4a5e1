"""Exceptions of user code in stored form, and the exceptions that are raised where the failure of a step or a child is awaited.

The stored form is JSON: the qualified names of the class and its bases (`classes`), `args` and `attributes` as far as they are
JSON, and the `exceptions` of a group. The exception that reports a failure (`StepFailed`, `TaskFailed`, `RunFailed`) is raised as
an instance of the nearest of these classes, too. A class counts only if its module is loaded: nothing is imported because of a
stored name, and `__init__` of a user's class is not called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.values import Json, class_name, decode, encode, error_text

_BREADTH = 32
"""Limit on the classes of an exception, and on the exceptions of a group."""
_DEPTH = 4
"""Limit on groups within each other."""
_SIZE = 4096
"""Limit in bytes on the JSON of the arguments, and of each attribute."""
_HEAP_TYPE = 1 << 9
_MRO: Any = type.__dict__["__mro__"]

E = TypeVar("E", bound=TreadleError)


class _Revived:
    """Base of the classes made here; it comes first, so that no hook or text method of a user's class is called."""

    args = BaseException.args

    def __init_subclass__(cls) -> None:
        pass

    def __str__(self) -> str:
        return str(self.__dict__["_Revived__text"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def stored_form(error: BaseException, depth: int = 0) -> dict[str, Json]:
    """Return the stored form of an exception; one that was revived has the form that it was revived from."""
    if isinstance(error, _Revived):
        return dict(error.__dict__["_Revived__form"])
    form: dict[str, Json] = {"classes": [class_name(kind) for kind in _MRO.__get__(type(error))[:-1]][:_BREADTH]}
    with suppress(InvalidInput):
        form["args"] = _plain(list(BaseException.args.__get__(error)))  # type: ignore[attr-defined]
    attributes: dict[str, Json] = {}
    for name, value in list(error.__dict__.items())[:_BREADTH]:
        if name != "step_ids":
            with suppress(InvalidInput):
                attributes |= _plain({name: value})
    if attributes:
        form["attributes"] = attributes
    if isinstance(error, BaseExceptionGroup) and depth < _DEPTH:
        parts = error.exceptions[:_BREADTH]
        form["exceptions"] = [{**stored_form(part, depth + 1), "message": error_text(part)} for part in parts]
    return form


def _plain(value: Any) -> Any:
    return decode(encode(value, "exception", _SIZE))


def revived(report: E, stored: Mapping[str, Json], excluded: tuple[type[Exception], ...] = ()) -> E:
    """Return the report of a failure with that stored error as an instance of the class of the original exception, too.

    If that class is not loaded, it is one of the nearest base that is, in a class of the same name. It remains the report that it
    is for an error without an exception, and for classes that are `excluded`, of the engine, or no `Exception`.
    """
    form = stored.get("exception")
    if form is None and "." in (kind := stored.get("type") or ""):
        form = {"classes": [kind]}  # reported by a remote worker
    error = _revived(form, str(report), report, excluded) if isinstance(form, dict) and form.get("classes") else None
    return report if error is None else error


def _revived(form: dict[str, Json], text: str, report: Any = None, excluded: tuple[type[Exception], ...] = ()) -> Any:
    names = form["classes"]
    loaded = [_loaded_class(name) for name in names]
    if report is not None and (_is_engine(names[0]) or any(kind is not None and issubclass(kind, excluded) for kind in loaded)):
        return None
    for kind in loaded:
        if kind is not None and _may_be_raised(kind):
            with suppress(Exception):  # a metaclass may refuse subclasses
                return _instance((kind,) if report is None else (type(report), kind), form, text, report)
    if report is not None and loaded[:1] != [None]:
        return None
    return _instance((Exception if report is None else type(report),), form, text, report)


def _loaded_class(name: str) -> type | None:
    """Return the class of that name, if its module is loaded."""
    parts = name.split(".")
    for index in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:index]))
        for part in parts[index:]:
            value = vars(value).get(part) if isinstance(value, ModuleType | type) else None
        if isinstance(value, type) and class_name(value) == name:
            return value
    return None


def _is_engine(name: str) -> bool:
    return name.startswith("treadle.")


def _may_be_raised(kind: type) -> bool:
    """Whether code may receive its instances: not those of the engine, which has its own meanings for them."""
    if kind is Exception or not issubclass(kind, Exception) or _is_engine(class_name(kind)):
        return False
    return not issubclass(kind, StopIteration | StopAsyncIteration)  # no coroutine can raise these


def _instance(bases: tuple[type, ...], form: dict[str, Json], text: str, report: TreadleError | None) -> Exception:
    instance_class: Any = _named_class(bases, form["classes"][0])
    native = instance_class
    while native.__flags__ & _HEAP_TYPE:
        native = native.__base__
    arguments = form.get("args") or [text]
    if issubclass(instance_class, BaseExceptionGroup):
        members = (_revived(part, part["message"]) for part in form["exceptions"])
        arguments = [text, list(members)]
    error: Exception = native.__new__(instance_class, *arguments)
    with suppress(TypeError):
        native.__init__(error, *arguments)
    own = {} if report is None else vars(report)
    error.__dict__.update({**form.get("attributes", {}), **own, "_Revived__text": text, "_Revived__form": form})
    return error


@lru_cache(1024)
def _named_class(bases: tuple[type, ...], name: str) -> type:
    module, _, own_name = name.rpartition(".")
    return type(bases[-1])(own_name, (_Revived, *bases), {"__module__": module})
