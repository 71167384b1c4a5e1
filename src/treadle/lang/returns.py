"""Follows which returns the blocks of a declaration or step give: on every path, on some paths, or never."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.names import Opening
from treadle.lang.nodes import node
from treadle.lang.script_code import read_script
from treadle.lang.types import OptionalType


@node
class Given:
    """Names that get a value: `always` and `sometimes`; `open`: others may get one too."""

    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    open: bool = False

    def then(self, other: Given) -> Given:
        """Combine blocks that all run."""
        return Given(self.always | other.always, self.sometimes | other.sometimes, self.open or other.open)

    def otherwise(self, other: Given) -> Given:
        """Combine cases of which at least one runs."""
        return Given(self.always & other.always, self.sometimes | other.sometimes, self.open or other.open)


_NOTHING = Given()


def fails(statement: tree.Statement) -> bool:
    """Return whether it is `sys.assert(false)`: a block with it never completes, on purpose."""
    return (
        isinstance(statement, tree.SysAssert)
        and isinstance(statement.condition, tree.Literal)
        and statement.condition.value is False
    )


def given_by(blocks: Iterable[tree.Block | tree.TooDeep], context: Context) -> Given:
    """Return the names that the blocks, which all run, give their owner; a `foreach` counts as if its list had elements."""
    total: Given | None = None
    for block in blocks:
        given = _given_by_block(block, context)
        total = given if total is None else total.then(given)
    return _NOTHING if total is None else total


def _given_by_block(block: tree.Block | tree.TooDeep, context: Context) -> Given:
    if isinstance(block, tree.TooDeep):
        return Given(open=True)
    if block.script is not None:
        code = read_script(block.script)
        written = frozenset(code.writes)
        return Given(written, written, code.open)
    if block.cases:
        total: Given | None = None
        for case in block.cases:
            if not (isinstance(case.block, tree.Block) and any(fails(each) for each in case.block.statements)):
                each = _given_by_block(case.block, context)
                total = each if total is None else total.otherwise(each)
        return Given(open=True) if total is None else total
    names: set[str] = set()
    into = context.bindings.into
    for statement in block.statements:
        if type(statement) is tree.Step:
            continue
        if fails(statement):
            return Given(open=True)
        if isinstance(statement, tree.Yield):
            if id(statement) not in into:
                names.update([arg.name.text for arg in statement.call.args])
            for mixin in statement.call.mixins:
                if id(mixin) not in into:
                    names.update(arg.name.text for arg in mixin.args)
    found = frozenset(names)
    errors = (
        frozenset([block.foreach.failed.text]) if block.foreach is not None and block.foreach.failed is not None else frozenset()
    )
    return Given(errors if _may_be_null(block.foreach, context) else found | errors, found | errors)


def _may_be_null(foreach: tree.Foreach | None, context: Context) -> bool:
    """Return whether a loop may have no items because its list is null."""
    return foreach is not None and isinstance(context.bindings.types.get(id(foreach.iterable)), OptionalType)


def given_although_failed(facet: tree.Facet, catch: tree.Block | tree.TooDeep, context: Context) -> Given:
    """Return the names that a catch gives, together with the blocks of the facet that call nothing and so complete anyway."""
    calm = [
        block for block in facet.blocks
        if isinstance(block, tree.Block) and block.statements and all(isinstance(each, tree.Yield) for each in block.statements)
    ]  # fmt: skip
    return given_by((*calm, catch), context)


def check_returns(facet: tree.Facet, opening: Opening, context: Context) -> None:
    """Warn about returns of a declaration that no block gives, or that only some paths give."""
    excused = context.misyielded.get(id(facet), set())
    if excused is None:
        return
    if facet.kind is tree.FacetKind.EVENT and facet.catch is None:
        return
    needed = [each for each in facet.returns if each.is_needed and each.name.text not in excused]
    caught = _NOTHING if facet.catch is None else given_although_failed(facet, facet.catch, context)
    if facet.kind is not tree.FacetKind.EVENT and (facet.blocks or facet.pre_script or facet.catch):
        given = given_by(facet.blocks, context)
        for each in needed:
            _check_return(each, given, caught, facet, opening, context)
    if facet.catch is not None:
        for each in needed:
            if each.name.text not in caught.always and not caught.open:
                message = f"return `{each.name.text}` of `{facet.name.text}` gets no value when its `catch` runs"
                _warn(message, each, opening, context)


def _check_return(param: tree.Param, given: Given, caught: Given, facet: tree.Facet, opening: Opening, context: Context) -> None:
    name = param.name.text
    if name in given.always or given.open:
        return
    is_param = any(each.name.text == name for each in facet.params)
    if name in given.sometimes:
        loops = (block.foreach for block in facet.blocks if isinstance(block, tree.Block))
        where = (
            "if the list of `foreach` is null" if any(_may_be_null(each, context) for each in loops) else "in some cases of `when`"
        )
        _warn(f"return `{name}` of `{facet.name.text}` gets no value {where}", param, opening, context)
    elif name in caught.sometimes or caught.open:
        _warn(f"return `{name}` of `{facet.name.text}` gets a value only when its `catch` runs", param, opening, context)
    elif facet.pre_script is not None and name in read_script(facet.pre_script).writes:
        message = f"only the pre-script writes `{name}`; a pre-script adds inputs, so the return `{name}` is never given"
        hint = f"add `andThen {{ yield {facet.name.text}({name} = $.{name}) }}`"
        context.reporter.warn("pre-script-return", opening.source, param.name.span, message, hint=hint)
    elif facet.kind is tree.FacetKind.WORKFLOW or not is_param:  # a step has its parameters as attributes too
        message = f"no block of `{facet.name.text}` yields the return `{name}`, so it never gets a value"
        hint = f"yield it, as in `yield {facet.name.text}({name} = ...)`, or give it a default"
        context.reporter.warn("return-never-yielded", opening.source, param.name.span, message, hint=hint)


def _warn(message: str, param: tree.Param, opening: Opening, context: Context) -> None:
    default = "[]" if isinstance(param.type, tree.ListType) else "null"
    hint = f"yield it there too, or give it a default, as in `{param.name.text}: ... = {default}`"
    context.reporter.warn("return-not-always", opening.source, param.name.span, message, hint=hint)
