"""Merges yielded values: in the order of blocks, items and yields the last value wins, and two lists are concatenated."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.evaluator.draft import Draft, Missing
from treadle.evaluator.expressions import evaluate_named
from treadle.evaluator.records import BlobRef, Value
from treadle.evaluator.scope import Scope
from treadle.lang.program import Arg, Block
from treadle.model.values import Json


class Merge:
    """The merged values so far. Values for a signature alias are grouped under the alias."""

    def __init__(self, draft: Draft) -> None:
        self.values: dict[str, Value] = {}
        self._draft = draft
        self._own: dict[tuple[str | None, str], list[Value]] = {}
        self._sizes: dict[tuple[str | None, str], int] = {}
        """Bytes of the lists in `_own`."""
        self._missing: list[str] = []

    def add(self, name: str, value: Value, into: str | None = None) -> None:
        """Add one value; `into` is the alias to which it was yielded."""
        values = self.values if into is None else self.values.setdefault(into, {})
        if name not in values:
            values[name] = value
            return
        values[name] = self._join((into, name), values[name], value)

    def _join(self, key: tuple[str | None, str], before: Value, value: Value) -> Value:
        """Merge two values of one name. Lists are copied once and then extended, so that the total cost stays linear."""
        if not (_may_be_list(before) and _may_be_list(value)):
            return value
        first, second = self._load(before), self._load(value)
        if not isinstance(first, list) or not isinstance(second, list):
            return value
        sizes = self._draft.sizes
        own = self._own.get(key)
        if own is not first:
            own = self._own[key] = list(first)
            self._sizes[key] = sizes.of(first)
        added = sizes.of(second)
        self._sizes[key] += added
        sizes.check(self._sizes[key])
        sizes.count(added)
        own.extend(second)
        return own

    def _load(self, value: Value) -> Json:
        """Load the value behind a reference. A missing one counts as a list for now; one `Need` requests all of them."""
        try:
            return self._draft.load(value)
        except Missing as unseen:
            self._missing += unseen.blobs
            return []

    def finish(self) -> dict[str, Value]:
        """Return the merged values."""
        if self._missing:
            raise Missing(blobs=self._missing)
        return self.values

    def add_all(self, returns: Mapping[str, Value], aliases: frozenset[str]) -> None:
        """Add the values that a block has already merged."""
        for name, value in returns.items():
            if name in aliases:
                for each, inner in self._draft.load(value).items():
                    self.add(each, inner, name)
            else:
                self.add(name, value)

    def add_yields(self, block: Block, scope: Scope) -> None:
        """Add all yields of a block, in order; they carry only their written arguments."""
        for statement in block.yields:
            self._add_args(statement.call.args, statement.into, scope)
            for mixin in statement.call.mixins:
                self._add_args(mixin.args, mixin.into, scope)

    def _add_args(self, args: tuple[Arg, ...], into: str | None, scope: Scope) -> None:
        for arg in args:
            value = evaluate_named(arg.name, arg.value, scope, "yield of")
            self.add(arg.name, value if into is None else self._draft.load(value), into)


def _may_be_list(value: Value) -> bool:
    return value.is_list is not False if isinstance(value, BlobRef) else isinstance(value, list)
