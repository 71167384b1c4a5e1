"""Every rule that a diagnostic can name: what is wrong, what is right, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """`wrong` and `right` are AFL; `why` is one sentence."""

    id: str
    wrong: str
    right: str
    why: str


_TABLE = """
syntax-error | facet A(x: Long | facet A(x: Long) | The text does not follow the grammar at this place.
bad-escape | facet A(x: String = "\\u12") | facet A(x: String = "\\u0012") | An escape that starts like a known one must be complete.
number-too-large | facet A(x: Double = 1.0e999) | facet A(x: Double = 1.0e99) | The number cannot be represented.
unbalanced-script | facet A() script { x = { } | facet A() script { x = {} } | The end of a script is found by counting braces outside Python strings and comments.
too-deep | facet A(x: Long = ----1) | facet A(x: Long = 1) | Nesting is limited so that every program can be compiled, stored and run with bounded stack.
duplicate-declaration | facet A() facet A() | facet A() facet B() | Facets, event facets, workflows and schemas of a namespace share one set of names, across files.
schema-outside-namespace | schema S { a: Long } | namespace n { schema S { a: Long } } | Schemas stand inside a namespace.
use-outside-namespace | use a.b | namespace n { use a.b } | An import belongs to the namespace it stands in.
mixed-namespaces | namespace a (on its own line), then namespace b { } | one file-scoped namespace per file | A namespace without braces takes the rest of the file.
unknown-namespace | namespace a { use b } | namespace b { } namespace a { use b } | An import names a namespace that some source declares.
unknown-facet | a = n.Missing() | a = n.Present() | A qualified name must be declared exactly so.
external-facet | a = Missing() | a = Present() | An unqualified name that nothing declares is taken as an external facet; often it is a typing error.
unknown-mixin | a = F() with Missing() | a = F() with Present() | The mixin is declared nowhere.
ambiguous-facet | a = Greet() | a = north.Greet() | Several declarations have this short name and none is nearer than the others.
ambiguous-type | facet A(x: Line) | facet A(x: shop.Line) | Several schemas have this short name and none is nearer than the others.
unknown-type | facet A(x: Lnog) | facet A(x: Long) | A type is built in, a list, a schema, or a facet (for a step reference).
duplicate-parameter | facet A(x: Long, x: Long) | facet A(x: Long, y: Long) | Parameters are passed by name.
duplicate-return | facet A() => (x: Long, x: Long) | facet A() => (x: Long, y: Long) | Returns are read by name.
duplicate-field | schema S { a: Long, a: Long } | schema S { a: Long, b: Long } | Fields are read by name.
duplicate-argument | a = F(x = 1, x = 2) | a = F(x = 1) | One value per parameter.
duplicate-step | a = F() a = F() | a = F() b = F() | Steps of a block are read by name.
duplicate-yield | yield W(x = 1) yield W(y = 2) | yield W(x = 1, y = 2) | A block yields to a target once.
duplicate-directive | prompt { template "a" template "b" } | prompt { template "a" } | Only the last of several counts.
step-after-yield | yield W() a = F() | a = F() yield W() | Yields run when all steps of their block are finished, so they stand last.
unknown-input | workflow W(size: Long) andThen { a = F(n = $.siez) } | workflow W(size: Long) andThen { a = F(n = $.size) } | `$.` reads parameters of the surroundings, the owning step's attributes, or a loop variable.
unknown-step | b = F(n = missing.v) | a = F() b = F(n = a.v) | A reference without `$.` names a step or a loop variable.
forward-reference | a = F(n = b.v) b = F() | b = F() a = F(n = b.v) | A step can use earlier steps only.
self-reference | a = F(n = a.v) | a = F(n = 1) | A step has no attributes before it has run.
step-of-other-block | andThen { a = F() } andThen { b = F(n = a.v) } | andThen { a = F() b = F(n = a.v) } | Blocks run side by side and do not see each other's steps.
bare-step | b = F(n = a) | b = F(n = a.v) | A step alone is a value only for a parameter whose type is a facet.
unknown-attribute | b = F(n = a.vv) | b = F(n = a.v) | The facet of the step has neither a return nor a parameter of this name.
step-reference | g = G(src = 1) | g = G(src = s) | A parameter whose type is a facet takes a step of that facet, or one that mixes it in.
yield-target | workflow W() andThen { yield V() } | workflow W() andThen { yield W() } | A yield goes to the owner of its block or to a signature mixin.
ambiguous-yield | facet F() with M() as a with M() as b andThen { yield M() } | yield a() | With several aliases the target must say which.
unknown-return | yield W(y = 1) | yield W(x = 1) | The target declares no return of this name.
undeclared-return | workflow W() andThen { yield W(x = 1) } | workflow W() => (x: Long) andThen { yield W(x = 1) } | Values that are yielded should be declared as returns.
alias-clash | facet F(m: Long) with M() as m | facet F(m: Long) with M() as n | An alias is read like a parameter.
unknown-argument | a = F(nn = 1) | a = F(n = 1) | The facet has no parameter of this name.
missing-argument | a = F() | a = F(n = 1) | Reading a parameter that got no value fails at run time.
unknown-field | l = Line(size = 1) | l = Line(qty = 1) | The schema has no field of this name.
missing-field | l = Line(sku = "a") | l = Line(sku = "a", qty = 1) | Reading a field that got no value fails at run time.
mixin-on-schema | l = Line() with M() | l = Line() | A schema is plain data.
body-on-schema | l = Line() andThen { } | l = Line() | An instance of a schema has no blocks to run.
operator-type | a = F(n = "a" + 1) | a = F(n = "a" ++ 1) | Arithmetic needs numbers, ordering needs values with an order, logic needs Booleans.
condition-type | sys.assert(1) | sys.assert(1 == 1) | A condition is true or false.
foreach-type | facet F(n: Long) andThen foreach x in $.n { } | facet F(n: [Long]) andThen foreach x in $.n { } | Only lists can be iterated over.
when-default | andThen when { case $.a => { } } | andThen when { case $.a => { } case _ => { } } | Exactly one default, at the end, makes every case visible.
implicit-parameter | implicit i = Mail(hots = "x") | implicit i = Mail(host = "x") | An implicit supplies parameters of its facet.
prompt-template | prompt { model "m" } | prompt { template "t" } | The template is the message to the model.
prompt-without-event | facet F() prompt { template "t" } | event facet F() prompt { template "t" } | Only event facets are handed to a model.
unknown-placeholder | event facet F(a: Long) prompt { template "{b}" } | event facet F(a: Long) prompt { template "{a}" } | Placeholders are filled from parameters.
script-language | script ruby { x } | script python { x = 1 } | Scripts are written in Python.
empty-script | script { } | script { result["a"] = 1 } | A script without code does nothing.
returns-without-body | facet F() => (x: Long) | event facet F() => (x: Long) | Without a body nobody gives the returns a value.
"""

RULES: dict[str, Rule] = {
    parts[0]: Rule(*parts) for parts in ([part.strip() for part in line.split(" | ")] for line in _TABLE.strip().splitlines())
}
