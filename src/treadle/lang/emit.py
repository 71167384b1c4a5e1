"""Copies the checked nodes of sources into those of a program: names resolved, ids derived from the path in the program.

Ids: a facet or schema has its qualified name; below it `block-0`, `catch`, `when-case-0`, step names, `yield-0`, `sys-0`,
`call`, `with-0`, `script`, `prompt` and `pre-script` are joined with `/`. So an id changes only when its own path does.
"""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from treadle.lang import nodes
from treadle.lang.literals import encode
from treadle.lang.names import Opening
from treadle.lang.program import Program
from treadle.lang.scope import Context

_ORDER = {nodes.FacetKind.FACET: 0, nodes.FacetKind.EVENT: 1, nodes.FacetKind.WORKFLOW: 2}
_LEVELS = {"||": 1, "&&": 2, "++": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_COMPARISON = 3
_UNARY = 7
_POSTFIX = 8


def emit(context: Context) -> Program:
    """Return the compiled program, without indexes; the sources must have been checked without errors."""
    seen: Counter[str] = Counter()
    namespaces: list[nodes.Declaration] = []
    top: list[tuple[int, nodes.Facet | nodes.Implicit | nodes.Schema]] = []
    for opening in context.symbols.openings:
        emitter = _Emitter(context, opening, seen)
        if opening.namespace is None:
            top += emitter.items()
        else:
            namespaces.append(emitter.namespace(opening.namespace))
    top.sort(key=lambda ranked: ranked[0])
    return Program("program", (*namespaces, *(declaration for _, declaration in top)))


class _Emitter:
    def __init__(self, context: Context, opening: Opening, seen: Counter[str]) -> None:
        self._context = context
        self._bindings = context.bindings
        self._opening = opening
        self._source = opening.source.name
        self._seen = seen

    def _unique(self, path: str) -> str:
        """Return the path, numbered from its second use on (implicits and openings of a namespace may repeat)."""
        self._seen[path] += 1
        return path if self._seen[path] == 1 else f"{path}#{self._seen[path]}"

    def _at(self, span: nodes.Span, code_line: int | None = None) -> nodes.Location:
        return nodes.Location(*span, self._source, code_line)

    def namespace(self, name: str) -> nodes.Namespace:
        node = self._opening.node
        ranked = sorted(self.items(), key=lambda item: item[0])
        return nodes.Namespace(
            nodes.Name(name), tuple(item for _, item in ranked), doc=node.doc if node else None,
            id=self._unique(f"namespace:{name}"), uses=self._opening.uses, location=self._at(node.span) if node else None,
        )  # fmt: skip

    def items(self) -> list[tuple[int, nodes.Facet | nodes.Implicit | nodes.Schema]]:
        """Return the declarations with the rank of their kind."""
        ranked: list[tuple[int, nodes.Facet | nodes.Implicit | nodes.Schema]] = []
        for item in self._opening.items:
            match item:
                case nodes.Facet():
                    ranked.append((_ORDER[item.kind], self._facet(item)))
                case nodes.Implicit():
                    ranked.append((3, self._implicit(item)))
                case nodes.Schema():
                    ranked.append((4, self._schema(item)))
                case nodes.Use():
                    pass
                case _:
                    assert_never(item)
        return ranked

    def _facet(self, node: nodes.Facet) -> nodes.Facet:
        path = self._opening.qualify(node.name.text)
        return nodes.Facet(
            node.kind, node.name, self._params(node.params), self._params(node.returns), self._mixins(node.mixins, path),
            self._script(node.pre_script, f"{path}/pre-script"),
            tuple([self._block(block, f"{path}/block-{n}") for n, block in enumerate(node.blocks)]),
            self._prompt(node.prompt, f"{path}/prompt") if node.prompt else None,
            self._block(node.catch, f"{path}/catch") if node.catch else None, node.doc,
            id=path, namespace=self._opening.namespace, location=self._at(node.span),
        )  # fmt: skip

    def _schema(self, node: nodes.Schema) -> nodes.Schema:
        path, namespace, at = self._opening.qualify(node.name.text), self._opening.namespace, self._at(node.span)
        return nodes.Schema(node.name, self._params(node.fields), node.doc, id=path, namespace=namespace, location=at)

    def _implicit(self, node: nodes.Implicit) -> nodes.Implicit:
        path = self._unique(self._opening.qualify(f"implicit:{node.name.text}"))
        call, namespace = self._call(node.call, f"{path}/call"), self._opening.namespace
        return nodes.Implicit(node.name, call, id=path, namespace=namespace, location=self._at(node.span))

    def _params(self, params: tuple[nodes.Param, ...]) -> tuple[nodes.Param, ...]:
        emitted = []
        symbols = self._context.symbols
        for param in params:
            type_ = symbols.type_of(param.type, self._opening)
            default = None if param.default is None else self._expr(param.default)
            if type(type_) is nodes.OptionalType:
                default = default or nodes.Null()
            emitted.append(nodes.Param(param.name, type_, default, nodes.named_type(type_).name in symbols.facets.exact))
        return tuple(emitted)

    def _block(self, node: nodes.Block, path: str) -> nodes.Block:
        steps = [self._step(step, f"{path}/{step.name.text}") for step in node.steps]
        sys = [self._sys(statement, f"{path}/sys-{n}") for n, statement in enumerate(node.sys)]
        yields = [self._yield(statement, f"{path}/yield-{n}") for n, statement in enumerate(node.yields)]
        loop, foreach = node.foreach, None
        if loop is not None:
            foreach = nodes.Foreach(loop.variable, self._expr(loop.iterable), loop.mode, loop.failed)
        cases = tuple([self._case(case, f"{path}/when-case-{n}") for n, case in enumerate(node.when)])
        script = self._script(node.script, f"{path}/script")
        return nodes.Block((*steps, *sys, *yields), foreach, script, cases or None, id=path, location=self._at(node.span))

    def _case(self, node: nodes.Case, path: str) -> nodes.Case:
        return nodes.Case(None if node.condition is None else self._expr(node.condition), self._block(node.block, path))

    def _step(self, node: nodes.Step, path: str) -> nodes.Step:
        return nodes.Step(
            node.name, self._call(node.call, f"{path}/call"),
            self._block(node.body, f"{path}/block-0") if node.body else None,
            self._block(node.catch, f"{path}/catch") if node.catch else None,
            after=node.after, id=path, depends=self._bindings.depends.get(id(node), ()), location=self._at(node.span),
        )  # fmt: skip

    def _yield(self, node: nodes.Yield, path: str) -> nodes.Yield:
        call, depends = self._call(node.call, f"{path}/call"), self._bindings.depends.get(id(node), ())
        return nodes.Yield(call, id=path, into=self._bindings.into.get(id(node)), depends=depends, location=self._at(node.span))

    def _sys(self, node: nodes.Sys, path: str) -> nodes.Sys:
        condition = text = None
        if node.condition is not None:
            condition, text = self._expr(node.condition), print_expr(node.condition)
        depends, at = self._bindings.depends.get(id(node), ()), self._at(node.span)
        args = self._args(node.args)
        return nodes.Sys(node.kind, args, condition, after=node.after, id=path, text=text, depends=depends, location=at)

    def _call(self, node: nodes.Call, path: str) -> nodes.Call:
        target = _VALUE if node.target.text == nodes.WRITTEN_VALUE else node.target
        resolved, at = self._bindings.callees.get(id(node)), self._at(node.span)
        return nodes.Call(target, self._args(node.args), self._mixins(node.mixins, path), id=path, resolved=resolved, location=at)

    def _mixins(self, mixins: tuple[nodes.Mixin, ...], path: str) -> tuple[nodes.Mixin, ...]:
        bound = self._bindings
        return tuple([
            nodes.Mixin(
                node.target, self._args(node.args), node.alias, id=f"{path}/with-{n}", resolved=bound.callees.get(id(node)),
                into=bound.into.get(id(node)), location=self._at(node.span),
            )
            for n, node in enumerate(mixins)
        ])  # fmt: skip

    def _args(self, args: tuple[nodes.Arg, ...]) -> tuple[nodes.Arg, ...]:
        return tuple([nodes.Arg(arg.name, self._expr(arg.value)) for arg in args])

    def _script(self, node: nodes.Script | None, path: str) -> nodes.Script | None:
        return None if node is None else nodes.Script(node.code, id=path, location=self._at(node.span, node.code_line))

    def _prompt(self, node: nodes.Prompt, path: str) -> nodes.Prompt:
        return nodes.Prompt(node.directives, id=path, location=self._at(node.span))

    def _expr(self, expr: nodes.Expr) -> nodes.Expr:
        match expr:
            case nodes.Literal():
                return expr
            case nodes.InputRef():
                return nodes.InputRef(self._path(expr))
            case nodes.Ref():
                path = self._path(expr)
                if id(expr) in self._bindings.values:
                    return nodes.StepRef((path[0], "value", *path[1:]))
                return nodes.LoopRef(path) if id(expr) in self._bindings.loops else nodes.StepRef(path)
            case nodes.Concat():
                return nodes.Concat(self._exprs(expr.operands))
            case nodes.Binary():
                return nodes.Binary(expr.operator, self._expr(expr.left), self._expr(expr.right))
            case nodes.Chain():
                return nodes.Chain(self._exprs(expr.operands), expr.operators)
            case nodes.Unary():
                return nodes.Unary(expr.operator, self._expr(expr.operand))
            case nodes.ArrayLiteral():
                return nodes.ArrayLiteral(self._exprs(expr.elements))
            case nodes.MapLiteral():
                return nodes.MapLiteral(tuple([nodes.Entry(key, self._expr(value)) for key, value in expr.entries]))
            case nodes.Index():
                return nodes.Index(self._expr(expr.target), self._expr(expr.index), id(expr) in self._bindings.optional)
            case nodes.Function():
                return nodes.Function(expr.name, self._exprs(expr.args))
            case nodes.StepRef() | nodes.LoopRef() | nodes.TooDeep():
                raise AssertionError("a checked source has neither resolved references nor expressions that are too deep")
        assert_never(expr)

    def _exprs(self, exprs: tuple[nodes.Expr, ...]) -> tuple[nodes.Expr, ...]:
        return tuple([self._expr(expr) for expr in exprs])

    def _path(self, expr: nodes.Ref | nodes.InputRef) -> tuple[str, ...]:
        """Return the path of a reference, with `?` after the fields that the value need not have."""
        marked = self._bindings.optional.get(id(expr))
        if marked is None:
            return expr.path
        return tuple(f"{name}?" if number in marked else name for number, name in enumerate(expr.path))


_VALUE = nodes.Name(nodes.VALUE)


# --- the text of assertions ------------------------------------------------------------------------------------------


def print_expr(expr: nodes.Expr, level: int = 0) -> str:
    """Print an expression with the fewest parentheses that keep its meaning; `level` is the binding power of its surroundings."""
    match expr:
        case nodes.Literal():
            return _literal(expr)
        case nodes.InputRef():
            return "$." + ".".join(expr.path)
        case nodes.Ref() | nodes.StepRef() | nodes.LoopRef():
            return ".".join(expr.path)
        case nodes.Concat():
            text = " ++ ".join([print_expr(operand, 5) for operand in expr.operands])
            return _enclosed(text, 4, level)
        case nodes.Binary():
            own = _LEVELS.get(expr.operator, _COMPARISON)
            left = print_expr(expr.left, own if own != _COMPARISON else own + 1)
            return _enclosed(f"{left} {expr.operator} {print_expr(expr.right, own + 1)}", own, level)
        case nodes.Chain():
            own = _LEVELS[expr.operators[0]]
            parts = [print_expr(expr.operands[0], own)]
            parts += [f"{sign} {print_expr(each, own + 1)}" for sign, each in zip(expr.operators, expr.operands[1:], strict=True)]
            return _enclosed(" ".join(parts), own, level)
        case nodes.Unary():
            return _enclosed(expr.operator + print_expr(expr.operand, _UNARY), _UNARY, level)
        case nodes.ArrayLiteral():
            return "[" + ", ".join([print_expr(element) for element in expr.elements]) + "]"
        case nodes.MapLiteral():
            return "#{" + ", ".join([f"{encode(key)}: {print_expr(value)}" for key, value in expr.entries]) + "}"
        case nodes.Index():
            return f"{print_expr(expr.target, _POSTFIX)}[{print_expr(expr.index)}]"
        case nodes.Function():
            return f"{expr.name}({', '.join([print_expr(each) for each in expr.args])})"
        case nodes.TooDeep():
            return "null"
    assert_never(expr)


def _enclosed(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def _literal(expr: nodes.Literal) -> str:
    match expr.value:
        case None:
            return "null"
        case bool():
            return "true" if expr.value else "false"
        case str():
            return encode(expr.value)
        case int():
            return str(expr.value)
        case float():
            text = repr(expr.value)
            if "e" not in text:
                return text
            mantissa, exponent = text.split("e")
            return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    assert_never(expr.value)
