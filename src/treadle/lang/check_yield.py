"""Checks yields: by short name, the target must be the owner of the block or a mixin of its signature.

Values always go to the owner of the block. So a yield in a step's body that names the enclosing declaration is accepted, as in
the reference implementation, but with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.check_expr import infer
from treadle.lang.check_value import check_argument, free
from treadle.lang.definitions import Definition
from treadle.lang.names import Declared
from treadle.lang.nodes import node
from treadle.lang.resolution import check_unique
from treadle.lang.scope import Scope


@node
class Target:
    """A valid target of a yield. `returns` are its returns; None: any name is allowed."""

    key: str
    declared: Declared | None
    returns: Mapping[str, Definition] | None
    alias: str | None = None
    declares: bool = True  # False: it declares no returns, so undeclared names only cause a warning


@node
class Targets:
    """Valid targets by the short name or alias that a yield may use; several under one name are ambiguous. `own`: the owner.

    Within the body of the step `owner`, `outer` has the targets of the enclosing blocks.
    """

    own: Target
    by_name: Mapping[str, tuple[Target, ...]]
    outer: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    owner: str | None = None

    def inside(self, step: tree.Step, declared: Declared | None, context: Context) -> Targets:
        """Return the targets within a step's body: the step's facet."""
        short = step.call.target.short
        outer = {**self.outer, **self.by_name}
        own = _target(short, declared, None, context)
        return Targets(own, {short: (own,)}, outer, step.name.text)


def targets_of(declared: Declared, context: Context) -> Targets:
    """Return the targets of the blocks of a declaration: itself, its signature mixins, their aliases."""
    facet = declared.node
    assert isinstance(facet, tree.Facet)
    found: dict[str, tuple[Target, ...]] = {}
    flat: dict[str, Definition] = {}
    for mixin in facet.mixins:
        target = context.symbols.resolve_facet(mixin.target, declared.opening).found
        alias = mixin.alias.text if mixin.alias else None
        each = _target(alias or mixin.target.short, target, alias, context)
        if alias is None:
            flat.update(each.returns or {})
        else:
            found[alias] = (each,)
        found[mixin.target.short] = (*found.get(mixin.target.short, ()), each)
    own = _target(facet.name.text, declared, None, context)
    if own.returns is not None and flat:
        own = Target(own.key, own.declared, {**flat, **own.returns})
    found[facet.name.text] = (own,)
    return Targets(own, found)


def _target(key: str, declared: Declared | None, alias: str | None, context: Context) -> Target:
    if declared is None:
        return Target(key, None, None, alias)
    returns = context.tables.returns(declared) or None
    return Target(key, declared, returns, alias, returns is not None)


def check_yields(yields: list[tree.Yield], scope: Scope, targets: Targets, context: Context) -> None:
    """Check the yields of one block."""
    first: dict[str, int] = {}
    for statement in yields:
        scope.begin(f"yield `{statement.call.target.text}`")
        _check_yield(statement, scope, targets, first, context)
        context.bindings.depends[id(statement)] = tuple(scope.depends)


def _check_yield(statement: tree.Yield, scope: Scope, targets: Targets, first: dict[str, int], context: Context) -> None:
    call, source = statement.call, scope.opening.source
    target = _bind(call, id(statement), targets, scope, context)
    if target is not None:
        if target.key in first:
            message = f"this block already yields to `{call.target.text}` in line {first[target.key]}"
            context.reporter.report("duplicate-yield", source, call.target.span, message, hint="join the two yields")
        first.setdefault(target.key, call.target.span.line)
    for mixin in call.mixins:
        _bind(mixin, id(mixin), targets, scope, context)


def _bind(node: tree.Call | tree.Mixin, key: int, targets: Targets, scope: Scope, context: Context) -> Target | None:
    """Find the target of a yield, or of a mixin of a yield, record it, and check the values."""
    target = _find(node, targets, scope, context)
    own = node.target.short in targets.by_name
    if target is not None and target.declared is not None:
        context.bindings.callees[id(node)] = target.declared.qualified_name
        context.use(scope.opening.source, node.target, context.symbols.definition(target.declared))
    if target is not None and target.alias is not None:
        context.bindings.into[key] = target.alias
    _check_args(node, target, scope, context, own)
    return target


def _find(node: tree.Call | tree.Mixin, targets: Targets, scope: Scope, context: Context) -> Target | None:
    name, source = node.target, scope.opening.source
    found = targets.by_name.get(name.short, ())
    if not found and (outer := targets.outer.get(name.short)):
        _warn_outer(node, targets, scope, context)
        found = outer
        for each in outer:
            known = None if each.declared is None else context.misyielded.setdefault(id(each.declared.node), set())
            if known is not None:
                known.update(arg.name.text for arg in node.args)
    if len(found) == 1:
        return found[0]
    if found:
        aliases = [each.alias or each.key for each in found]
        message = f"`{name.text}` is mixed in more than once, yield to one of its aliases"
        context.reporter.report("ambiguous-yield", source, name.span, message, valid=aliases)
        return None
    message = f"cannot yield to `{name.text}` here"
    owner = "the facet that owns the block, or to one of its signature mixins"
    if targets.owner is not None:
        owner = f"the owner of the block, which is step `{targets.owner}`"
    context.reporter.report(
        "yield-target", source, name.span, message, valid=targets.by_name, near=name.text, hint=f"a yield goes to {owner}"
    )
    return None


def _warn_outer(node: tree.Call | tree.Mixin, targets: Targets, scope: Scope, context: Context) -> None:
    """Warn that a yield in a step's body gives its values to the step, not to the declaration that it names."""
    name, valid = node.target, next(iter(targets.by_name))
    message = f"this block belongs to step `{targets.owner}`, so its values go to that step and not to `{name.text}`"
    values = f" with values of `{targets.owner}`" if node.args else ""
    hint = f"yield to `{valid}` here, and to `{name.text}` after the step{values}"
    context.reporter.warn("yield-owner", scope.opening.source, name.span, message, valid=targets.by_name, hint=hint)


def _check_args(node: tree.Call | tree.Mixin, target: Target | None, scope: Scope, context: Context, own: bool) -> None:
    """Check the values; the names only if the target is the owner of the block, as a wrong target is reported already."""
    source, name = scope.opening.source, node.target
    check_unique(node.args, "duplicate-argument", "argument", scope.opening, context)
    for arg in node.args:
        returns = target.returns if target is not None else None
        found = None if returns is None else returns.get(arg.name.text)
        if found is not None:
            check_argument(arg, found, f"return `{arg.name.text}` of `{name.text}`", scope, context)
            continue
        infer(arg.value, scope, context)
        message = f"`{name.text}` has no return `{arg.name.text}`"
        if not own:
            continue
        if returns is not None:
            if target is not None and target.declared is not None:
                context.misyielded[id(target.declared.node)] = None
            context.reporter.report(
                "unknown-return", source, arg.name.span, message, valid=free(returns, node.args), near=arg.name.text
            )
        elif target is not None and not target.declares:
            context.reporter.warn("undeclared-return", source, arg.name.span, f"{message}; it declares none")
