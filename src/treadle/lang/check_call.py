"""Checks calls and mixins: the callee, the arguments that it takes, and step references among them.

Values must fit the types of the parameters, returns and fields that take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from treadle.lang import hints, nodes
from treadle.lang.builtins import BUILTIN_MIXINS, MAX_TIMEOUT, MIXIN_EXAMPLES, RETRY_RANGES, TIMEOUT_UNITS
from treadle.lang.check_expr import check_keys_once, infer, note_step, shown_path, whole_number
from treadle.lang.check_script import filled_by
from treadle.lang.declare import SOURCE
from treadle.lang.diagnostics import Edit, Fix, nearest
from treadle.lang.names import Declared, Definition
from treadle.lang.resolution import check_unique, resolve_callee, resolve_facet
from treadle.lang.scope import CheckScope
from treadle.lang.types import (
    DOUBLE,
    LONG,
    NULL,
    STRING,
    UNKNOWN,
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
    expr: nodes.Expr, wanted: Type, what: str, scope: CheckScope, *, hint: str | None = None, kind: str | None = None
) -> Type:
    """Infer an expression and warn if it cannot fit the type; literals are checked part by part, at the place of the part.

    `kind` describes the type in the message.
    """
    inner = required(wanted)
    if type(expr) is nodes.MapLiteral and isinstance(inner, NamedType):
        fields = scope.context.tables.fields(inner.name)
        if fields is not None:
            return _check_map(expr, inner, what, scope)
    if type(expr) is nodes.ArrayLiteral and isinstance(inner, ListType) and expr.elements:
        for element in expr.elements:
            check_value(element, inner.element, f"each element of {what}", scope)
        scope.context.bindings.types[id(expr)] = inner
        return inner
    if inner == DOUBLE and whole_number(expr) is not None:  # of any size
        scope.context.bindings.types[id(expr)] = LONG
        return LONG
    inferred = infer(expr, scope)
    wrong = None if inferred is wanted else misfit(inferred, wanted, scope.context.tables.fields)
    if wrong is not None:
        _warn(expr, wrong, what, scope, hint, kind)
    return inferred


def check_default(expr: nodes.Expr, definition: Definition, what: str, scope: CheckScope) -> None:
    """Check the default of a parameter or return; `null` makes it optional."""
    if _is_null(expr):
        infer(expr, scope)
    else:
        check_value(expr, definition.type, what, scope)


def check_argument(arg: nodes.Arg, definition: Definition, what: str, scope: CheckScope) -> Type:
    """Check the value for a parameter, return or field, which may be null if its type is optional or its own default is null."""
    scope.use(arg.name, definition)
    node, hint, wanted = definition.node, None, definition.type
    if isinstance(node, nodes.Param) and node.default is not None and _is_null(node.default):
        wanted = optional(wanted)
    if scope.loop is not None and isinstance(required(definition.type), ListType) and what.startswith("return"):
        hint = "in a foreach, each element yields a list, and the lists are joined: write `[...]`"
    return check_value(arg.value, wanted, what, scope, hint=hint)


def misspelt(unknown: Iterable[nodes.Arg], names: Iterable[str], passed: set[str], scope: CheckScope) -> set[str]:
    """Return the names without a value that unknown ones probably mean, as one mistake should cause one diagnostic."""
    intended: set[str] = set()
    for arg in unknown if scope.context.reporter.detailed else ():
        near = nearest(arg.name.text, [name for name in names if name not in passed])
        intended |= {near} if near else set()
    return intended


def free(names: Iterable[str], args: Iterable[nodes.Arg]) -> list[str]:
    """Return the names that no argument gives, to suggest for one that does not exist."""
    passed = {arg.name.text for arg in args}
    return [name for name in names if name not in passed]


def _is_null(expr: nodes.Expr | None) -> bool:
    return isinstance(expr, nodes.Literal) and expr.value is None


def _check_map(expr: nodes.MapLiteral, wanted: NamedType, what: str, scope: CheckScope) -> Type:
    """Check a map literal for a schema, entry by entry."""
    check_keys_once(expr, scope)
    fields = scope.context.tables.params(scope.context.symbols.schemas.exact[wanted.name])
    keys = {entry.name.text for entry in expr.entries}
    unknown = [entry for entry in expr.entries if entry.name.text not in fields]
    for entry in expr.entries:
        name = entry.name.text
        if name in fields:
            scope.use(entry.name, fields[name])
            check_value(entry.value, fields[name].type, f"field `{name}` of `{wanted.name}`", scope)
        else:
            infer(entry.value, scope)
            scope.warn(
                "unknown-field",
                entry.name.span,
                valid=[field_name for field_name in fields if field_name not in keys],
                near=name,
                schema=wanted.name,
            )
    keys |= misspelt(unknown, fields, keys, scope)
    if names := _list_missing(_list_needed(fields), keys):
        scope.warn("missing-field:map", expr.span, what=what, schema=wanted.name, names=names)
    scope.context.bindings.types[id(expr)] = wanted
    return wanted


def _warn(expr: nodes.Expr, wrong: Misfit, what: str, scope: CheckScope, hint: str | None, kind: str | None) -> None:
    warn, path = scope.warn, wrong.path.removeprefix(".")
    if wrong.found is None:
        warn("type-mismatch:missing", expr.span, hint=hint, what=what, path=path)
        return
    if wrong.wanted is None:
        warn("type-mismatch:field", expr.span, hint=hint, what=what, path=path)
        return
    fixes, own_hint = ((), None) if path else _remedy(expr, wrong.wanted, wrong.found, scope)
    subject, wanted, actual = f"{what}: its `{path}`" if path else what, describe(wrong.wanted), f"is {describe(wrong.found)}"
    if isinstance(wrong.found, OptionalType):
        kind, actual = None, "may be null"
    hint = hint or own_hint
    warn("type-mismatch", expr.span, hint=hint, fixes=fixes, subject=subject, wanted=kind or wanted, actual=actual)


def _remedy(expr: nodes.Expr, wanted: Type, inferred: Type, scope: CheckScope) -> tuple[tuple[Fix, ...], str | None]:
    """Return the fix and the hint for common mismatches."""
    if isinstance(inferred, OptionalType):
        if isinstance(expr, nodes.FunctionCall) and expr.name.text == "first":
            return (), "`[0]` takes the first element, and fails the step if there is none"
        hint = f"declare it as `{words(inferred)}` too, or give the value a type without `?`"
        return (), f"{hint}, or {hints.WITHOUT_NULL.format(shown_path(expr))}" if isinstance(
            expr, nodes.InputRef | nodes.Ref
        ) else hint
    if isinstance(wanted, ListType) and misfit(inferred, wanted.element, scope.context.tables.fields) is None:
        edits = (Edit(expr.span.part(0, 0), "["), Edit(expr.span.end, "]"))
        return (Fix("Make it a list of one element", edits),), "write `[...]` for a list of one element"
    if (
        isinstance(expr, nodes.Literal)
        and isinstance(expr.value, str)
        and is_number(wanted)
        and _is_number_text(expr.value, wanted)
    ):
        return (Fix("Write it as a number", (Edit(expr.span, expr.value),)),), "write numbers without quotes"
    if isinstance(expr, nodes.Literal) and wanted == STRING and is_number(inferred):
        return (Fix("Write it as text", (Edit(expr.span, f'"{expr.value}"'),)),), "write text in double quotes"
    if inferred == NULL:
        return (), f"declare it as `{words(wanted)}?` if it may have no value"
    if wanted == STRING and not isinstance(inferred, RecordType | ListType):
        return (), '`"" ++ value` makes a text of any value'
    if is_number(wanted) and is_number(inferred):
        return (), "`/` and Doubles give a Double, which is not a whole number"
    return (), None


def _is_number_text(text: str, wanted: Type) -> bool:
    whole = text.isascii() and text.isdigit()
    before, _, after = text.partition(".")
    return whole or (wanted == NamedType("Double") and before.isdigit() and after.isdigit() and text.isascii())


def check_call(call: nodes.Call, scope: CheckScope) -> Declared | None:
    """Check a step's call and return its callee."""
    scope.filled = filled_by(call.args)
    declared = resolve_callee(call, scope)
    if declared is not None and declared.opening.source is SOURCE:
        scope.extend(declared.node.name.text, call.target.span)
        _check_literals(call, scope)
    check_unique(call.args, "duplicate-argument", scope)
    if declared is None:
        for arg in call.args:
            infer(arg.value, scope)
    elif isinstance(declared.node, nodes.Schema):
        _check_schema_call(call, declared, scope)
        return declared
    else:
        check_args(call.args, declared, scope.context.tables.params(declared), scope)
        _check_given(call, declared, scope)
    for mixin in call.mixins:
        check_mixin(mixin, scope, host=declared)
    check_repeated(call.mixins, scope)
    return declared


def _check_literals(call: nodes.Call, scope: CheckScope) -> None:
    """Warn about literal arguments that an approval rejects."""
    for arg in call.args:
        name, value = arg.name.text, arg.value
        literal = value.value if isinstance(value, nodes.Literal) else None
        if name == "on_expiry" and isinstance(literal, str) and literal not in ("fail", "ask_again"):
            wrong = "must be `fail` or `ask_again`"
        elif name in ("quorum", "denials") and type(literal) is int and literal < 1:
            wrong = "must be at least 1"
        elif name == "context" and (literal is not None or isinstance(value, nodes.ArrayLiteral)):
            wrong = "must be a map"
        else:
            continue
        scope.warn("type-mismatch:literal", value.span, name=name, target=call.target.text, wrong=wrong)


def check_args(args: Iterable[nodes.Arg], declared: Declared, params: Mapping[str, Definition], scope: CheckScope) -> None:
    """Check the values of arguments; names without a definition are reported elsewhere."""
    for arg in args:
        param = params.get(arg.name.text)
        if param is None:
            infer(arg.value, scope)
        elif (
            param.declared is not None
            and isinstance(param.declared.node, nodes.Facet)
            and isinstance(type_ := required(param.type), NamedType)
        ):
            scope.use(arg.name, param)
            _check_step_reference(arg, type_.name, scope)
        else:
            what = f"{param.kind} `{arg.name.text}` of `{declared.qualified_name}`"
            check_argument(arg, param, what, scope)


def _check_step_reference(arg: nodes.Arg, wanted: str, scope: CheckScope) -> None:
    """Check the argument for a parameter whose type is a facet: a bare step of that facet, or such a parameter passed on."""
    value = arg.value
    if isinstance(value, nodes.Ref) and len(value.path) == 1:
        hit = scope.find_loop_or_step(value.path[0])
        if hit is None or hit[1] is None:
            infer(value, scope)
            return
        where, step = hit[0], hit[1]
        scope.context.bindings.types[id(value)] = NamedType(wanted)
        is_value = step.node.value is not None
        if note_step(value, where, step, scope) and (step.facets or is_value) and wanted not in step.facets:
            actual = f"step `{value.path[0]}` is one of `{', '.join(sorted(step.facets))}`"
            actual = f"`{value.path[0]}` is a value" if is_value else actual
            scope.report("step-reference:other", value.span, arg=arg.name.text, wanted=wanted, actual=actual)
        return
    type_ = infer(value, scope)
    if isinstance(value, nodes.InputRef) and required(type_) in (UNKNOWN, NamedType(wanted)):
        return
    if isinstance(value, nodes.Literal) and value.value is None:
        return
    scope.report("step-reference", value.span, arg=arg.name.text, wanted=wanted)


def _check_given(call: nodes.Call, declared: Declared, scope: CheckScope) -> None:
    """Warn about arguments that the facet does not have, and parameters without a value."""
    allowed = scope.context.tables.inputs(declared)
    passed = {arg.name.text for arg in call.args}
    unknown = [] if allowed.open else [arg for arg in call.args if arg.name.text not in allowed]
    for arg in unknown:
        _warn_unknown_argument(arg, declared, free(allowed, call.args), scope)
    for mixin in call.mixins:
        if mixin.alias is None:
            passed.update(arg.name.text for arg in mixin.args)
    passed |= scope.context.implied.get(declared.qualified_name, set())
    needed = scope.context.tables.required(declared)
    if not passed.issuperset(needed):
        passed |= misspelt(unknown, needed, passed, scope)
        _warn_missing(call.target, needed, passed, scope)


def _list_missing(needed: Iterable[str], passed: set[str]) -> str:
    """Return the first names without a value, for a message."""
    return ", ".join(f"`{name}`" for name in islice((name for name in needed if name not in passed), 12))


def _list_needed(fields: Mapping[str, Definition]) -> list[str]:
    return [name for name, field in fields.items() if not isinstance(field.type, OptionalType)]


def _warn_missing(target: nodes.Name, required: Iterable[str], passed: set[str], scope: CheckScope) -> None:
    if names := _list_missing(required, passed):
        scope.warn("missing-argument", target.span, target=target.text, names=names)


def _warn_unknown_argument(arg: nodes.Arg, declared: Declared, valid: Iterable[str], scope: CheckScope) -> None:
    scope.warn("unknown-argument", arg.name.span, valid=valid, near=arg.name.text, qualified_name=declared.qualified_name)


def _check_schema_call(call: nodes.Call, declared: Declared, scope: CheckScope) -> None:
    fields, name = scope.context.tables.params(declared), declared.qualified_name
    check_args(call.args, declared, fields, scope)
    unknown = [arg for arg in call.args if arg.name.text not in fields]
    for arg in unknown:
        scope.report("unknown-field", arg.name.span, valid=free(fields, call.args), near=arg.name.text, schema=name)
    passed = {arg.name.text for arg in call.args}
    passed |= misspelt(unknown, fields, passed, scope)
    if names := _list_missing(_list_needed(fields), passed):
        scope.warn("missing-field", call.target.span, schema=name, names=names)
    if call.mixins:
        scope.report("mixin-on-schema", call.mixins[0].span, name=name)


# --- mixins --------------------------------------------------------------------------------------------------------


def check_mixin(mixin: nodes.Mixin, scope: CheckScope, host: Declared | None, *, signature: bool = False) -> Declared | None:
    """Check `with Target(...)`; arguments may be parameters of the mixin or of the facet it is attached to."""
    check_unique(mixin.args, "duplicate-argument", scope)
    if mixin.target.text in BUILTIN_MIXINS and scope.context.symbols.resolve_facet(mixin.target, scope.opening).found is None:
        if mixin.target.text == "Timeout":
            _check_timeout(mixin, host, scope)
            return None
        if mixin.alias is None:
            scope.extend("retry", mixin.span)
            _check_retry(mixin, host, scope)
            return None
    declared = resolve_facet(mixin, scope)
    if declared is None:
        for arg in mixin.args:
            infer(arg.value, scope)
        return None
    params = scope.context.tables.params(declared)
    if host is not None and isinstance(host.node, nodes.Facet):
        allowed, outer = scope.context.tables.inputs(declared), scope.context.tables.inputs(host)
        if mixin.alias is None:
            params = {**scope.context.tables.params(host), **params}
        for arg in mixin.args:
            if arg.name.text not in allowed and arg.name.text not in outer and not (allowed.open or outer.open):
                _warn_unknown_argument(arg, declared, free(allowed, mixin.args), scope)
    check_args(mixin.args, declared, params, scope)
    if signature and mixin.alias is not None:  # it runs as a step of its own
        passed = {arg.name.text for arg in mixin.args} | scope.context.implied.get(declared.qualified_name, set())
        _warn_missing(mixin.target, scope.context.tables.required(declared), passed, scope)
    return declared


def check_repeated(mixins: tuple[nodes.Mixin, ...], scope: CheckScope) -> None:
    """Warn about a mixin that is there twice: a built-in one, or one that gives the same argument again."""
    seen: dict[str, nodes.Mixin] = {}
    for mixin in mixins:
        first = seen.setdefault(mixin.target.text, mixin) if mixin.alias is None else mixin
        again = mixin.target.text in BUILTIN_MIXINS or {arg.name.text for arg in mixin.args} & {arg.name.text for arg in first.args}
        if first is not mixin and again:
            scope.warn("duplicate-mixin", mixin.target.span, target=mixin.target.text, line=first.span.line)


def _check_retry(mixin: nodes.Mixin, host: Declared | None, scope: CheckScope) -> None:
    """Check the arguments of `Retry`, and that it repeats an event's handler."""
    args = list(_built_in_args(mixin, RETRY_RANGES, scope))
    for arg in args:
        low, high = RETRY_RANGES[arg.name.text]
        value = _number(arg.value)
        if value is not None and not low <= value <= high:
            scope.warn("mixin-argument:range", arg.value.span, arg=arg.name.text, low=low, high=high)
        elif value is not None and arg.name.text == "maxAttempts" and value != int(value):
            scope.warn("mixin-argument:fraction", arg.value.span)
    if len(args) == len(mixin.args) and not any(arg.name.text == "maxAttempts" for arg in args):
        scope.warn("mixin-argument:missing", mixin.target.span, example=MIXIN_EXAMPLES["Retry"])
    _warn_without_effect(mixin, "it repeats the handler of an event facet", host, scope)


def _built_in_args(mixin: nodes.Mixin, allowed: Mapping[str, object], scope: CheckScope) -> Iterator[nodes.Arg]:
    """Check the names and types of a built-in mixin's arguments; yield the known ones."""
    name = mixin.target.text
    for arg in mixin.args:
        if arg.name.text in allowed:
            check_value(arg.value, DOUBLE, f"`{arg.name.text}` of `{name}`", scope, kind="a number")
            yield arg
            continue
        scope.warn(
            "mixin-argument:unknown",
            arg.name.span,
            valid=free(allowed, mixin.args),
            near=arg.name.text,
            name=name,
            example=MIXIN_EXAMPLES[name],
        )
        infer(arg.value, scope)


def _check_timeout(mixin: nodes.Mixin, host: Declared | None, scope: CheckScope) -> None:
    """Check the arguments of `Timeout`, and that it bounds an event's handler."""
    name = mixin.target.text
    args = list(_built_in_args(mixin, TIMEOUT_UNITS, scope))
    total = 1.0 if len(args) < len(mixin.args) else 0.0
    for arg in args:
        value = _number(arg.value)
        total += (1 if value is None else value) * TIMEOUT_UNITS[arg.name.text]
    if not 0 < total <= MAX_TIMEOUT:
        hint = f"give it a time, as in `{MIXIN_EXAMPLES[name]}`" if not mixin.args else None
        scope.warn("mixin-argument:timeout", mixin.target.span, hint=hint, name=name)
    _warn_without_effect(mixin, "it bounds the handler of an event facet", host, scope)


def _warn_without_effect(mixin: nodes.Mixin, what: str, host: Declared | None, scope: CheckScope) -> None:
    if host is None or not isinstance(host.node, nodes.Facet):
        return
    if host.node.kind is not nodes.FacetKind.EVENT or host.opening.source is SOURCE:
        scope.warn(
            "mixin-without-effect",
            mixin.target.span,
            target=mixin.target.text,
            kind=host.node.kind,
            qualified_name=host.qualified_name,
            what=what,
        )


def _number(expr: nodes.Expr) -> float | None:
    """Return the value of a number as written; None if it is computed."""
    if isinstance(expr, nodes.Unary) and expr.operator == "-":
        value = _number(expr.operand)
        return None if value is None else -value
    return float(expr.value) if isinstance(expr, nodes.Literal) and isinstance(expr.value, int | float) else None
