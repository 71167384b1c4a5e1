"""Merges what blocks yield: in the order of blocks, items and yields the last value wins, and two lists become one."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.evaluator.draft import Draft
from treadle.evaluator.expressions import evaluate_named
from treadle.evaluator.records import BlobRef, Value
from treadle.evaluator.scope import Scope
from treadle.lang.program import Arg, Block


class Merge:
    """Values as they come in. Values for a signature alias are kept together under the alias."""

    def __init__(self, draft: Draft) -> None:
        self.values: dict[str, Value] = {}
        self._draft = draft
        self._own: dict[tuple[str | None, str], list[Value]] = {}

    def add(self, name: str, value: Value, into: str | None = None) -> None:
        """One value; `into` is the alias that it was yielded to."""
        values = self.values if into is None else self.values.setdefault(into, {})
        if name not in values:
            values[name] = value
            return
        values[name] = self._join((into, name), values[name], value)

    def _join(self, key: tuple[str | None, str], before: Value, value: Value) -> Value:
        """Two values of one name. Lists are copied once and then extended, so that many cost no more than they are long."""
        if isinstance(before, BlobRef) and isinstance(value, BlobRef | list):
            before = self._draft.load(before)
        if not isinstance(before, list):
            return value
        loaded = self._draft.load(value)
        if not isinstance(loaded, list):
            return value
        own = self._own.get(key)
        if own is not before:
            own = self._own[key] = list(before)
        own.extend(loaded)
        return own

    def add_all(self, returns: Mapping[str, Value], aliases: frozenset[str]) -> None:
        """What a block has merged already."""
        for name, value in returns.items():
            if name in aliases:
                for each, inner in self._draft.load(value).items():
                    self.add(each, inner, name)
            else:
                self.add(name, value)

    def add_yields(self, block: Block, scope: Scope) -> None:
        """All yields of a block, in order; they carry what is written and nothing else."""
        for statement in block.yields:
            self._add_args(statement.call.args, statement.into, scope)
            for mixin in statement.call.mixins:
                self._add_args(mixin.args, mixin.into, scope)

    def _add_args(self, args: tuple[Arg, ...], into: str | None, scope: Scope) -> None:
        for arg in args:
            value = evaluate_named(arg.name, arg.value, scope, "yield of")
            self.add(arg.name, value if into is None else self._draft.load(value), into)
