"""Prints a syntax tree as AFL; parsing the result yields an equal tree."""

from __future__ import annotations

from typing import assert_never

from treadle.lang import tree
from treadle.lang.literals import dedent, encode, find_end

_INDENT = "    "
_LEVELS = {"||": 1, "&&": 2, "++": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_COMPARISON = 3
_UNARY = 7
_POSTFIX = 8


def print_expr(expr: tree.Expr, level: int = 0) -> str:
    """Print an expression with the fewest parentheses that keep its meaning; `level` is the binding power of its surroundings."""
    match expr:
        case tree.Literal():
            return _literal(expr)
        case tree.InputRef():
            return "$." + ".".join(expr.path)
        case tree.Ref():
            return ".".join(expr.path)
        case tree.Concat():
            text = " ++ ".join([print_expr(operand, 5) for operand in expr.operands])
            return _enclosed(text, 4, level)
        case tree.Binary():
            own = _LEVELS.get(expr.operator, _COMPARISON)
            left = print_expr(expr.left, own if own != _COMPARISON else own + 1)
            return _enclosed(f"{left} {expr.operator} {print_expr(expr.right, own + 1)}", own, level)
        case tree.Chain():
            own = _LEVELS[expr.operators[0]]
            parts = [print_expr(expr.operands[0], own)]
            parts += [f"{sign} {print_expr(each, own + 1)}" for sign, each in zip(expr.operators, expr.operands[1:], strict=True)]
            return _enclosed(" ".join(parts), own, level)
        case tree.Unary():
            return _enclosed(expr.operator + print_expr(expr.operand, _UNARY), _UNARY, level)
        case tree.ArrayLiteral():
            return "[" + ", ".join([print_expr(element) for element in expr.elements]) + "]"
        case tree.MapLiteral():
            return "#{" + ", ".join([f"{encode(entry.key.text)}: {print_expr(entry.value)}" for entry in expr.entries]) + "}"
        case tree.Index():
            return f"{print_expr(expr.target, _POSTFIX)}[{print_expr(expr.index)}]"
        case tree.Function():
            return f"{expr.name.text}({', '.join([print_expr(each) for each in expr.args])})"
        case tree.TooDeep():
            return "null"
    assert_never(expr)


def _enclosed(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def _literal(expr: tree.Literal) -> str:
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


def print_file(file: tree.File) -> str:
    """Print a whole source; declarations on lines of their own, blocks indented by four spaces."""
    return "".join([_item(item, "") for item in file.items])


def _item(item: tree.Namespace | tree.Item, pad: str) -> str:
    match item:
        case tree.Namespace():
            head = f"{_doc(item.doc, pad)}{pad}namespace {item.name.text}"
            if item.file_scoped:
                return f"{head}\n"
            return f"{head} {{\n{''.join([_item(each, pad + _INDENT) for each in item.items])}{pad}}}\n"
        case tree.Use():
            return f"{pad}use {item.name.text}\n"
        case tree.Implicit():
            return f"{pad}implicit {item.name.text} = {_call(item.call)}\n"
        case tree.Schema():
            fields = ", ".join([f"{field.name.text}: {print_type(field.type)}" for field in item.fields])
            return f"{_doc(item.doc, pad)}{pad}schema {item.name.text} {{ {fields} }}\n"
        case tree.Facet():
            return f"{_doc(item.doc, pad)}{pad}{_facet(item, pad)}\n"
    assert_never(item)


def _doc(doc: str | None, pad: str) -> str:
    return "" if doc is None else f"{pad}{doc}\n"


def _facet(facet: tree.Facet, pad: str) -> str:
    text = f"{facet.kind} {facet.name.text}({_params(facet.params)})"
    if facet.returns:
        text += f" => ({_params(facet.returns)})"
    text += _mixins(facet.mixins)
    if facet.pre_script is not None:
        text += f" {_script(facet.pre_script, pad)}"
    text += "".join([f" andThen {_block(block, pad)}" for block in facet.blocks])
    if facet.prompt is not None:
        lines = [f"{pad}{_INDENT}{each.kind.text} {encode(each.text)}\n" for each in facet.prompt.directives]
        text += f" prompt {{\n{''.join(lines)}{pad}}}"
    return text if facet.catch is None else f"{text} catch {_block(facet.catch, pad)}"


def _params(params: tuple[tree.Param, ...]) -> str:
    texts = []
    for param in params:
        default = "" if param.default is None else f" = {print_expr(param.default)}"
        texts.append(f"{param.name.text}: {print_type(param.type)}{default}")
    return ", ".join(texts)


def print_type(type_: tree.Type) -> str:
    """A type as written."""
    match type_:
        case tree.NamedType():
            return type_.name.text
        case tree.ListType():
            return f"[{print_type(type_.element)}]"
        case tree.OptionalType():
            return f"{print_type(type_.element)}?"
        case tree.TooDeep():
            return "Json"
    assert_never(type_)


def _call(call: tree.Call) -> str:
    return f"{call.target.text}({_args(call.args)}){_mixins(call.mixins)}"


def _args(args: tuple[tree.Arg, ...]) -> str:
    return ", ".join([f"{arg.name.text} = {print_expr(arg.value)}" for arg in args])


def _mixins(mixins: tuple[tree.Mixin, ...]) -> str:
    texts = []
    for mixin in mixins:
        alias = f" as {mixin.alias.text}" if mixin.alias else ""
        texts.append(f" with {mixin.target.text}({_args(mixin.args)}){alias}")
    return "".join(texts)


def _script(script: tree.Script, pad: str) -> str:
    """Print the brace form if it parses back to the same code, else a string."""
    language = f" {script.language.text}" if script.language else ""
    inner = "".join([f"{pad}{_INDENT}{line}\n" if line else "\n" for line in script.code.split("\n")])
    text = f"\n{inner}{pad}}}"
    end = find_end(text, 0)
    if script.code and end == len(text) - 1 and dedent(text[:end])[0] == script.code:
        return f"script{language} {{{text}"
    return f"script{language} {encode(chr(10) + script.code)}"


def _block(block: tree.Block | tree.TooDeep, pad: str) -> str:
    if isinstance(block, tree.TooDeep):
        return "{ }"
    if block.script is not None:
        return _script(block.script, pad)
    inner = pad + _INDENT
    if block.cases is not None:
        cases = [f"{inner}case {print_expr(case.condition)} => {_block(case.block, inner)}\n" for case in block.cases]
        return f"when {{\n{''.join(cases)}{pad}}}"
    head = ""
    if block.foreach is not None:
        head = f"foreach {block.foreach.variable.text} in {print_expr(block.foreach.iterable)} {_mode(block.foreach)}"
    lines = [f"{inner}{_statement(statement, inner)}\n" for statement in block.statements]
    return f"{head}{{\n{''.join(lines)}{pad}}}"


def _statement(statement: tree.Statement, pad: str) -> str:
    match statement:
        case tree.Step():
            if statement.value is not None:
                return f"{statement.name.text} = {print_expr(statement.value)}"
            text = f"{statement.name.text} = {_call(statement.call)}{_after(statement.after)}"
            if statement.body is not None:
                text += f" andThen {_block(statement.body, pad)}"
            return text if statement.catch is None else f"{text} catch {_block(statement.catch, pad)}"
        case tree.Yield():
            return f"yield {_call(statement.call)}"
        case tree.SysLog():
            return f"sys.log({_args(statement.args)}){_after(statement.after)}"
        case tree.SysAssert():
            return f"sys.assert({print_expr(statement.condition)}){_after(statement.after)}"
    assert_never(statement)


def _after(steps: tuple[tree.Ref, ...]) -> str:
    return f" after {', '.join([step.path[0] for step in steps])}" if steps else ""


def _mode(foreach: tree.Foreach) -> str:
    if foreach.mode is None:
        return ""
    return f"{foreach.mode.text}({foreach.failed.text}) " if foreach.failed is not None else f"{foreach.mode.text} "
