"""Checks that values fit the types of the parameters, returns and fields that take them."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.lang import hints, tree
from treadle.lang.bindings import Context
from treadle.lang.check_expr import check_keys_once, infer, shown_path, whole_number
from treadle.lang.definitions import Definition
from treadle.lang.diagnostics import Edit, Fix, nearest
from treadle.lang.scope import Scope
from treadle.lang.types import (
    DOUBLE,
    LONG,
    NULL,
    STRING,
    ListType,
    Misfit,
    NamedType,
    OptionalType,
    RecordType,
    Type,
    describe,
    is_number,
    misfit,
    optional,
    required,
    words,
)


def check_value(
    expr: tree.Expr, wanted: Type, what: str, scope: Scope, context: Context, *, hint: str | None = None, kind: str | None = None
) -> Type:
    """Infer an expression and warn if it cannot fit the type; literals are checked part by part, at the place of the part.

    `kind` describes the type in the message.
    """
    inner = required(wanted)
    if type(expr) is tree.MapLiteral and isinstance(inner, NamedType):
        fields = context.tables.fields(inner.name)
        if fields is not None:
            return _check_map(expr, inner, what, scope, context)
    if type(expr) is tree.ArrayLiteral and isinstance(inner, ListType) and expr.elements:
        for element in expr.elements:
            check_value(element, inner.element, f"each element of {what}", scope, context)
        context.bindings.types[id(expr)] = inner
        return inner
    if inner == DOUBLE and whole_number(expr) is not None:  # of any size
        context.bindings.types[id(expr)] = LONG
        return LONG
    found = infer(expr, scope, context)
    wrong = None if found is wanted else misfit(found, wanted, context.tables.fields)
    if wrong is not None:
        _warn(expr, wrong, what, scope, context, hint, kind)
    return found


def check_default(expr: tree.Expr, definition: Definition, what: str, scope: Scope, context: Context) -> None:
    """Check the default of a parameter or return; `null` makes it optional."""
    if _is_null(expr):
        infer(expr, scope, context)
    else:
        check_value(expr, definition.type, what, scope, context)


def check_argument(arg: tree.Arg, definition: Definition, what: str, scope: Scope, context: Context) -> Type:
    """Check the value for a parameter, return or field, which may be null if its type is optional or its own default is null."""
    context.use(scope.opening.source, arg.name, definition)
    node, hint, wanted = definition.node, None, definition.type
    if isinstance(node, tree.Param) and node.default is not None and _is_null(node.default):
        wanted = optional(wanted)
    if scope.loop is not None and isinstance(required(definition.type), ListType) and what.startswith("return"):
        hint = "in a foreach, each element yields a list, and the lists are joined: write `[...]`"
    return check_value(arg.value, wanted, what, scope, context, hint=hint)


def misspelt(unknown: Iterable[tree.Arg | tree.Entry], names: Iterable[str], given: set[str], context: Context) -> set[str]:
    """Return the names without a value that unknown ones probably mean, as one mistake should cause one diagnostic."""
    found: set[str] = set()
    for each in unknown if context.reporter.detailed else ():
        name = each.name if isinstance(each, tree.Arg) else each.key
        near = nearest(name.text, [name for name in names if name not in given])
        found |= {near} if near else set()
    return found


def free(names: Iterable[str], args: Iterable[tree.Arg]) -> list[str]:
    """Return the names that no argument gives, to suggest for one that does not exist."""
    given = {arg.name.text for arg in args}
    return [name for name in names if name not in given]


def _is_null(expr: tree.Expr | None) -> bool:
    return isinstance(expr, tree.Literal) and expr.value is None


def _check_map(expr: tree.MapLiteral, wanted: NamedType, what: str, scope: Scope, context: Context) -> Type:
    """Check a map literal for a schema, entry by entry."""
    source = scope.opening.source
    check_keys_once(expr, scope, context)
    declared = context.symbols.schemas.exact[wanted.name]
    fields = context.tables.params(declared)
    given = {entry.key.text for entry in expr.entries}
    unknown = [entry for entry in expr.entries if entry.key.text not in fields]
    for entry in expr.entries:
        name = entry.key.text
        if name in fields:
            context.use(source, entry.key, fields[name])
            check_value(entry.value, fields[name].type, f"field `{name}` of `{wanted.name}`", scope, context)
        else:
            infer(entry.value, scope, context)
            message = f"schema `{wanted.name}` has no field `{name}`"
            context.reporter.warn(
                "unknown-field", source, entry.key.span, message, valid=[each for each in fields if each not in given], near=name
            )
    given |= misspelt(unknown, fields, given, context)
    missing = [name for name, each in fields.items() if name not in given and not isinstance(each.type, OptionalType)][:12]
    if missing:
        message = f"{what} must be a `{wanted.name}`, this map has no value for {', '.join(f'`{name}`' for name in missing)}"
        context.reporter.warn("missing-field", source, expr.span, message)
    context.bindings.types[id(expr)] = wanted
    return wanted


def _warn(expr: tree.Expr, wrong: Misfit, what: str, scope: Scope, context: Context, hint: str | None, kind: str | None) -> None:
    subject = f"{what}: its `{wrong.path.removeprefix('.')}`" if wrong.path else what
    if wrong.found is None:
        message = f"{what} has no value for `{wrong.path.removeprefix('.')}`"
    elif wrong.wanted is None:
        message = f"{what} has no field `{wrong.path.removeprefix('.')}`"
    elif isinstance(wrong.found, OptionalType):
        message = f"{subject} must be {describe(wrong.wanted)}, this may be null"
    else:
        message = f"{subject} must be {kind or describe(wrong.wanted)}, this is {describe(wrong.found)}"
    fixes: tuple[Fix, ...] = ()
    if not wrong.path and wrong.wanted is not None and wrong.found is not None:
        fixes, own = _remedy(expr, wrong.wanted, wrong.found, context)
        hint = hint or own
    context.reporter.warn("type-mismatch", scope.opening.source, expr.span, message, hint=hint, fixes=fixes)


def _remedy(expr: tree.Expr, wanted: Type, found: Type, context: Context) -> tuple[tuple[Fix, ...], str | None]:
    """Return the fix and the hint for common mismatches."""
    if isinstance(found, OptionalType):
        if isinstance(expr, tree.Function) and expr.name.text == "first":
            return (), "`[0]` takes the first element, and fails the step if there is none"
        hint = f"declare it as `{words(found)}` too, or give the value a type without `?`"
        return (), f"{hint}, or {hints.WITHOUT_NULL.format(shown_path(expr))}" if isinstance(
            expr, tree.InputRef | tree.Ref
        ) else hint
    if isinstance(wanted, ListType) and misfit(found, wanted.element, context.tables.fields) is None:
        edits = (Edit(expr.span.part(0, 0), "["), Edit(expr.span.end, "]"))
        return (Fix("Make it a list of one element", edits),), "write `[...]` for a list of one element"
    if isinstance(expr, tree.Literal) and isinstance(expr.value, str) and is_number(wanted) and _is_number_text(expr.value, wanted):
        return (Fix("Write it as a number", (Edit(expr.span, expr.value),)),), "write numbers without quotes"
    if isinstance(expr, tree.Literal) and wanted == STRING and is_number(found):
        return (Fix("Write it as text", (Edit(expr.span, f'"{expr.value}"'),)),), "write text in double quotes"
    if found == NULL:
        return (), f"declare it as `{words(wanted)}?` if it may have no value"
    if wanted == STRING and not isinstance(found, RecordType | ListType):
        return (), '`"" ++ value` makes a text of any value'
    if is_number(wanted) and is_number(found):
        return (), "`/` and Doubles give a Double, which is not a whole number"
    return (), None


def _is_number_text(text: str, wanted: Type) -> bool:
    whole = text.isascii() and text.isdigit()
    before, _, after = text.partition(".")
    return whole or (wanted == NamedType("Double") and before.isdigit() and after.isdigit() and text.isascii())
