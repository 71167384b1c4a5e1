"""Mistakes from other languages get a hint with the AFL form; where it is mechanical, a fix that leaves a correct program."""

from __future__ import annotations

import re

import pytest
from tests.lang.programs import compiled

from treadle.lang.diagnostics import Diagnostic, Source

PRELUDE = "event facet F(x: Json, y: Json = 1) => (out: Long)\nfacet G(a: Json = 1)\n"
HEAD = "workflow W(n: Long, items: [Json]) => (total: Long) andThen {\n"


def within(body: str) -> str:
    last = "" if re.search("yield|yeild|return", body) else "    yield W(total = 1)\n"
    return f"{PRELUDE}{HEAD}    {body}\n{last}}}\n"


def fixed(text: str, found: tuple[Diagnostic, ...]) -> str:
    """Apply the first fix of every diagnostic."""
    return Source("s", text).apply([edit for each in found for fix in each.fixes[:1] for edit in fix.edits])


# In a block: the text, part of the message, part of the hint, and the text after all fixes.
STATEMENTS = {
    "return of a call": ("return W(total = 2)", "`return`", "`yield`", "yield W(total = 2)"),
    "return of a value": ("return $.n", "`return`", "`yield W(total = ...)`", "yield W(total = $.n)"),
    "let": ("let a = F(x = 1)", "`let`", "leave `let` out", "a = F(x = 1)"),
    "var": ("var a = F(x = 1)", "`var`", "leave", "a = F(x = 1)"),
    "const": ("const a = F(x = 1)", "`const`", "leave", "a = F(x = 1)"),
    "await": ("a = await F(x = 1)", "`await`", "leave", "a = F(x = 1)"),
    "positional": ("a = F($.n, 2)", "needs a name", "`F(name = ...)`", "a = F(x = $.n, y = 2)"),
    "colon": ("a = F(x: 1)", "`:`; expected `=`", "`x = value`", "a = F(x = 1)"),
    "double equals": ("a = F(x == 1)", "`==`; expected `=`", "`x = value`", "a = F(x = 1)"),
    "hash comment": ("# note\n    a = F(x = 1)", "`#`", "`//`", "// note\n    a = F(x = 1)"),
    "single quotes": ("a = F(x = 'it \"is\"')", "`'`", "double quotes", 'a = F(x = "it \\"is\\"")'),
    "None": ("a = F(x = None)", "`None`", "`null`", "a = F(x = null)"),
    "undefined": ("a = F(x = undefined)", "`undefined`", "`null`", "a = F(x = null)"),
    "True": ("a = F(x = True, y = False)", "`True`", "`true`", "a = F(x = true, y = false)"),
    "f-string": ('a = F(x = f"n {$.n}!")', 'f"..."', "`++`", 'a = F(x = "n " ++ $.n ++ "!")'),
    "and": ("a = F(x = true and false)", "`and`", "`&&`", "a = F(x = true && false)"),
    "or": ("a = F(x = true or false)", "`or`", "`||`", "a = F(x = true || false)"),
    "single ampersand": ("a = F(x = true & false)", "`&`", "`&&`", "a = F(x = true && false)"),
    "not": ("a = F(x = not true)", "`not`", "`!`", "a = F(x = !true)"),
    "strict equality": ("a = F(x = 1 === 2)", "`===`", "`==`", "a = F(x = 1 == 2)"),
    "inequality": ("a = F(x = 1 <> 2)", "`<>`", "`!=`", "a = F(x = 1 != 2)"),
    "map": ("a = F(x = {k: 1})", "`{`", "`#{key: value}`", "a = F(x = #{k: 1})"),
    "map with equals": ("a = F(x = #{k = 1})", "`=`", "`key: value`", "a = F(x = #{k: 1})"),
    "field of an index": ("a = F(x = $.items[0].name)", "`.name`", '`["name"]`', 'a = F(x = $.items[0]["name"])'),
    "dollar": ("a = F(x = $n)", "`$`", "`$.name`", "a = F(x = $.n)"),
    "exponent": ("a = F(x = 1e5)", "`1e5`", "`1.0e5`", "a = F(x = 1.0e5)"),
    "underscores": ("a = F(x = 1_000)", "`1_000`", "`1000`", "a = F(x = 1000)"),
    "missing comma": ("a = F(x = 1 y = 2)", "comma is missing", "", "a = F(x = 1, y = 2)"),
    "missing comma in a list": ("a = F(x = [1 2])", "comma is missing", "", "a = F(x = [1, 2])"),
    "comma after a statement": ("a = F(x = 1),", "`,` after a statement", "no separator", "a = F(x = 1)"),
    "no name": ("F(x = 1)", "not a step", "`f = F(...)`", "f = F(x = 1)"),
    "no parentheses": ("a = G", "arguments are missing", "`()`", "a = G()"),
    "walrus": ("a := G()", "`:=`", "", "a = G()"),
    "andthen": ("a = G() andthen { }", "`andthen`", "`andThen`", "a = G() andThen { }"),
    "block without andThen": ("a = G() { }", "`{`; expected `andThen`", "`andThen`", "a = G() andThen { }"),
    "yield =": ("yield = W(total = 2)", "`=` after `yield`", "`yield F(...)`", "yield W(total = 2)"),
    "yeild": ("yeild W(total = 2)", "`yeild`", "`yield`", "yield W(total = 2)"),
    "leading operator": ("a = F(x = 1\n        + 2)", "cannot begin with", "end the previous line", "a = F(x = 1 +\n         2)"),
    "unclosed call": ("a = F(x = 1\n    b = G()", "`(` in line 4, column 10 is not closed", "", "a = F(x = 1)\n    b = G()"),
    "if": ("if $.n > 1 {\n a = G()\n } else {\n b = G()\n }", "`if`", "andThen when", None),
    "foreach": ("foreach x in $.items {\n a = F(x = x)\n }", "`foreach`", "andThen foreach", None),
    "for": ("for x in $.items {\n a = F(x = x)\n }", "`for`", "andThen foreach", None),
    "a list comprehension": ("a = F(x = [i * 2 for i in $.items])", "list comprehensions", "andThen foreach", None),
    "while": ("while $.n > 1 {\n a = G()\n }", "`while`", "andThen foreach", None),
    "try": ("try {\n a = G()\n } catch {\n }", "`try`", "catch", None),
    "print": ('print("x")', "`print`", "sys.log", None),
    "conditional": ("a = F(x = $.n > 1 ? 2 : 3)", "`?`", "andThen when", None),
    "if expression": ("a = F(x = if $.n then 1 else 2)", "`if`", "andThen when", None),
    "lambda": ("a = F(x = lambda v: v)", "`lambda`", "script", None),
    "nested call": ("a = F(x = G(a = 1))", "call of `G`", "step of its own", None),
    "step with a type": ("a: Long = G()", "`:`", "no type", "a = G()"),
    "colon of a step": ("a: G()", "`:`; expected `=`", "`a = F(...)`", "a = G()"),
    "f-string of an input": ('a = F(x = f"n {n}!")', 'f"..."', "`++`", 'a = F(x = "n " ++ $.n ++ "!")'),
    "f-string in single quotes": ("a = F(x = f'n {n}!')", 'f"..."', "`++`", 'a = F(x = "n " ++ $.n ++ "!")'),
    "f-string of an expression": ('a = F(x = f"n {n + 1}!")', 'f"..."', "`++`", None),
    "template string": ("a = F(x = `n ${n}!`)", "``...``", "`++`", 'a = F(x = "n " ++ $.n ++ "!")'),
    "interpolated string": ('a = F(x = $"n {n}!")', '$"..."', "`++`", 'a = F(x = "n " ++ $.n ++ "!")'),
    "triple quotes": ('a = F(x = """n "m" n""")', '`"""`', 'one `"` at each end', 'a = F(x = "n \\"m\\" n")'),
    "await of a yield": ("yield await W(total = 2)", "`await`", "leave", "yield W(total = 2)"),
    "await of a call": ("a = G()\n    await F(x = 1)", "`await`", "leave", "a = G()\n    f = F(x = 1)"),
    "dashes": ("-- it's a note\n    a = G()", "`--`", "`//`", "// it's a note\n    a = G()"),
    "arrow between steps": ("a = G() -> b = G()", "`->`", "reads", "a = G()  b = G()"),
    "arrow to a name": ("F(x = 1) -> a", "not a step", "`a = F(...)`", "a = F(x = 1)"),
    "yield of a value": (
        "a = F(x = 1)\n    yield a.out",
        "expected the owner",
        "`yield W(total = ...)`",
        "a = F(x = 1)\n    yield W(total = a.out)",
    ),
    "yield of a name": ("yield total = 1", "expected the owner", "`yield W(total = ...)`", "yield W(total = 1)"),
    "yield in parentheses": ("yield (total = 1)", "`(`; expected the owner", "`yield W(total = ...)`", "yield W(total = 1)"),
    "yield of a map": ("yield {total: 1}", "`{`; expected the owner", "`yield W(total = ...)`", None),
    "yield without arguments": ("yield W\n    a = G()", "`W`; expected arguments", "`yield W(total = ...)`", None),
    "return of a map": ("return {total: 1}", "`return`", "`yield W(total = ...)`", None),
    "an arrow function": ("a = F(x = (i) => i * 2)", "`=>`", "functions as values", None),
    "Python's if": ("if $.n > 1:\n        a = G()\n    else:\n        b = G()", "`if`", "andThen when", None),
    "Python's for": ("for x in $.items:\n        a = G()", "`for`", "andThen foreach", None),
    "Python's try": ("try:\n        a = G()\n    except:\n        b = G()", "`try`", "catch", None),
    "when in a block": ("when {\n case true => { }\n case _ => { }\n }", "`when`", "andThen when", None),
    "parallel": ("parallel {\n a = G()\n b = G()\n }", "`parallel`", "concurrently", None),
    "a qualified step": ("a.b = G()", "`a.b`", "one name", None),
    "several names": ("a, b = G()", "`,`; expected `=`", "one name", None),
    "destructuring": ("(a, b) = G()", "`(`", "one name", None),
    "adding to a step": ("a += G()", "`+=`", "assigned once", None),
    "catch with a name": ("a = G() catch (e) { }", "`(`; expected `{`", "`step.error`", None),
    "andThen if": ("a = G() andThen if true { }", "`if`", "andThen when", None),
    "andThen for": (
        "a = G() andThen for x in $.items { }",
        "`for`; expected `foreach`",
        "",
        "a = G() andThen foreach x in $.items { }",
    ),
    "foreach in parentheses": (
        "a = G() andThen foreach (x in $.items) { }",
        "`(`",
        "`foreach x in",
        "a = G() andThen foreach x in $.items { }",
    ),
    "foreach as": ("a = G() andThen foreach $.items as x { }", "`$.items`; expected a name", "`foreach x in $.items`", None),
    "foreach over a call": ("a = G() andThen foreach x in range(3) { }", "call of `range`", "reference", None),
    "a nested declaration": ("facet H()\n    a = G()", "inside a block", "outside of blocks", None),
    "a bare input": ("a = F(x = n)", "unknown step `n`", "`$.n`", "a = F(x = $.n)"),
    "this": ("a = F(x = this.n)", "unknown step `this`", "`$.n`", "a = F(x = $.n)"),
    "steps": ("a = F(x = 1)\n    b = F(x = steps.a.out)", "unknown step `steps`", "`a.out`", "a = F(x = 1)\n    b = F(x = a.out)"),
    "a step as an input": (
        "a = F(x = 1)\n    b = F(x = $.a.out)",
        "unknown input `$.a`",
        "`a.out`",
        "a = F(x = 1)\n    b = F(x = a.out)",
    ),
    "a bare step": ("a = F(x = 1)\n    b = F(x = a)", "by itself", "`a.out`", "a = F(x = 1)\n    b = F(x = a.out)"),
    "call and operator": ("a = F(x = 1) + 2", "call of `F`", "step of its own", None),
    "value with a body": ("a = $.n + 1 andThen { }", "`andThen` after a value", "belongs to a step", None),
    "value with a mixin": ("a = $.n with Timeout(ms = 1)", "`with` after a value", "belongs to a step", None),
    "value with a catch": ("a = [1] catch { }", "`catch` after a value", "belongs to a step", None),
    "len": ("a = F(x = len($.items))", "function `len`", "`count($.items)`", "a = F(x = count($.items))"),
    "size as a step": ("a = size($.items)", "function `size`", "`count($.items)`", "a = count($.items)"),
    "a misspelt function": ("a = F(x = flaten([[1]]))", "function `flaten`", "`flatten($.lists)`", "a = F(x = flatten([[1]]))"),
    "a misspelt function as a step": ("a = cuont($.items)", "function `cuont`", "`count($.items)`", "a = count($.items)"),
    "a function in capitals": ("a = COUNT($.items)", "function `COUNT`", "`count($.items)`", "a = count($.items)"),
    "a dot at the end of a line": ("a = F(x = 1)\n    b = a.\n    c = G()", "after `.`", "", None),
    "an operator at the end of a line": ("a = $.n *\n    c = G()", "`c`; expected a value", "", None),
    "max": ("a = max($.n, 2)", "function `max`", "the functions are count, sum, first, join, flatten", None),
    "method of an input": ("a = F(x = $.items.count())", "no methods", "`count($.items)`", "a = F(x = count($.items))"),
    "method as a step": ("a = $.items.size()", "no methods", "`count($.items)`", "a = count($.items)"),
    "method of a step": ("a = G()\n    b = a.a.length()", "no methods", "`count(a.a)`", "a = G()\n    b = count(a.a)"),
    "method of an element": ("a = $.items[0].count()", "no methods", "`count($.items[0])`", "a = count($.items[0])"),
    "join as a method": ('a = $.items.join("-")', "no methods", '`join($.items, ", ")`', None),
    "a named argument of a function": ("a = F(x = sum(list = [1]))", "no names", "`sum($.prices)`", "a = F(x = sum([1]))"),
    "a function called like a facet": ("a = count(list = $.items)", "`count` is a function", "`count($.items)`", None),
    "a function without arguments": ("a = count()", "`count` is a function", "`count($.items)`", None),
    "an empty function in an expression": ("a = F(x = count())", "needs an argument", "`count($.items)`", None),
    "join with one argument": ("a = join($.items)", "takes two arguments", '`join($.names, ", ")`', None),
    "count with two arguments": ("a = count($.items, 1)", "takes one argument", "`count($.items)`", None),
    "after behind a body": (
        "a = G()\n    b = F(x = 1) andThen {\n    } after a",
        "`after`",
        "before `andThen`",
        "a = G()\n    b = F(x = 1) after a andThen {\n    }",
    ),
    "after behind a catch": (
        "a = G()\n    c = G()\n    b = F(x = 1) with Timeout(ms = 1) catch { } after a, c",
        "`after`",
        "before `andThen`",
        "a = G()\n    c = G()\n    b = F(x = 1) with Timeout(ms = 1) after a, c catch { }",
    ),
    "after twice": (
        "a = G()\n    c = G()\n    b = F(x = 1) after a andThen { } after c",
        "`after`",
        "before `andThen`",
        "a = G()\n    c = G()\n    b = F(x = 1) after a, c andThen { }",
    ),
    "None as a value": ("a = None", "`None`", "`null`", "a = null"),
    "True as a value": ("a = True\n    b = FALSE", "`True`", "`true`", "a = true\n    b = false"),
    "not as a value": ("a = not true", "`not`", "`!`", "a = !true"),
    "null coalescing": ("a = F(x = $.n ?? 0)", "`??`", "`case $.n == null => { ... } case _ => { ... }`", None),
    "elvis": ("a = F(x = $.n ?: 0)", "`?:`", "`case $.n == null", None),
    "a step that may be null": ("b = F(x = 1)\n    a = F(x = b.out ?? 0)", "`??`", "`case b.out == null", None),
    "safe navigation": ("a = F(x = $.items[0]?.z)", "`?.`", "`case $.items[0] == null", None),
    "a result of a call": ("a = F(x = 1).out", "call of `F`", "`name.result`", None),
    "an element of a call": ("a = F(x = 1)[0]", "call of `F`", "`name.result`", None),
    "after without a comma": (
        "a = G()\n    b = G()\n    c = G() after a b\n    d = G() after a  b",
        "comma is missing",
        "`after a, b`",
        "a = G()\n    b = G()\n    c = G() after a, b\n    d = G() after a,  b",
    ),
    "foreach over a function": (
        "a = G() andThen foreach x in flatten($.items) { }",
        "call of `flatten`",
        "`l = flatten(...)`",
        None,
    ),
}
DECLARATIONS = {
    "arrow": ("event facet A() -> (y: Long)", "`->`", "`=>`", "event facet A() => (y: Long)"),
    "unnamed return": ("event facet A() => Long", "`Long`; expected `(`", "(result: Long)", "event facet A() => (result: Long)"),
    "no type": ("facet A(x)", "`)`; expected `:`", "`x: Json`", "facet A(x: Json)"),
    "type first": ("facet A(Long x)", "`x`; expected `:`", "`x: Long`", "facet A(x: Long)"),
    "no colon": ("facet A(x Long)", "`Long`; expected `:`", "", "facet A(x: Long)"),
    "List<String>": ("facet A(x: List<String>)", "`List<String>`", "`[String]`", "facet A(x: [String])"),
    "Map<String, Long>": ("facet A(x: Map<String, Long>)", "`Map<", "`Json`", "facet A(x: Json)"),
    "String[]": ("facet A(x: String[])", "`String[]`", "`[String]`", "facet A(x: [String])"),
    "[]String": ("facet A(x: []String)", "`[]String`", "`[String]`", "facet A(x: [String])"),
    "list[str]": ("facet A(x: list[Long])", "`list[Long]`", "`[Long]`", "facet A(x: [Long])"),
    "Float": ("facet A(x: Float)", "`Float`", "", "facet A(x: Double)"),
    "integer": ("facet A(x: integer)", "`integer`", "", "facet A(x: Long)"),
    "string": ("facet A(x: string)", "`string`", "", "facet A(x: String)"),
    "bool": ("facet A(x: bool)", "`bool`", "", "facet A(x: Boolean)"),
    "any": ("facet A(x: any)", "`any`", "", "facet A(x: Json)"),
    "Long??": ("facet A(x: Long??)", "second `?`", "", "facet A(x: Long?)"),
    "?Long": ("facet A(x: ?Long)", "`?` before a type", "`Long?`", None),
    "x?": ("facet A(x?: Long)", "`?` after a name", "`x: Long?`", None),
    "Optional": ("facet A(x: Optional<Long>)", "`Optional<Long>`", "`Long?`", "facet A(x: Long?)"),
    "Long | null": ("facet A(x: Long | null)", "`| null`", "`Long?`", "facet A(x: Long?)"),
    "[Long] | None": ("facet A(x: [Long] | None = null)", "`| None`", "`T?`", "facet A(x: [Long]? = null)"),
    "Long? | null": ("facet A(x: [Long|nil], y: Long? | null)", "`|nil`", "`Long?`", "facet A(x: [Long?], y: Long?)"),
    "collectErrors of an input": (
        "workflow A(l: [Long]) => (g: [Json]) andThen foreach x in $.l collectErrors($.g) { }", "`$.g`", "without `$.`",
        "workflow A(l: [Long]) => (g: [Json]) andThen foreach x in $.l collectErrors(g) { }",
    ),
    "semicolons in a list": ("facet A(x: Long; y: Long)", "`;`", "commas", "facet A(x: Long, y: Long)"),
    "def": ("def A(x: Long)", "`def`", "`facet`", "facet A(x: Long)"),
    "fn": ("fn A(x: Long)", "`fn`", "`facet`", "facet A(x: Long)"),
    "function": ("function A(x: Long)", "`function`", "`facet`", "facet A(x: Long)"),
    "class": ("namespace n { class A { x: Long } }", "`class`", "`schema`", "namespace n { schema A { x: Long } }"),
    "import": ("namespace n { import n }", "`import`", "`use", "namespace n { use n }"),
    "return of nothing": (
        "facet B() workflow A() andThen {\n    b = B()\n    return\n}", "`return`", "`yield`",
        "facet B() workflow A() andThen {\n    b = B()\n    \n}",
    ),
    "from import": ("namespace n {\n    from n import A, B\n}", "`from`", "`use", "namespace n {\n    use n\n}"),
    "import in a namespace without braces": (
        "namespace n\nimport n\nfacet A()", "`import`", "`use",
        "namespace n\nuse n\nfacet A()",
    ),
    "import outside of namespaces": ("import n\nfacet A()", "`import`", "the full name", None),
    "from import outside of namespaces": ("from n import A\nfacet B()", "`from`", "the full name", None),
    "import of a file": ('import "n.afl"\nfacet A()', "`import`", "compiled together", None),
    "class outside of namespaces": ("class A { x: Long }", "`class`", "inside a namespace", None),
    "async": ("async workflow A()", "`async`", "leave", "workflow A()"),
    "dashes before a declaration": ("-- it's {good}\nfacet A()", "`--`", "`//`", "// it's {good}\nfacet A()"),
    "import of names": ('import { A } from "n"\nfacet A()', "`import`", "compiled together", None),
    "type with =": ("facet A(x = Long, y = String)", "`=`; expected `:`", "`x: Long`", "facet A(x: Long, y: String)"),
    "unclosed parameters": (
        "event facet A(x: Long => (y: Long)", "`(` in line 1, column 14 is not closed", "",
        "event facet A(x: Long) => (y: Long)",
    ),
    "schema in parentheses": (
        "namespace n { schema S(a: Long) }", "`(`; expected `{`", "braces",
        "namespace n { schema S {a: Long} }",
    ),
    "schema with =": (
        "namespace n { schema S = { a: Long } }", "`=`; expected `{`", "braces",
        "namespace n { schema S  { a: Long } }",
    ),
    "default of a field": ("namespace n { schema S { a: Long = 1 } }", "no default", "", "namespace n { schema S { a: Long } }"),
    "YAML": ("workflow: A\nsteps:\n  - name: a\n", "`:`; expected a name", "`workflow F(", None),
    "andThen with a colon": ("workflow A() andThen:\n    a = B()", "`:`; expected `{`", "braces", None),
    "when with a condition": ("workflow A(n: Long) andThen when $.n > 1 { }", "`$.n`; expected `{`", "`when { case", None),
    "andThen switch": ("workflow A(n: Long) andThen switch $.n { case 1: { } }", "`switch`", "andThen when", None),
    "case without braces": (
        "workflow A() => (y: Long) andThen when { case true => yield A(y = 1) case _ => yield A(y = 2) }",
        "`yield`; expected `{`", "braces",
        "workflow A() => (y: Long) andThen when { case true => { yield A(y = 1) } case _ => { yield A(y = 2) } }",
    ),
    "else": (
        "workflow A(n: Long) andThen when { case $.n > 1 => { } else => { } }", "`else`; expected `case`", "`case _",
        "workflow A(n: Long) andThen when { case $.n > 1 => { } case _ => { } }",
    ),
    "a value as a case": (
        "workflow A(n: Long) andThen when { case 1 => { } case _ => { } }", "must be a Boolean",
        "`$.x == 1`", None,
    ),
    "package": ("package n { }", "`package`", "`namespace`", "namespace n { }"),
    "evnt": ("evnt facet A()", "`evnt`", "`event`", "event facet A()"),
    "workflw": ("workflw A()", "`workflw`", "`workflow`", "workflow A()"),
    "event": ("event A()", "`A`; expected `facet`", "event facet", "event facet A()"),
    "no parameters": ("workflow A andThen { }", "parameters is missing", "`()`", "workflow A() andThen { }"),
    "no andThen": ("workflow A() { }", "`{`; expected `andThen`", "`andThen`", "workflow A() andThen { }"),
    "andthen": ("workflow A() andthen { }", "`andthen`", "`andThen`", "workflow A() andThen { }"),
    "then": ("workflow A() then { }", "`then`", "`andThen`", "workflow A() andThen { }"),
    "= block": ("workflow A() = { }", "`=`", "`andThen`", "workflow A() andThen { }"),
    "prompt colon": ('event facet A() prompt { template: "x" }', "`:`", "template", 'event facet A() prompt { template "x" }'),
    "fence": ("```afl\nfacet A()\n```\n", "Markdown fence", "between the fences", "facet A()\n"),
    "case =": (
        "workflow A(n: Long) andThen when { case $.n = 1 => { } case _ => { } }", "`=` in a condition", "`==`",
        "workflow A(n: Long) andThen when { case $.n == 1 => { } case _ => { } }",
    ),
    "case ->": (
        "workflow A(n: Long) andThen when { case $.n == 1 -> { } case _: { } }", "`->`; expected `=>`", "",
        "workflow A(n: Long) andThen when { case $.n == 1 => { } case _=> { } }",
    ),
    "foreach of": (
        "workflow A(l: [Long]) andThen foreach x of $.l { }", "`of`; expected `in`", "",
        "workflow A(l: [Long]) andThen foreach x in $.l { }",
    ),
    "foreach over a literal": ("workflow A() andThen foreach x in [1, 2] { }", "`[`", "a reference", None),
    "default case": (
        "workflow A() andThen when { default => { } }", "`default`", "`case _ => { ... }`",
        "workflow A() andThen when { case _ => { } }",
    ),
    "nested namespace": ("namespace a { namespace b { } }", "do not nest", "`namespace a.b { ... }`", None),
}  # fmt: skip
CASES = {name: (within(text), *rest, right and within(right)) for name, (text, *rest, right) in STATEMENTS.items()} | DECLARATIONS


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_gets_a_hint_and_where_possible_a_fix(name: str) -> None:
    text, message, hint, right = CASES[name]
    result = compiled(text)
    assert result.errors, "the text must be wrong"
    first = result.errors[0]
    assert message in first.message
    assert hint in f"{first.help or ''}{first.suggestion or ''}"
    if right is None:
        assert not first.fixes
        return
    assert fixed(text, result.errors) == right
    assert not compiled(right).errors, compiled(right).render()


def places(text: str) -> list[tuple[int, int]]:
    return [(each.line, each.column) for each in compiled(text).errors]


def test_all_syntax_errors_of_a_file_are_reported_without_cascades() -> None:
    text = (
        PRELUDE
        + "facet A(x: )\n"
        + "workflow W() andThen {\n    a = F(x = )\n    b = F(x = [1, )\n    if a {\n        c = 1\n    }\n    yield\n}\n"
        + "evnt facet B()\n"
        + "workflow V() andThen {\n    a = G() }\n    b = G()\n}\n"
        + "schema S { a Long }\n"
    )
    lines = [line for line, _ in places(text)]
    assert lines == [3, 5, 6, 7, 10, 12, 15, 17]


@pytest.mark.parametrize(
    ("text", "opened", "at"),
    [
        ("workflow W() andThen {\n    a = G()\n\n\n", (1, 22), (2, 12)),
        ("workflow W() andThen {\n    a = G()\n\nfacet H()\n", (1, 22), (2, 12)),
        ("namespace n {\n    facet A()\n", (1, 13), (2, 14)),
        ("facet A(x: Long,\n    y: Long\nfacet B()", (1, 8), (2, 12)),
        ("workflow W() andThen {\n    a = G() andThen {\n        b = G()\n    yield W()\n}\n", (2, 21), (5, 2)),
        ("facet A(x: Json = [1, 2)", (1, 19), (1, 24)),
    ],
)
def test_an_unclosed_bracket_is_named_with_its_place(text: str, opened: tuple[int, int], at: tuple[int, int]) -> None:
    found = compiled(text).errors
    assert [(each.line, each.column) for each in found] == [at]
    assert f"in line {opened[0]}, column {opened[1]} is not closed" in found[0].message


def test_a_missing_token_is_reported_at_the_end_of_the_line_before() -> None:
    assert places("facet A() =>\n\n\nfacet B()") == [(1, 13)]
    assert places(f"{PRELUDE}workflow W() andThen {{\n    a =\n    b = G()\n}}") == [(4, 8)]


def test_errors_after_an_unclosed_block_are_still_found() -> None:
    text = "workflow W() andThen {\n    a = G(\n\nfacet A(x: )\n\nfacet B() andThen {\n    c = 1 +\n}\n"
    assert [line for line, _ in places(text)] == [2, 4, 7]


def test_text_that_is_not_afl_gets_few_errors() -> None:
    prose = "Here is the workflow: it reads `a` and 'b', then # writes.\nIt's done & dusted; see [1].\n" * 20
    assert len(compiled(prose).errors) < 6


def test_after_and_values_get_no_fix_that_changes_the_meaning() -> None:
    [value] = compiled("workflow W() andThen { v = sys.value(value = [1, 2]) }").errors
    assert (value.fixes, value.suggestion, value.help) == ((), None, "a value needs no call: write `name = [1, 2]`")
    [order] = compiled("facet G() workflow W(xs: Json) andThen { a = G() b = G() after xs }").errors
    assert (order.fixes, order.valid) == ((), ("a",))
    [order] = compiled("facet G() workflow W(aa: Json) andThen { ab = G() b = G() after abb }").errors
    assert (order.suggestion, order.valid) == ("ab", ("ab",))


def test_the_parts_of_a_string_stay_together_in_front_of_an_index() -> None:
    text = 'workflow W(n: String) => (t: String) andThen { yield W(t = "a{n}"[0]) }'
    assert fixed(text, compiled(text).diagnostics) == text.replace('"a{n}"', '("a" ++ $.n)')
