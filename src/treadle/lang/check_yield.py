"""Checks yields: by short name, the target must be the owner of the block or a mixin of its signature.

Values always go to the owner of the block. So a yield in a step's body that names the enclosing declaration is accepted, as in
the reference implementation, but with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from treadle.lang import nodes
from treadle.lang.check_call import check_argument, free
from treadle.lang.check_expr import infer
from treadle.lang.names import Declared, Definition
from treadle.lang.resolution import check_unique
from treadle.lang.scope import CheckScope, Targets, YieldTarget
from treadle.lang.script_code import read_script
from treadle.lang.types import OptionalType


@dataclass(slots=True, unsafe_hash=True)
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


def fails(statement: nodes.Statement) -> bool:
    """Return whether it is `sys.assert(false)`: a block with it never completes, on purpose."""
    return (
        isinstance(statement, nodes.Sys) and isinstance(statement.condition, nodes.Literal) and statement.condition.value is False
    )


def given_by(blocks: Iterable[nodes.Block], scope: CheckScope) -> Given:
    """Return the names that the blocks, which all run, give their owner; a `foreach` counts as if its list had elements."""
    return reduce(Given.then, (_given_by_block(block, scope) for block in blocks), _NOTHING)


def _given_by_block(block: nodes.Block, scope: CheckScope) -> Given:
    if block.too_deep:
        return Given(open=True)
    if block.script is not None:
        code = read_script(block.script)
        written = frozenset(code.writes)
        return Given(written, written, code.open)
    if block.cases:
        blocks = [case.block for case in block.cases if not any(fails(statement) for statement in case.block.statements)]
        branches = [_given_by_block(inner, scope) for inner in blocks]
        return reduce(Given.otherwise, branches) if branches else Given(open=True)
    names: set[str] = set()
    into = scope.context.bindings.into
    for statement in block.statements:
        if type(statement) is nodes.Step:
            continue
        if fails(statement):
            return Given(open=True)
        if isinstance(statement, nodes.Yield):
            if id(statement) not in into:
                names.update([arg.name.text for arg in statement.call.args])
            for mixin in statement.call.mixins:
                if id(mixin) not in into:
                    names.update(arg.name.text for arg in mixin.args)
    yielded = frozenset(names)
    errors = (
        frozenset([block.foreach.failed.text]) if block.foreach is not None and block.foreach.failed is not None else frozenset()
    )
    return Given(errors if _may_be_null(block.foreach, scope) else yielded | errors, yielded | errors)


def _may_be_null(foreach: nodes.Foreach | None, scope: CheckScope) -> bool:
    """Return whether a loop may have no items because its list is null."""
    return foreach is not None and isinstance(scope.context.bindings.types.get(id(foreach.iterable)), OptionalType)


def given_although_failed(facet: nodes.Facet, catch: nodes.Block, scope: CheckScope) -> Given:
    """Return the names that a catch gives, together with the blocks of the facet that call nothing and so complete anyway."""
    calm = [
        block for block in facet.blocks
        if block.statements and all(isinstance(statement, nodes.Yield) for statement in block.statements)
    ]  # fmt: skip
    return given_by((*calm, catch), scope)


def check_returns(facet: nodes.Facet, scope: CheckScope) -> None:
    """Warn about returns of a declaration that no block gives, or that only some paths give."""
    excused = scope.context.misyielded.get(id(facet), set())
    if excused is None:
        return
    if facet.kind is nodes.FacetKind.EVENT and facet.catch is None:
        return
    needed = [param for param in facet.returns if param.is_needed and param.name.text not in excused]
    caught = _NOTHING if facet.catch is None else given_although_failed(facet, facet.catch, scope)
    if facet.kind is not nodes.FacetKind.EVENT and (facet.blocks or facet.pre_script or facet.catch):
        yielded = given_by(facet.blocks, scope)
        for param in needed:
            _check_return(param, yielded, caught, facet, scope)
    if facet.catch is not None:
        for param in needed:
            if param.name.text not in caught.always and not caught.open:
                _warn("no value when its `catch` runs", param, facet, scope)


def _check_return(param: nodes.Param, yielded: Given, caught: Given, facet: nodes.Facet, scope: CheckScope) -> None:
    name = param.name.text
    if name in yielded.always or yielded.open:
        return
    is_param = any(other.name.text == name for other in facet.params)
    if name in yielded.sometimes:
        loops = (block.foreach for block in facet.blocks)
        where = (
            "if the list of `foreach` is null" if any(_may_be_null(loop, scope) for loop in loops) else "in some cases of `when`"
        )
        _warn(f"no value {where}", param, facet, scope)
    elif name in caught.sometimes or caught.open:
        _warn("a value only when its `catch` runs", param, facet, scope)
    elif facet.pre_script is not None and name in read_script(facet.pre_script).writes:
        scope.warn("pre-script-return", param.name.span, name=name, facet=facet.name.text)
    elif facet.kind is nodes.FacetKind.WORKFLOW or not is_param:  # a step has its parameters as attributes too
        scope.warn("return-never-yielded", param.name.span, facet=facet.name.text, name=name)


def _warn(what: str, param: nodes.Param, facet: nodes.Facet, scope: CheckScope) -> None:
    values = {"name": param.name.text, "default": "[]" if isinstance(param.type, nodes.ListType) else "null"}
    scope.warn("return-not-always", param.name.span, facet=facet.name.text, what=what, **values)


def targets_inside(outer: Targets, step: nodes.Step, declared: Declared | None, scope: CheckScope) -> Targets:
    """Return the targets within a step's body: the step's facet."""
    own = _target(step.call.target.short, declared, None, scope)
    return Targets(own, {own.key: (own,)}, {**outer.outer, **outer.by_name}, step.name.text)


def targets_of(declared: Declared, scope: CheckScope) -> Targets:
    """Return the targets of the blocks of a declaration: itself, its signature mixins, their aliases."""
    facet = declared.node
    assert isinstance(facet, nodes.Facet)
    targets: dict[str, tuple[YieldTarget, ...]] = {}
    flat: dict[str, Definition] = {}
    for mixin in facet.mixins:
        target = scope.context.symbols.resolve_facet(mixin.target, declared.opening).found
        alias = mixin.alias.text if mixin.alias else None
        mixin_target = _target(alias or mixin.target.short, target, alias, scope)
        if alias is None:
            flat.update(mixin_target.returns or {})
        else:
            targets[alias] = (mixin_target,)
        targets[mixin.target.short] = (*targets.get(mixin.target.short, ()), mixin_target)
    own = _target(facet.name.text, declared, None, scope)
    if own.returns is not None and flat:
        own = YieldTarget(own.key, own.declared, {**flat, **own.returns})
    targets[facet.name.text] = (own,)
    return Targets(own, targets)


def _target(key: str, declared: Declared | None, alias: str | None, scope: CheckScope) -> YieldTarget:
    if declared is None:
        return YieldTarget(key, None, None, alias)
    return YieldTarget(key, declared, scope.context.tables.returns(declared) or None, alias)


def check_yields(yields: Iterable[nodes.Yield], scope: CheckScope) -> None:
    """Check the yields of one block."""
    first: dict[str, int] = {}
    for statement in yields:
        scope.begin(f"yield `{statement.call.target.text}`")
        _check_yield(statement, scope, first)
        scope.context.bindings.depends[id(statement)] = tuple(scope.depends)


def _check_yield(statement: nodes.Yield, scope: CheckScope, first: dict[str, int]) -> None:
    call = statement.call
    target = _bind(call, id(statement), scope)
    if target is not None:
        if target.key in first:
            scope.report("duplicate-yield", call.target.span, target=call.target.text, line=first[target.key])
        first.setdefault(target.key, call.target.span.line)
    for mixin in call.mixins:
        _bind(mixin, id(mixin), scope)


def _bind(node: nodes.Call | nodes.Mixin, key: int, scope: CheckScope) -> YieldTarget | None:
    """Find the target of a yield, or of a mixin of a yield, record it, and check the values."""
    target = _find(node, scope)
    own = node.target.short in scope.targets.by_name
    if target is not None and target.declared is not None:
        scope.context.bindings.callees[id(node)] = target.declared.qualified_name
        scope.use(node.target, scope.context.symbols.definition(target.declared))
    if target is not None and target.alias is not None:
        scope.context.bindings.into[key] = target.alias
    _check_args(node, target, scope, own)
    return target


def _find(node: nodes.Call | nodes.Mixin, scope: CheckScope) -> YieldTarget | None:
    name, targets = node.target, scope.targets
    matches = targets.by_name.get(name.short, ())
    if not matches and (outer := targets.outer.get(name.short)):
        _warn_outer(node, scope)
        matches = outer
        for target in outer:
            names = None if target.declared is None else scope.context.misyielded.setdefault(id(target.declared.node), set())
            if names is not None:
                names.update(arg.name.text for arg in node.args)
    if len(matches) == 1:
        return matches[0]
    if matches:
        aliases = [target.alias or target.key for target in matches]
        scope.report("ambiguous-yield", name.span, valid=aliases, name=name.text)
        return None
    owner = "the facet that owns the block, or to one of its signature mixins"
    if targets.owner is not None:
        owner = f"the owner of the block, which is step `{targets.owner}`"
    scope.report("yield-target", name.span, valid=targets.by_name, near=name.text, owner=owner)
    return None


def _warn_outer(node: nodes.Call | nodes.Mixin, scope: CheckScope) -> None:
    """Warn that a yield in a step's body gives its values to the step, not to the declaration that it names."""
    name, targets = node.target, scope.targets
    values = f" with values of `{targets.owner}`" if node.args else ""
    scope.warn(
        "yield-owner",
        name.span,
        valid=targets.by_name,
        owner=targets.owner,
        name=name.text,
        valid_=next(iter(targets.by_name)),
        values=values,
    )


def _check_args(node: nodes.Call | nodes.Mixin, target: YieldTarget | None, scope: CheckScope, own: bool) -> None:
    """Check the values; the names only if the target is the owner of the block, as a wrong target is reported already."""
    name = node.target
    check_unique(node.args, "duplicate-argument", scope)
    for arg in node.args:
        returns = target.returns if target is not None else None
        definition = None if returns is None else returns.get(arg.name.text)
        if definition is not None:
            check_argument(arg, definition, f"return `{arg.name.text}` of `{name.text}`", scope)
            continue
        infer(arg.value, scope)
        if not own:
            continue
        if returns is not None:
            if target is not None and target.declared is not None:
                scope.context.misyielded[id(target.declared.node)] = None
            scope.report("unknown-return", arg.name.span, valid=free(returns, node.args), near=arg.name.text, name=name.text)
        elif target is not None and target.declared is not None:
            scope.warn("undeclared-return", arg.name.span, name=name.text, arg=arg.name.text)
