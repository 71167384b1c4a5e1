"""Reports what the reference implementation does not have, for programs that must run there, too."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.names import Opening

_MIXINS = frozenset(["Retry"])


def check_reference(context: Context) -> None:
    """Report the use of every extension as an error."""
    for opening in context.symbols.openings:
        for mixin in _mixins(opening):
            built_in = mixin.target.text in _MIXINS and mixin.alias is None
            if built_in and context.symbols.resolve_facet(mixin.target, opening).found is None:
                message = f"`with {mixin.target.text}(...)` is an extension that the reference does not have"
                hint = "set the policy of the handler instead, or compile without --reference"
                context.reporter.report("reference-extension", opening.source, mixin.span, message, hint=hint)


def _mixins(opening: Opening) -> Iterator[tree.Mixin]:
    blocks: list[tree.Block | tree.TooDeep | None] = []
    for item in opening.items:
        if isinstance(item, tree.Facet):
            yield from item.mixins
            blocks += [*item.blocks, item.catch]
        elif isinstance(item, tree.Implicit):
            yield from item.call.mixins
    while blocks:
        block = blocks.pop()
        if not isinstance(block, tree.Block):
            continue
        blocks += [case.block for case in block.cases or ()]
        for statement in block.statements:
            if isinstance(statement, tree.Step):
                blocks += [statement.body, statement.catch]
                yield from statement.call.mixins
