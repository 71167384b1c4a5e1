"""How commands look and take their values: flags show nothing that they would take, and texts are taken as they are."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help says `--json`, and not `--json <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As Typer's."""
        return _eased(super().get_params(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As Typer's."""
        return _eased(super().get_params(ctx))


def _eased(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if hasattr(param, "type_descriptor") and "get_runtime_param" not in vars(param):
            param.get_runtime_param = _AsGiven(param).itself
    return params


class _AsGiven:
    """How the values of one parameter are checked: not at all if they are of its type, else as Typer does.

    Typer checks them with pydantic, and loading that takes longer than most commands do. Versions of Typer that know nothing of
    pydantic know nothing of this either.
    """

    def __init__(self, param: Any) -> None:
        self._type = param.type_descriptor.annotation
        self._others = param.get_runtime_param

    def itself(self) -> _AsGiven:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if several and get_origin(self._type) is list and isinstance(value, list | tuple):
            (inner,) = get_args(self._type)
            fits = inner is str and all(type(each) is str for each in value)
        else:
            fits = not several and self._type in (str, int, float, bool) and type(value) is self._type
        return value if fits else self._others().coerce(value, param=param, ctx=ctx)
