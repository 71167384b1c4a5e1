"""Checks yields: by short name, the target must be the container, a signature mixin or the owning step's facet."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.check_call import check_unique
from treadle.lang.check_expr import infer
from treadle.lang.names import Declared
from treadle.lang.scope import Scope


@dataclass(frozen=True, slots=True)
class Target:
    """A valid target of a yield. `names` are its returns; None: any name is allowed."""

    key: str
    resolved: str | None
    names: frozenset[str] | None
    alias: str | None = None
    declares: bool = True  # False: it declares no returns, so undeclared names only cause a warning


@dataclass(frozen=True, slots=True)
class Targets:
    """Valid targets by the short name or alias that a yield may use; several under one name are ambiguous."""

    by_name: dict[str, tuple[Target, ...]]

    def inside(self, call: tree.Call, declared: Declared | None) -> Targets:
        """Return the targets within a step's body: those of the declaration, and the step's facet."""
        short = call.target.short
        if short in self.by_name:
            return self
        return Targets({**self.by_name, short: (_target(short, declared, None),)})


def targets_of(declared: Declared, context: Context) -> Targets:
    """Return the targets of the blocks of a declaration: itself, its signature mixins, their aliases."""
    facet = declared.node
    assert isinstance(facet, tree.Facet)
    found: dict[str, tuple[Target, ...]] = {}
    flat: set[str] = set()
    for mixin in facet.mixins:
        target = context.symbols.resolve_facet(mixin.target, declared.opening).found
        alias = mixin.alias.text if mixin.alias else None
        each = _target(alias or mixin.target.short, target, alias)
        if alias is None:
            flat |= each.names or set()
        else:
            found[alias] = (each,)
        found[mixin.target.short] = (*found.get(mixin.target.short, ()), each)
    own = _target(facet.name.text, declared, None)
    if own.names is not None:
        own = Target(own.key, own.resolved, own.names | flat)
    found[facet.name.text] = (own,)
    return Targets(found)


def _target(key: str, declared: Declared | None, alias: str | None) -> Target:
    if declared is None:
        return Target(key, None, None, alias)
    node = declared.node
    returns = node.returns if isinstance(node, tree.Facet) else node.fields
    names = frozenset(param.name.text for param in returns) or None
    return Target(key, declared.qualified_name, names, alias, names is not None)


def check_yields(yields: list[tree.Yield], scope: Scope, targets: Targets, context: Context) -> None:
    """Check the yields of one block."""
    first: dict[str, int] = {}
    for statement in yields:
        scope.begin(f"yield `{statement.call.target.text}`")
        _check_yield(statement, scope, targets, first, context)
        context.bindings.depends[id(statement)] = tuple(scope.depends)


def _check_yield(statement: tree.Yield, scope: Scope, targets: Targets, first: dict[str, int], context: Context) -> None:
    call, source = statement.call, scope.opening.source
    target = _find(call.target, targets, scope, context)
    if target is not None:
        if target.key in first:
            message = f"this block already yields to `{call.target.text}` in line {first[target.key]}"
            context.reporter.report("duplicate-yield", source, call.target.span, message, hint="join the two yields")
        first.setdefault(target.key, call.target.span.line)
        if target.resolved is not None:
            context.bindings.callees[id(call)] = target.resolved
        if target.alias is not None:
            context.bindings.into[id(statement)] = target.alias
    _check_args(call.args, call.target, target, scope, context)
    for mixin in call.mixins:
        into = _find(mixin.target, targets, scope, context)
        if into is not None and into.resolved is not None:
            context.bindings.callees[id(mixin)] = into.resolved
        if into is not None and into.alias is not None:
            context.bindings.into[id(mixin)] = into.alias
        _check_args(mixin.args, mixin.target, into, scope, context)


def _find(name: tree.Name, targets: Targets, scope: Scope, context: Context) -> Target | None:
    found = targets.by_name.get(name.short, ())
    source = scope.opening.source
    if len(found) == 1:
        return found[0]
    if found:
        aliases = [each.alias or each.key for each in found]
        message = f"`{name.text}` is mixed in more than once, yield to one of its aliases"
        context.reporter.report("ambiguous-yield", source, name.span, message, valid=aliases)
        return None
    message = f"cannot yield to `{name.text}` here"
    context.reporter.report(
        "yield-target", source, name.span, message, valid=targets.by_name, near=name.text,
        hint="a yield goes to the facet that owns the block, or to one of its signature mixins",
    )  # fmt: skip
    return None


def _check_args(args: tuple[tree.Arg, ...], name: tree.Name, target: Target | None, scope: Scope, context: Context) -> None:
    source = scope.opening.source
    check_unique((arg.name for arg in args), "duplicate-argument", "argument", source, context)
    for arg in args:
        infer(arg.value, scope, context)
        if target is None or arg.name.text in (target.names or ()):
            continue
        message = f"`{name.text}` has no return `{arg.name.text}`"
        if target.names is not None:
            context.reporter.report("unknown-return", source, arg.name.span, message, valid=target.names, near=arg.name.text)
        elif not target.declares:
            context.reporter.warn("undeclared-return", source, arg.name.span, f"{message}; it declares none")
