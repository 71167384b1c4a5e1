"""Prints nodes of a source as AFL; parsing the result yields equal nodes."""

from __future__ import annotations

from typing import assert_never

from treadle.lang import nodes
from treadle.lang.emit import print_expr
from treadle.lang.literals import dedent, encode, find_end

_INDENT = "    "


def print_file(file: nodes.File) -> str:
    """Print a whole source; declarations on lines of their own, blocks indented by four spaces."""
    return "".join([_item(item, "") for item in file.items])


def _item(item: nodes.Namespace | nodes.Item, pad: str) -> str:
    match item:
        case nodes.Namespace():
            head = f"{_doc(item.doc, pad)}{pad}namespace {item.name.text}"
            if item.file_scoped:
                return f"{head}\n"
            return f"{head} {{\n{''.join([_item(each, pad + _INDENT) for each in item.items])}{pad}}}\n"
        case nodes.Use():
            return f"{pad}use {item.name.text}\n"
        case nodes.Implicit():
            return f"{pad}implicit {item.name.text} = {_call(item.call)}\n"
        case nodes.Schema():
            fields = ", ".join([f"{field.name.text}: {print_type(field.type)}" for field in item.fields])
            return f"{_doc(item.doc, pad)}{pad}schema {item.name.text} {{ {fields} }}\n"
        case nodes.Facet():
            return f"{_doc(item.doc, pad)}{pad}{_facet(item, pad)}\n"
    assert_never(item)


def _doc(doc: nodes.DocComment | None, pad: str) -> str:
    if doc is None:
        return ""
    lines = [doc.description, *(f"@param {name} {text}" for name, text in doc.params)]
    text = "\n".join([*lines, *(f"@return {name} {text}" for name, text in doc.returns)])
    return f"{pad}/** {text} */\n"


def _facet(facet: nodes.Facet, pad: str) -> str:
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


def _params(params: tuple[nodes.Param, ...]) -> str:
    texts = []
    for param in params:
        default = "" if param.default is None else f" = {print_expr(param.default)}"
        texts.append(f"{param.name.text}: {print_type(param.type)}{default}")
    return ", ".join(texts)


def print_type(type_: nodes.Type) -> str:
    """A type as written."""
    match type_:
        case nodes.NamedType():
            return type_.name.text
        case nodes.ListType():
            return f"[{print_type(type_.element)}]"
        case nodes.OptionalType():
            return f"{print_type(type_.element)}?"
    assert_never(type_)


def _call(call: nodes.Call) -> str:
    return f"{call.target.text}({_args(call.args)}){_mixins(call.mixins)}"


def _args(args: tuple[nodes.Arg, ...]) -> str:
    return ", ".join([f"{arg.name.text} = {print_expr(arg.value)}" for arg in args])


def _mixins(mixins: tuple[nodes.Mixin, ...]) -> str:
    texts = []
    for mixin in mixins:
        alias = f" as {mixin.alias.text}" if mixin.alias else ""
        texts.append(f" with {mixin.target.text}({_args(mixin.args)}){alias}")
    return "".join(texts)


def _script(script: nodes.Script, pad: str) -> str:
    """Print the brace form if it parses back to the same code, else a string."""
    language = f" {script.language}"
    inner = "".join([f"{pad}{_INDENT}{line}\n" if line else "\n" for line in script.code.split("\n")])
    text = f"\n{inner}{pad}}}"
    end = find_end(text, 0)
    if script.code and end == len(text) - 1 and dedent(text[:end])[0] == script.code:
        return f"script{language} {{{text}"
    return f"script{language} {encode(chr(10) + script.code)}"


def _block(block: nodes.Block, pad: str) -> str:
    if block.script is not None:
        return _script(block.script, pad)
    inner = pad + _INDENT
    if block.cases is not None:
        cases = [f"{inner}case {_condition(case)} => {_block(case.block, inner)}\n" for case in block.cases]
        return f"when {{\n{''.join(cases)}{pad}}}"
    head = ""
    if block.foreach is not None:
        head = f"foreach {block.foreach.variable.text} in {print_expr(block.foreach.iterable)} {_mode(block.foreach)}"
    lines = [f"{inner}{_statement(statement, inner)}\n" for statement in block.statements]
    return f"{head}{{\n{''.join(lines)}{pad}}}"


def _condition(case: nodes.Case) -> str:
    return "_" if case.condition is None else print_expr(case.condition)


def _statement(statement: nodes.Statement, pad: str) -> str:
    match statement:
        case nodes.Step():
            if statement.value is not None:
                return f"{statement.name.text} = {print_expr(statement.value)}"
            text = f"{statement.name.text} = {_call(statement.call)}{_after(statement.after)}"
            if statement.body is not None:
                text += f" andThen {_block(statement.body, pad)}"
            return text if statement.catch is None else f"{text} catch {_block(statement.catch, pad)}"
        case nodes.Yield():
            return f"yield {_call(statement.call)}"
        case nodes.Sys():
            inner = _args(statement.args) if statement.condition is None else print_expr(statement.condition)
            return f"sys.{statement.kind}({inner}){_after(statement.after)}"
    assert_never(statement)


def _after(steps: tuple[nodes.Name, ...]) -> str:
    return f" after {', '.join(steps)}" if steps else ""


def _mode(foreach: nodes.Foreach) -> str:
    if foreach.mode is None:
        return ""
    return f"{foreach.mode.text}({foreach.failed.text}) " if foreach.failed is not None else f"{foreach.mode.text} "
