"""Converts the checked tree to compiled records: names resolved, ids derived from the path in the program.

Ids: a facet or schema has its qualified name; below it `block-0`, `catch`, `when-case-0`, step names, `yield-0`, `sys-0`,
`call`, `with-0`, `script`, `prompt` and `pre-script` are joined with `/`. So an id changes only when its own path does.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import assert_never

from treadle.lang import program as p
from treadle.lang import tree
from treadle.lang.names import Opening
from treadle.lang.printer import print_expr
from treadle.lang.program import Doc
from treadle.lang.scope import Context

_ORDER = {tree.FacetKind.FACET: 0, tree.FacetKind.EVENT: 1, tree.FacetKind.WORKFLOW: 2}
_KINDS = {
    tree.FacetKind.FACET: p.FacetKind.FACET,
    tree.FacetKind.EVENT: p.FacetKind.EVENT,
    tree.FacetKind.WORKFLOW: p.FacetKind.WORKFLOW,
}


def emit(context: Context) -> p.Program:
    """Return the compiled program, without indexes; the tree must have been checked without errors."""
    seen: Counter[str] = Counter()
    namespaces: list[p.Declaration] = []
    top: list[tuple[int, p.Declaration]] = []
    for opening in context.symbols.openings:
        emitter = _Emitter(context, opening, seen)
        if opening.namespace is None:
            top += emitter.items()
        else:
            namespaces.append(emitter.namespace(opening.namespace))
    top.sort(key=lambda ranked: ranked[0])
    return p.Program("program", (*namespaces, *(declaration for _, declaration in top)))


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

    def _at(self, span: tree.Span, code_line: int | None = None) -> p.Location:
        return p.Location(*span, self._source, code_line)

    def namespace(self, name: str) -> p.Namespace:
        node = self._opening.node
        ranked = sorted(self.items(), key=lambda each: each[0])
        return p.Namespace(
            self._unique(f"namespace:{name}"), name, self._opening.uses, tuple(item for _, item in ranked),
            parse_doc(node.doc) if node else None, self._at(node.span) if node else None,
        )  # fmt: skip

    def items(self) -> list[tuple[int, p.Facet | p.Implicit | p.Schema]]:
        """Return the declarations with the rank of their kind."""
        found: list[tuple[int, p.Facet | p.Implicit | p.Schema]] = []
        for item in self._opening.items:
            match item:
                case tree.Facet():
                    found.append((_ORDER[item.kind], self._facet(item)))
                case tree.Implicit():
                    found.append((3, self._implicit(item)))
                case tree.Schema():
                    found.append((4, self._schema(item)))
                case tree.Use():
                    pass
                case _:
                    assert_never(item)
        return found

    def _facet(self, node: tree.Facet) -> p.Facet:
        path = self._opening.qualify(node.name.text)
        mixins = tuple(self._mixin(mixin, f"{path}/with-{n}") for n, mixin in enumerate(node.mixins))
        blocks = tuple(self._block(block, f"{path}/block-{n}") for n, block in enumerate(node.blocks))
        return p.Facet(
            path, _KINDS[node.kind], node.name.text, self._opening.namespace,
            self._params(node.params), self._params(node.returns), mixins,
            self._script(node.pre_script, f"{path}/pre-script") if node.pre_script else None, blocks,
            self._prompt(node.prompt, f"{path}/prompt") if node.prompt else None,
            self._block(node.catch, f"{path}/catch") if node.catch else None,
            parse_doc(node.doc), self._at(node.span),
        )  # fmt: skip

    def _schema(self, node: tree.Schema) -> p.Schema:
        path = self._opening.qualify(node.name.text)
        fields = self._params(node.fields)
        return p.Schema(path, node.name.text, self._opening.namespace, fields, parse_doc(node.doc), self._at(node.span))

    def _implicit(self, node: tree.Implicit) -> p.Implicit:
        path = self._unique(self._opening.qualify(f"implicit:{node.name.text}"))
        call = self._call(node.call, f"{path}/call")
        return p.Implicit(path, node.name.text, call, self._opening.namespace, self._at(node.span))

    def _params(self, params: tuple[tree.Param, ...]) -> tuple[p.Param, ...]:
        found = []
        symbols = self._context.symbols
        for param in params:
            type_ = symbols.type_of(param.type, self._opening)
            default = None if param.default is None else self._expr(param.default)
            if type(type_) is p.OptionalType:
                default = default or p.Null()
            found.append(p.Param(param.name.text, type_, default, p.named_type(type_).name in symbols.facets.exact))
        return tuple(found)

    def _block(self, node: tree.Block | tree.TooDeep, path: str) -> p.Block:
        assert isinstance(node, tree.Block), "a checked program is not too deep"
        steps: list[p.Step] = []
        sys: list[p.Sys] = []
        yields: list[p.Yield] = []
        for statement in node.statements:
            match statement:
                case tree.Step():
                    steps.append(self._step(statement, f"{path}/{statement.name.text}"))
                case tree.Yield():
                    yields.append(self._yield(statement, f"{path}/yield-{len(yields)}"))
                case tree.SysLog() | tree.SysAssert():
                    sys.append(self._sys(statement, f"{path}/sys-{len(sys)}"))
                case _:
                    assert_never(statement)
        foreach = None
        if node.foreach is not None:
            loop = node.foreach
            mode, failed = loop.mode.text if loop.mode else None, loop.failed.text if loop.failed else None
            foreach = p.Foreach(loop.variable.text, self._expr(loop.iterable), mode, failed)
        return p.Block(
            path, foreach, self._script(node.script, f"{path}/script") if node.script else None,
            tuple(self._case(case, f"{path}/when-case-{n}") for n, case in enumerate(node.cases or ())),
            tuple(steps), tuple(sys), tuple(yields), self._at(node.span),
        )  # fmt: skip

    def _case(self, node: tree.Case, path: str) -> p.Case:
        return p.Case(None if node.is_default else self._expr(node.condition), self._block(node.block, path))

    def _step(self, node: tree.Step, path: str) -> p.Step:
        return p.Step(
            path, node.name.text, self._call(node.call, f"{path}/call"),
            self._block(node.body, f"{path}/block-0") if node.body else None,
            self._block(node.catch, f"{path}/catch") if node.catch else None,
            self._bindings.depends.get(id(node), ()), self._at(node.span), _after(node),
        )  # fmt: skip

    def _yield(self, node: tree.Yield, path: str) -> p.Yield:
        bound = self._bindings
        call = self._call(node.call, f"{path}/call")
        return p.Yield(path, call, bound.into.get(id(node)), bound.depends.get(id(node), ()), self._at(node.span))

    def _sys(self, node: tree.SysLog | tree.SysAssert, path: str) -> p.Sys:
        depends, at = self._bindings.depends.get(id(node), ()), self._at(node.span)
        if isinstance(node, tree.SysLog):
            return p.Sys(path, p.SysKind.LOG, self._args(node.args), depends=depends, location=at, after=_after(node))
        condition, text = self._expr(node.condition), print_expr(node.condition)
        return p.Sys(path, p.SysKind.ASSERT, (), condition, text, depends, at, _after(node))

    def _call(self, node: tree.Call, path: str) -> p.Call:
        mixins = tuple(self._mixin(mixin, f"{path}/with-{n}") for n, mixin in enumerate(node.mixins))
        resolved = self._bindings.callees.get(id(node))
        target = p.VALUE if node.target.text == tree.VALUE else node.target.text
        return p.Call(path, target, resolved, self._args(node.args), mixins, self._at(node.span))

    def _mixin(self, node: tree.Mixin, path: str) -> p.Mixin:
        alias = node.alias.text if node.alias else None
        resolved, into = self._bindings.callees.get(id(node)), self._bindings.into.get(id(node))
        return p.Mixin(path, node.target.text, resolved, self._args(node.args), alias, into, self._at(node.span))

    def _args(self, args: tuple[tree.Arg, ...]) -> tuple[p.Arg, ...]:
        return tuple([p.Arg(arg.name.text, self._expr(arg.value)) for arg in args])

    def _script(self, node: tree.Script, path: str) -> p.Script:
        return p.Script(path, node.code, "python", self._at(node.span, node.code_line))

    def _prompt(self, node: tree.Prompt, path: str) -> p.Prompt:
        texts = {directive.kind.text: directive.text for directive in node.directives}
        return p.Prompt(path, texts.get("template"), texts.get("system"), texts.get("model"), self._at(node.span))

    def _expr(self, expr: tree.Expr) -> p.Expr:
        match expr:
            case tree.Literal():
                return _literal(expr)
            case tree.InputRef():
                return p.InputRef(self._path(expr))
            case tree.Ref():
                path = self._path(expr)
                if id(expr) in self._bindings.values:
                    return p.StepRef((path[0], "value", *path[1:]))
                return p.LoopRef(path) if id(expr) in self._bindings.loops else p.StepRef(path)
            case tree.Concat():
                return p.Concat(tuple([self._expr(operand) for operand in expr.operands]))
            case tree.Binary():
                return p.Binary(expr.operator, self._expr(expr.left), self._expr(expr.right))
            case tree.Chain():
                return p.Chain(tuple([self._expr(operand) for operand in expr.operands]), expr.operators)
            case tree.Unary():
                return p.Unary(expr.operator, self._expr(expr.operand))
            case tree.ArrayLiteral():
                return p.ArrayLiteral(tuple([self._expr(element) for element in expr.elements]))
            case tree.MapLiteral():
                return p.MapLiteral(tuple([(entry.key.text, self._expr(entry.value)) for entry in expr.entries]))
            case tree.Index():
                return p.Index(self._expr(expr.target), self._expr(expr.index), id(expr) in self._bindings.optional)
            case tree.Function():
                return p.Function(expr.name.text, tuple([self._expr(each) for each in expr.args]))
            case tree.TooDeep():
                raise AssertionError("a checked program is not too deep")
        assert_never(expr)

    def _path(self, expr: tree.Ref | tree.InputRef) -> tuple[str, ...]:
        """Return the path of a reference, with `?` after the fields that the value need not have."""
        marked = self._bindings.optional.get(id(expr))
        if marked is None:
            return expr.path
        return tuple(f"{name}?" if number in marked else name for number, name in enumerate(expr.path))


def _after(node: tree.Step | tree.SysLog | tree.SysAssert) -> tuple[str, ...]:
    return tuple(step.path[0] for step in node.after)


def _literal(expr: tree.Literal) -> p.Expr:
    match expr.value:
        case None:
            return p.Null()
        case bool():
            return p.Boolean(expr.value)
        case str():
            return p.String(expr.value)
        case int():
            return p.Int(expr.value)
        case float():
            return p.Double(expr.value)
    assert_never(expr.value)


# --- doc comments ----------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"@(param|return)s?\s+([A-Za-z_][A-Za-z0-9_]*)\s*(.*)")


def parse_doc(comment: str | None) -> Doc | None:
    """Strip the delimiters and, on each line, blanks, one `*` and one blank; collect `@param` and `@return` lines."""
    if comment is None:
        return None
    text = comment[3:-2]
    described: list[str] = []
    entries: dict[str, list[tuple[str, str]]] = {"param": [], "return": []}
    for raw in text.split("\n"):
        line = raw.strip()
        if line.startswith("*"):
            line = line[1:].removeprefix(" ")
        entry = _ENTRY.match(line)
        if entry:
            entries[entry[1]].append((entry[2], entry[3].strip()))
        else:
            described.append(line.rstrip())
    return Doc("\n".join(described).strip(), tuple(entries["param"]), tuple(entries["return"]))
