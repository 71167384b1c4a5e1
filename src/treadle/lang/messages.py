"""The texts of syntax errors, and of semantic errors and warnings by rule.

A key of `MESSAGES` is the rule that the diagnostic names, followed by `:` and a case where one rule has several texts. Texts and
hints are templates for `str.format`, which the reporting methods fill; `near` is the misspelled name that a suggestion resembles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DiagnosticText(NamedTuple):
    """A text with its hint. With a `title`, there is a fix, which puts `write` in place of a span."""

    text: str
    hint: str | None = None
    title: str | None = None
    write: str = ""


_IN_A_CASE = "call it only in a case of `andThen when {{ case condition => {{ ... }} case _ => {{ ... }} }}`"
_DUPLICATE = DiagnosticText("{what} `{name}` is already given in line {line}")
MESSAGES: Mapping[str, DiagnosticText] = {
    "duplicate-argument": _DUPLICATE,
    "duplicate-field": _DUPLICATE,
    "duplicate-parameter": _DUPLICATE,
    "duplicate-return": _DUPLICATE,
    "duplicate-step": _DUPLICATE,
    "syntax-error": DiagnosticText("{text}"),
    "unbalanced-script": DiagnosticText("{text}"),
    "number-too-large": DiagnosticText("{text}"),
    "bad-character": DiagnosticText("the character {shown} cannot be stored", "remove it"),
    "bad-character:escape": DiagnosticText("`{text}` cannot be stored"),
    "bad-escape": DiagnosticText("malformed escape `{text}` in a string"),
    "ambiguous-facet": DiagnosticText("`{name}` is ambiguous, it must be qualified: {names}"),
    "ambiguous-type": DiagnosticText("type `{name}` is ambiguous, it must be qualified: {names}"),
    "bare-step": DiagnosticText("step `{name}` by itself is not a value"),
    "duplicate-declaration": DiagnosticText("`{name}` is already declared in {place}{here}", "rename one of the two"),
    "endless-recursion": DiagnosticText("`{name}` calls itself in every run, so that it never ends", _IN_A_CASE),
    "endless-recursion:circle": DiagnosticText(
        "this call closes a circle that every run follows, so that it never ends: {path}", _IN_A_CASE
    ),
    "external-facet": DiagnosticText("facet `{name}` is not declared anywhere"),
    "external-facet:function": DiagnosticText("there is neither a function nor a facet `{name}`"),
    "function-arguments:named": DiagnosticText("`{name}` is a function, whose arguments have no names"),
    "index-type:key": DiagnosticText("the key of {target} must be a text, this is {index}"),
    "mixed-namespaces": DiagnosticText(
        "this file already belongs to the namespace `{scoped}` (line {line}); `{name}` cannot be opened in it as well",
        "put it into a file of its own, or use braces for both",
    ),
    "return-not-always": DiagnosticText(
        "return `{name}` of `{facet}` gets {what}", "yield it there too, or give it a default, as in `{name}: ... = {default}`"
    ),
    "schema-outside-namespace": DiagnosticText("schema `{name}` must be inside a namespace"),
    "step-reference": DiagnosticText("`{arg}` takes a step of facet `{wanted}`", "pass the step by its name alone"),
    "step-reference:other": DiagnosticText("`{arg}` takes a step of facet `{wanted}`, but {actual}"),
    "type-mismatch": DiagnosticText("{subject} must be {wanted}, this {actual}"),
    "type-mismatch:field": DiagnosticText("{what} has no field `{path}`"),
    "type-mismatch:missing": DiagnosticText("{what} has no value for `{path}`"),
    "unknown-mixin": DiagnosticText("mixin `{name}` is not declared anywhere"),
    "unknown-namespace": DiagnosticText("no source declares the namespace `{near}`"),
    "use-outside-namespace": DiagnosticText("`use {name}` must be inside a namespace"),
    "absent-value": DiagnosticText("`{name}.{attribute}` may have no value: {reason}"),
    "alias-clash": DiagnosticText("alias `{alias}` is already the name of something else in `{facet}`"),
    "ambiguous-yield": DiagnosticText("`{name}` is mixed in more than once, yield to one of its aliases"),
    "body-on-schema": DiagnosticText("step `{step}` makes an instance of a schema, so its body never runs"),
    "collect-errors:missing": DiagnosticText(
        "`{owner}` has no return `{near}` that could collect the errors", "declare it, as in `=> ({near}: [Json])`"
    ),
    "collect-errors:type": DiagnosticText(
        "return `{name}` of `{owner}` must be a list of errors, it is {type}{detail}",
        "declare it as `[Json]`, or as a list of a schema with `index: Long`, `item`, `error: String` and `error_type: String`",
    ),
    "comparison-type": DiagnosticText("this is always {outcome}: {left} never equals {right}"),
    "comparison-type:contains": DiagnosticText("this is always {outcome}: {container} never contains {element}"),
    "condition-type": DiagnosticText("{what} must be a Boolean, this is {type}"),
    "condition-type:null": DiagnosticText("{what} must be a Boolean, this may be null"),
    "constant-condition": DiagnosticText("{what} is always {outcome}"),
    "constant-condition:itself": DiagnosticText("this compares a value with itself, which is always {outcome}"),
    "constant-condition:zero": DiagnosticText("this divides by zero, which always fails"),
    "duplicate-directive": DiagnosticText("`{kind}` is already given in line {line}; the last one counts"),
    "duplicate-key": DiagnosticText("the map already has the key `{name}`; only the last value counts"),
    "duplicate-mixin": DiagnosticText("`{target}` is already given in line {line}; the first one counts", "remove one of them"),
    "duplicate-yield": DiagnosticText("this block already yields to `{target}` in line {line}", "join the two yields"),
    "empty-script": DiagnosticText("this script is empty"),
    "foreach-type": DiagnosticText("foreach `{variable}` needs a list, this is {type}"),
    "forward-reference": DiagnosticText(
        "{label} refers to step `{name}`, which is only defined later (line {line})", "put the step it needs before it"
    ),
    "function-arguments": DiagnosticText("`{name}` takes {wanted}; here {verb} {count}", "write `{form}`"),
    "function-type": DiagnosticText("`{function}` needs {wanted}, this is {type}"),
    "function-type:null-element": DiagnosticText("`sum` needs a list of numbers, the elements of this one may be null"),
    "function-type:null-separator": DiagnosticText("`join` needs a text as separator, this may be null"),
    "implicit-parameter": DiagnosticText("implicit `{implicit}` passes `{near}`, which is not a parameter of `{qualified_name}`"),
    "index-type:null": DiagnosticText("this may be null, and null has no elements to index"),
    "index-type:null-index": DiagnosticText("the index must have a value, this may be null"),
    "index-type:position": DiagnosticText("the index of {target} must be a whole number, this is {index}"),
    "index-type:scalar": DiagnosticText("{target} has no elements to index"),
    "missing-argument": DiagnosticText("call of `{target}` gives no value for {names}"),
    "missing-field": DiagnosticText("instance of schema `{schema}` has no value for {names}"),
    "missing-field:map": DiagnosticText("{what} must be a `{schema}`, this map has no value for {names}"),
    "mixin-argument:fraction": DiagnosticText("`maxAttempts` of `Retry` must be a whole number"),
    "mixin-argument:missing": DiagnosticText("`Retry` needs `maxAttempts`", "give the number of attempts, as in `{example}`"),
    "mixin-argument:range": DiagnosticText("`{arg}` of `Retry` must be from {low:,.0f} to {high:,.0f}"),
    "mixin-argument:timeout": DiagnosticText("a `{name}` must be more than zero and at most 366 days"),
    "mixin-argument:unknown": DiagnosticText("`{name}` has no `{near}`", "it is written `{example}`"),
    "mixin-on-schema": DiagnosticText("schema `{name}` cannot have mixins"),
    "mixin-without-effect": DiagnosticText("`{target}` has no effect on {kind} `{qualified_name}`: {what}"),
    "number-range": DiagnosticText(
        "this number does not fit: whole numbers have 64 bits, from -9223372036854775808 to 9223372036854775807",
        "write it as a Double, such as `1.0e20`, or as text",
    ),
    "operator-type:arithmetic": DiagnosticText("operator `{operator}` needs numbers, this is {wrong}"),
    "operator-type:container": DiagnosticText("operator `{operator}` needs a list, a map or a text to search, this is {container}"),
    "operator-type:element": DiagnosticText("operator `{operator}` searches for {what}, this is {element}"),
    "operator-type:logic": DiagnosticText("operator `{operator}` needs Booleans, this is {wrong}"),
    "operator-type:not": DiagnosticText("operator `!` needs a Boolean, this is {operand}"),
    "operator-type:null": DiagnosticText("operator `{operator}` needs a value, this may be null"),
    "operator-type:operands": DiagnosticText("operator `{operator}` {needs}, these are {left} and {right}"),
    "operator-type:order": DiagnosticText("operator `{operator}` cannot order Booleans", "use `==` or `!=`"),
    "operator-type:sign": DiagnosticText("operator `-` needs a number, this is {operand}"),
    "overlapping-cases": DiagnosticText(
        "this case and that in line {line} can both be true; then both run, and the last `{name}` counts",
        "exclude the other case in the condition, as in `$.x > 1 && $.x <= 10`",
    ),
    "pre-script-return": DiagnosticText(
        "only the pre-script writes `{name}`; a pre-script adds inputs, so the return `{name}` is never given",
        "add `andThen {{ yield {facet}({name} = $.{name}) }}`",
    ),
    "prompt-template": DiagnosticText("the prompt of `{facet}` has no `template`"),
    "prompt-without-event": DiagnosticText("only an event facet's prompt is ever used; `{facet}` is a {kind}"),
    "reference-extension": DiagnosticText(
        "{shown} is an extension that the reference does not have", "{instead}, or compile without --reference"
    ),
    "reserved-parameter": DiagnosticText("parameter `{param}` begins with `_`: such keys of a payload belong to the runner"),
    "return-never-yielded": DiagnosticText(
        "no block of `{facet}` yields the return `{name}`, so it never gets a value",
        "yield it, as in `yield {facet}({name} = ...)`, or give it a default",
    ),
    "returns-without-body": DiagnosticText(
        "{kind} `{facet}` declares returns but has no body, so a plain call never gives them a value",
        "add a body, or make it an event facet",
    ),
    "script-import": DiagnosticText(
        "scripts cannot import `{name}`",
        "scripts have no files, network or other packages: do this in the handler of an event facet",
    ),
    "script-key": DiagnosticText("nothing reads `{near}`, which this script adds to the inputs of `{facet}`"),
    "script-language": DiagnosticText("unsupported script language `{language}`"),
    "script-name": DiagnosticText("this script never defines `{name}`"),
    "script-name:builtin": DiagnosticText("scripts do not have Python's `{name}`"),
    "script-param": DiagnosticText("`params` has no `{near}` here"),
    "script-result": DiagnosticText(
        "this assigns another value to `result`, so the script has no results", 'write `result["name"] = ...`'
    ),
    "script-syntax": DiagnosticText("Python cannot read this script: {error}"),
    "self-reference": DiagnosticText("step `{name}` refers to itself"),
    "step-after-yield": DiagnosticText("step `{step}` comes after the yield in line {line}", "put all steps before all yields"),
    "step-of-other-block": DiagnosticText(
        "{label} refers to step `{name}`, which belongs to another block",
        "steps are visible in their own block and in the bodies below it",
    ),
    "string-placeholder": DiagnosticText(
        "`{first}` in a string stays as it is; strings have no placeholders", "join texts with `++`: `{right}`"
    ),
    "too-deep": DiagnosticText("{what} is nested more than {limit} levels deep", "split it over several steps or facets"),
    "type-mismatch:literal": DiagnosticText("parameter `{name}` of `{target}` {wrong}"),
    "type-mismatch:null": DiagnosticText("`{shown}` may be null, and null has no field `{name}`"),
    "undeclared-return": DiagnosticText("`{name}` has no return `{arg}`; it declares none"),
    "undeclared-return:script": DiagnosticText("this script gives `{near}`, which is not a declared return"),
    "unknown-argument": DiagnosticText("`{qualified_name}` has no parameter `{near}`"),
    "unknown-attribute": DiagnosticText("step `{name}` ({target}) has no attribute `{near}`"),
    "unknown-attribute:facet": DiagnosticText("facet `{type}` has no attribute `{near}`"),
    "unknown-facet": DiagnosticText("unknown facet `{name}`"),
    "unknown-field": DiagnosticText("schema `{schema}` has no field `{near}`"),
    "unknown-field:index": DiagnosticText("{type} has no field `{near}`"),
    "unknown-field:value": DiagnosticText("`{value}` is {kind}, which has no field `{near}`"),
    "unknown-input": DiagnosticText("unknown input `$.{near}` in {label}"),
    "unknown-placeholder": DiagnosticText("placeholder `{{{near}}}` in `{kind}` is not a parameter of `{facet}`"),
    "unknown-return": DiagnosticText("`{name}` has no return `{near}`"),
    "unknown-step": DiagnosticText("{label} refers to unknown step `{near}`"),
    "unknown-step:after": DiagnosticText("`after` needs a step, and `{name}` is {what}"),
    "unknown-step:uncalled": DiagnosticText("`{name}` is a {what}: the arguments are missing", "write `()` if there are none"),
    "unknown-type": DiagnosticText("unknown type `{name}`"),
    "when-default": DiagnosticText("`when` needs exactly one default, as its last case", "end with `case _ => {{ ... }}`"),
    "yield-owner": DiagnosticText(
        "this block belongs to step `{owner}`, so its values go to that step and not to `{name}`",
        "yield to `{valid_}` here, and to `{name}` after the step{values}",
    ),
    "yield-target": DiagnosticText("cannot yield to `{near}` here", "a yield goes to {owner}"),
}


SYNTAX_ERRORS: Mapping[str, DiagnosticText] = {
    "unexpected": DiagnosticText("{message}"),
    "line break": DiagnosticText("unexpected line break before `{shown}`", "join the two lines"),
    "left out": DiagnosticText("unexpected `{token}`", "leave `{token}` out", "Remove `{token}`"),
    "misspelled": DiagnosticText(
        "unexpected `{token}`; expected {expected}", "did you mean `{meant}`?", "Change `{token}` to `{meant}`", "{meant}"
    ),
    "semicolon in list": DiagnosticText(
        "unexpected `;`; expected `,` or `{sign}`", "a list is separated by commas", "Write `,`", ","
    ),
    "list comprehension": DiagnosticText(
        "AFL has no list comprehensions", "collect a list in a loop: `andThen foreach x in $.items {{ yield F(list = [x]) }}`"
    ),
    "no comma": DiagnosticText("a comma is missing here", None, "Insert `,`", ","),
    "nested declaration": DiagnosticText("unexpected `{token}`: a declaration cannot stand inside a block"),
    "foreign declaration": DiagnosticText("unexpected `{token}`; expected a declaration"),
    "nested namespace": DiagnosticText(
        "unexpected `namespace`: namespaces do not nest", "write the full name, such as `namespace a.b {{ ... }}`, beside the first"
    ),
    "word outside": DiagnosticText(
        "unexpected `{token}`; expected {expected}",
        "`{token}` belongs to a declaration or a block; is there a `}}` too many before it?",
    ),
    "extra brace": DiagnosticText("unexpected `}}`; expected a declaration or the end of the file", "there is a `}}` too many"),
    "import": DiagnosticText("unexpected `{word}`; expected a declaration"),
    "= before fields": DiagnosticText(
        "unexpected `=`; expected `{{`", "fields stand in braces: `schema {name} {{ ... }}`", "Remove it"
    ),
    "fields in parentheses": DiagnosticText("unexpected `(`; expected `{{`", "fields stand in braces: `schema {name} {{ ... }}`"),
    "field default": DiagnosticText(
        "unexpected `=`: a field has no default", "give the value where the schema is called", "Remove it"
    ),
    "mark after name": DiagnosticText("unexpected `?` after a name", "the mark follows the type, as in `{name}: Long?`"),
    "= before type": DiagnosticText("unexpected `=`; expected `:`", "a parameter is written `{token}: {type}`", "Write `:`", ":"),
    "no type": DiagnosticText(
        "unexpected `{shown}`; expected `:`", "every parameter has a type, such as `{token}: Json`", "Insert `: Json`", ": Json"
    ),
    ": after kind": DiagnosticText("unexpected `:`; expected a name", "write `{words} F(...) => (...) andThen {{ ... }}`"),
    "event without facet": DiagnosticText(
        "unexpected `{token}`; expected `facet`", "write `event facet`", "Insert `facet`", " facet"
    ),
    "no parameters": DiagnosticText(
        "expected `(`: the list of parameters is missing", "write `()` if there are none", "Insert `()`", "()"
    ),
    "-> before returns": DiagnosticText("unexpected `->`; expected `=>`", "returns follow `=>`", "Write `=>`", "=>"),
    ": before returns": DiagnosticText("unexpected `:`; expected `=>`", "returns are named: `=> (result: Long)`"),
    "unnamed return": DiagnosticText("unexpected `{shown}`; expected `(`", "returns are named: `=> (result: Long)`"),
    "no andThen": DiagnosticText(
        "unexpected `{{`; expected `andThen`", "a block follows `andThen`", "Insert `andThen`", "andThen "
    ),
    "= before block": DiagnosticText(
        "unexpected `=`; expected `andThen`", "a block follows `andThen`", "Write `andThen`", "andThen"
    ),
    "sign after directive": DiagnosticText("unexpected `{kind}`", 'write `{directive} "..."`', "Remove it"),
    "for": DiagnosticText("unexpected `for`; expected `foreach`", None, "Write `foreach`", "foreach"),
    "construct": DiagnosticText("unexpected `{token}`"),
    ": before block": DiagnosticText("unexpected `:`; expected `{{`", "a block stands in braces: `andThen {{ ... }}`"),
    "script in step": DiagnosticText(
        "unexpected `script` in the body of a step", "`andThen script` belongs to declarations; call a facet that has it"
    ),
    "catch variable": DiagnosticText(
        "unexpected `(`; expected `{{`", "the error has no name: read `step.error`, or `$.error` in the `catch` of a declaration"
    ),
    "input as variable": DiagnosticText("unexpected `{token}`; expected a name", "write `foreach x in {token}`"),
    "of": DiagnosticText("unexpected `{token}`; expected `in`", None, "Write `in`", "in"),
    "foreach value": DiagnosticText("unexpected `{shown}`; expected a reference such as `$.items`"),
    "foreach parentheses": DiagnosticText("unexpected `(`; expected a name", "write `foreach x in $.items {{ ... }}`"),
    "foreach call": DiagnosticText("unexpected call of `{token}`; expected a reference such as `$.items`"),
    "collectErrors": DiagnosticText(
        "expected `(` after `collectErrors`", "name the return that takes the errors, as in `collectErrors(failed)`"
    ),
    "input as return": DiagnosticText(
        "unexpected `{token}`; expected a name", "name the return, without `$.`", "Write `{name}`", "{name}"
    ),
    "failFast": DiagnosticText("unexpected `(`; expected `{{`", "`failFast` takes nothing", "Remove `()`"),
    "two modes": DiagnosticText("unexpected `{token}`", "a foreach has one error mode"),
    "default case": DiagnosticText("unexpected `{token}`; expected `case`", "the default is written `case _ => {{ ... }}`"),
    "no arrow": DiagnosticText("unexpected `{{`; expected `=>`", None, "Insert `=>`", "=> "),
    "other arrow": DiagnosticText("unexpected `{shown}`; expected `=>`", None, "Write `=>`", "=>"),
    "case without braces": DiagnosticText("unexpected `{first}`; expected `{{`", "each case has a block in braces"),
    "comma after statement": DiagnosticText("unexpected `,` after a statement", "statements need no separator", "Remove it"),
    "yield without owner": DiagnosticText(
        "unexpected `{token}`; expected {wanted}", "name the owner of the block and its returns: `yield {owner}({results})`"
    ),
    "call in expression": DiagnosticText(
        "unexpected call of `{target}` inside an expression",
        "a call is a step of its own: `name = F(...)`; then use its results, `name.result`",
    ),
    "no andThen in step": DiagnosticText(
        "unexpected `{{`; expected `andThen`", "the body of a step follows `andThen`", "Insert `andThen`", "andThen "
    ),
    "no comma in after": DiagnosticText("a comma is missing here", "write `after {found}, {token}`", "Insert `,`", ","),
    "with after after": DiagnosticText("unexpected `with` after `after`", "mixins stand before `after`"),
    "attribute in after": DiagnosticText(
        "unexpected `{token}`; expected the name of a step", "write `after {name}`", "Write `{name}`", "{name}"
    ),
    "misplaced after": DiagnosticText("unexpected `after`"),
    "= after yield": DiagnosticText("unexpected `=` after `yield`", "write `yield F(...)`", "Remove `=`"),
    "keyword as step": DiagnosticText("`{token}` is a keyword and cannot name a step", "choose another name"),
    "clause after value": DiagnosticText(
        "unexpected `{token}` after a value", "`{name}` is computed immediately; `{token}` belongs to a step that calls a facet"
    ),
    "construct as call": DiagnosticText("unexpected `{token}`; expected the call of a facet"),
    "second comparison": DiagnosticText(
        "unexpected `{token}` after a comparison", "combine comparisons with `&&`, or put one into parentheses"
    ),
    "operator at start of line": DiagnosticText(
        "a line cannot begin with the operator `{token}`", "end the previous line with `{token}` instead"
    ),
    "===": DiagnosticText("unexpected `{operator}=`", "write `{operator}`", "Write `{operator}`", "{operator}"),
    "<>": DiagnosticText("unexpected `<>`", "write `!=`", "Write `!=`", "!="),
    "{ as map": DiagnosticText("unexpected `{{`; expected a value", "a map is written `#{{key: value}}`", "Write `#{{`", "#{{"),
    "no argument": DiagnosticText("`{name}` needs an argument", "write `{form}`"),
    "named argument": DiagnosticText("the arguments of `{name}` have no names", "write `{form}`", "Remove the name"),
    "= in map": DiagnosticText("unexpected `=` in a map", "an entry is written `key: value`", "Write `:`", ":"),
    "name after dot": DiagnosticText("expected a name after `.`"),
    "field by dot": DiagnosticText("unexpected `.{name}`", "use an index after `]` or `)`: `{keys}`", "Write `{keys}`", "{keys}"),
    "?": DiagnosticText("unexpected `?{joint}`"),
    "= in condition": DiagnosticText("unexpected `=` in a condition", "comparison is written `==`", "Write `==`", "=="),
    "foreign word": DiagnosticText("unexpected `{token}`", "write `{meant}`", "Write `{meant}`", "{meant}"),
    "method": DiagnosticText("unexpected call of `.{name}`: values have no methods"),
    "formatted string": DiagnosticText("unexpected `{shown}`", "join texts with `++`: {meant}"),
    "not": DiagnosticText("unexpected `not` before a value", "write `!`", "Write `!`", "!"),
    "word in expression": DiagnosticText("unexpected `{token}` in an expression"),
    "mark before type": DiagnosticText("unexpected `?` before a type", "the mark follows the type, as in `Long?`"),
    "or null": DiagnosticText("unexpected `or` in a type", "an optional type is written `{shown}?`", "Write `?`", "?"),
    "second mark": DiagnosticText("unexpected second `?` after a type", None, "Remove it"),
    "foreign type": DiagnosticText("unexpected type `{shown}`", "write `{meant}`", "Write `{meant}`", "{meant}"),
    "argument sign": DiagnosticText(
        "unexpected `{kind}`; expected `=`", "an argument is written `{token} = value`", "Write `=`", " ="
    ),
    "unnamed argument": DiagnosticText("an argument needs a name", "arguments are named: `{example}`"),
    "print": DiagnosticText("unexpected `print`"),
    "construct in block": DiagnosticText("unexpected `{text}`; expected a step, `yield` or `}}`"),
    "assignment operator": DiagnosticText(
        "unexpected `{kind}=`; expected `=`", "a step is assigned once; give the new value another name"
    ),
    ":=": DiagnosticText("unexpected `:=`; expected `=`", None, "Write `=`", "="),
    "step type": DiagnosticText("unexpected `:`; expected `=`", "a step has no type; write `{token} = F(...)`", "Remove the type"),
    ": after step": DiagnosticText("unexpected `:`; expected `=`", "a step is written `{token} = F(...)`"),
    "-> between steps": DiagnosticText("unexpected `->` between steps", "a step runs after the steps that it reads", "Remove it"),
    "--": DiagnosticText("`--` does not begin a comment", "AFL comments begin with `//`", "Write `//`", "//"),
    "return at end": DiagnosticText(
        "unexpected `return`", "a block ends with its last step; it passes values to its owner with `yield`", "Remove it"
    ),
    "return of call": DiagnosticText(
        "unexpected `return`", "a block passes values to its owner with `yield`", "Write `yield`", "yield"
    ),
    "unnamed call": DiagnosticText("this call is not a step; expected `=` after the name of a step"),
    "type before name": DiagnosticText(
        "unexpected `{token}`; expected `:`", "a parameter is written `{text}`", "Write `{text}`", "{text}"
    ),
    "no colon": DiagnosticText("unexpected `{token}`; expected `:`", None, "Insert `:`", ":"),
    "unknown function": DiagnosticText("unknown function `{name}`"),
    "yield of value": DiagnosticText(
        "unexpected value; expected the owner of the block",
        "a block passes values to its owner with `yield`: `yield {owner}({name} = ...)`",
    ),
    "return of value": DiagnosticText(
        "unexpected `return`", "a block passes values to its owner with `yield`: `yield {owner}({name} = ...)`"
    ),
}
"""Texts of the rule `syntax-error`: forms that cannot stand where they are, most of them from other languages."""
