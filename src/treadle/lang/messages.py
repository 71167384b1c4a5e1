"""The texts of syntax errors, and of semantic errors and warnings by rule.

A key of `MESSAGES` is the rule that the diagnostic names, followed by `:` and a case where one rule has several texts. Texts and
hints are templates for `str.format`, which the reporting methods fill; `near` is the misspelled name that a suggestion resembles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Message(NamedTuple):
    """A text with its hint. With a `title`, there is a fix, which puts `write` in place of a span."""

    text: str
    hint: str | None = None
    title: str | None = None
    write: str = ""


_IN_A_CASE = "call it only in a case of `andThen when {{ case condition => {{ ... }} case _ => {{ ... }} }}`"
_DUPLICATE = Message("{what} `{name}` is already given in line {line}")
MESSAGES: Mapping[str, Message] = {
    "duplicate-argument": _DUPLICATE,
    "duplicate-field": _DUPLICATE,
    "duplicate-parameter": _DUPLICATE,
    "duplicate-return": _DUPLICATE,
    "duplicate-step": _DUPLICATE,
    "syntax-error": Message("{text}"),
    "unbalanced-script": Message("{text}"),
    "number-too-large": Message("{text}"),
    "bad-character": Message("the character {shown} cannot be stored", "remove it"),
    "bad-character:escape": Message("`{text}` cannot be stored"),
    "bad-escape": Message("malformed escape `{text}` in a string"),
    "ambiguous-facet": Message("`{name}` is ambiguous, it must be qualified: {names}"),
    "ambiguous-type": Message("type `{name}` is ambiguous, it must be qualified: {names}"),
    "bare-step": Message("step `{name}` by itself is not a value"),
    "duplicate-declaration": Message("`{name}` is already declared in {place}{here}", "rename one of the two"),
    "endless-recursion": Message("`{name}` calls itself in every run, so that it never ends", _IN_A_CASE),
    "endless-recursion:circle": Message(
        "this call closes a circle that every run follows, so that it never ends: {path}", _IN_A_CASE
    ),
    "external-facet": Message("facet `{name}` is not declared anywhere"),
    "external-facet:function": Message("there is neither a function nor a facet `{name}`"),
    "function-arguments:named": Message("`{name}` is a function, whose arguments have no names"),
    "index-type:key": Message("the key of {target} must be a text, this is {index}"),
    "mixed-namespaces": Message(
        "this file already belongs to the namespace `{scoped}` (line {line}); `{name}` cannot be opened in it as well",
        "put it into a file of its own, or use braces for both",
    ),
    "return-not-always": Message(
        "return `{name}` of `{facet}` gets {what}", "yield it there too, or give it a default, as in `{name}: ... = {default}`"
    ),
    "schema-outside-namespace": Message("schema `{name}` must be inside a namespace"),
    "step-reference": Message("`{arg}` takes a step of facet `{wanted}`", "pass the step by its name alone"),
    "step-reference:other": Message("`{arg}` takes a step of facet `{wanted}`, but {actual}"),
    "type-mismatch": Message("{subject} must be {wanted}, this {actual}"),
    "type-mismatch:field": Message("{what} has no field `{path}`"),
    "type-mismatch:missing": Message("{what} has no value for `{path}`"),
    "unknown-mixin": Message("mixin `{name}` is not declared anywhere"),
    "unknown-namespace": Message("no source declares the namespace `{near}`"),
    "use-outside-namespace": Message("`use {name}` must be inside a namespace"),
    "absent-value": Message("`{name}.{attribute}` may have no value: {reason}"),
    "alias-clash": Message("alias `{alias}` is already the name of something else in `{facet}`"),
    "ambiguous-yield": Message("`{name}` is mixed in more than once, yield to one of its aliases"),
    "body-on-schema": Message("step `{step}` makes an instance of a schema, so its body never runs"),
    "collect-errors:missing": Message(
        "`{owner}` has no return `{near}` that could collect the errors", "declare it, as in `=> ({near}: [Json])`"
    ),
    "collect-errors:type": Message(
        "return `{name}` of `{owner}` must be a list of errors, it is {type}{detail}",
        "declare it as `[Json]`, or as a list of a schema with `index: Long`, `item`, `error: String` and `error_type: String`",
    ),
    "comparison-type": Message("this is always {outcome}: {left} never equals {right}"),
    "comparison-type:contains": Message("this is always {outcome}: {container} never contains {element}"),
    "condition-type": Message("{what} must be a Boolean, this is {type}"),
    "condition-type:null": Message("{what} must be a Boolean, this may be null"),
    "constant-condition": Message("{what} is always {outcome}"),
    "constant-condition:itself": Message("this compares a value with itself, which is always {outcome}"),
    "constant-condition:zero": Message("this divides by zero, which always fails"),
    "duplicate-directive": Message("`{kind}` is already given in line {line}; the last one counts"),
    "duplicate-key": Message("the map already has the key `{name}`; only the last value counts"),
    "duplicate-mixin": Message("`{target}` is already given in line {line}; the first one counts", "remove one of them"),
    "duplicate-yield": Message("this block already yields to `{target}` in line {line}", "join the two yields"),
    "empty-script": Message("this script is empty"),
    "foreach-type": Message("foreach `{variable}` needs a list, this is {type}"),
    "forward-reference": Message(
        "{label} refers to step `{name}`, which is only defined later (line {line})", "put the step it needs before it"
    ),
    "function-arguments": Message("`{name}` takes {wanted}; here {verb} {count}", "write `{form}`"),
    "function-type": Message("`{function}` needs {wanted}, this is {type}"),
    "function-type:null-element": Message("`sum` needs a list of numbers, the elements of this one may be null"),
    "function-type:null-separator": Message("`join` needs a text as separator, this may be null"),
    "implicit-parameter": Message("implicit `{implicit}` passes `{near}`, which is not a parameter of `{qualified_name}`"),
    "index-type:null": Message("this may be null, and null has no elements to index"),
    "index-type:null-index": Message("the index must have a value, this may be null"),
    "index-type:position": Message("the index of {target} must be a whole number, this is {index}"),
    "index-type:scalar": Message("{target} has no elements to index"),
    "missing-argument": Message("call of `{target}` gives no value for {names}"),
    "missing-field": Message("instance of schema `{schema}` has no value for {names}"),
    "missing-field:map": Message("{what} must be a `{schema}`, this map has no value for {names}"),
    "mixin-argument:fraction": Message("`maxAttempts` of `Retry` must be a whole number"),
    "mixin-argument:missing": Message("`Retry` needs `maxAttempts`", "give the number of attempts, as in `{example}`"),
    "mixin-argument:range": Message("`{arg}` of `Retry` must be from {low:,.0f} to {high:,.0f}"),
    "mixin-argument:timeout": Message("a `{name}` must be more than zero and at most 366 days"),
    "mixin-argument:unknown": Message("`{name}` has no `{near}`", "it is written `{example}`"),
    "mixin-on-schema": Message("schema `{name}` cannot have mixins"),
    "mixin-without-effect": Message("`{target}` has no effect on {kind} `{qualified_name}`: {what}"),
    "number-range": Message(
        "this number does not fit: whole numbers have 64 bits, from -9223372036854775808 to 9223372036854775807",
        "write it as a Double, such as `1.0e20`, or as text",
    ),
    "operator-type:arithmetic": Message("operator `{operator}` needs numbers, this is {wrong}"),
    "operator-type:container": Message("operator `{operator}` needs a list, a map or a text to search, this is {container}"),
    "operator-type:element": Message("operator `{operator}` searches for {what}, this is {element}"),
    "operator-type:logic": Message("operator `{operator}` needs Booleans, this is {wrong}"),
    "operator-type:not": Message("operator `!` needs a Boolean, this is {operand}"),
    "operator-type:null": Message("operator `{operator}` needs a value, this may be null"),
    "operator-type:operands": Message("operator `{operator}` {needs}, these are {left} and {right}"),
    "operator-type:order": Message("operator `{operator}` cannot order Booleans", "use `==` or `!=`"),
    "operator-type:sign": Message("operator `-` needs a number, this is {operand}"),
    "overlapping-cases": Message(
        "this case and that in line {line} can both be true; then both run, and the last `{name}` counts",
        "exclude the other case in the condition, as in `$.x > 1 && $.x <= 10`",
    ),
    "pre-script-return": Message(
        "only the pre-script writes `{name}`; a pre-script adds inputs, so the return `{name}` is never given",
        "add `andThen {{ yield {facet}({name} = $.{name}) }}`",
    ),
    "prompt-template": Message("the prompt of `{facet}` has no `template`"),
    "prompt-without-event": Message("only an event facet's prompt is ever used; `{facet}` is a {kind}"),
    "reference-extension": Message(
        "{shown} is an extension that the reference does not have", "{instead}, or compile without --reference"
    ),
    "reserved-parameter": Message("parameter `{param}` begins with `_`: such keys of a payload belong to the runner"),
    "return-never-yielded": Message(
        "no block of `{facet}` yields the return `{name}`, so it never gets a value",
        "yield it, as in `yield {facet}({name} = ...)`, or give it a default",
    ),
    "returns-without-body": Message(
        "{kind} `{facet}` declares returns but has no body, so a plain call never gives them a value",
        "add a body, or make it an event facet",
    ),
    "script-import": Message(
        "scripts cannot import `{name}`",
        "scripts have no files, network or other packages: do this in the handler of an event facet",
    ),
    "script-key": Message("nothing reads `{near}`, which this script adds to the inputs of `{facet}`"),
    "script-language": Message("unsupported script language `{language}`"),
    "script-name": Message("this script never defines `{name}`"),
    "script-name:builtin": Message("scripts do not have Python's `{name}`"),
    "script-param": Message("`params` has no `{near}` here"),
    "script-result": Message(
        "this assigns another value to `result`, so the script has no results", 'write `result["name"] = ...`'
    ),
    "script-syntax": Message("Python cannot read this script: {error}"),
    "self-reference": Message("step `{name}` refers to itself"),
    "step-after-yield": Message("step `{step}` comes after the yield in line {line}", "put all steps before all yields"),
    "step-of-other-block": Message(
        "{label} refers to step `{name}`, which belongs to another block",
        "steps are visible in their own block and in the bodies below it",
    ),
    "string-placeholder": Message(
        "`{first}` in a string stays as it is; strings have no placeholders", "join texts with `++`: `{right}`"
    ),
    "too-deep": Message("{what} is nested more than {limit} levels deep", "split it over several steps or facets"),
    "type-mismatch:literal": Message("parameter `{name}` of `{target}` {wrong}"),
    "type-mismatch:null": Message("`{shown}` may be null, and null has no field `{name}`"),
    "undeclared-return": Message("`{name}` has no return `{arg}`; it declares none"),
    "undeclared-return:script": Message("this script gives `{near}`, which is not a declared return"),
    "unknown-argument": Message("`{qualified_name}` has no parameter `{near}`"),
    "unknown-attribute": Message("step `{name}` ({target}) has no attribute `{near}`"),
    "unknown-attribute:facet": Message("facet `{type}` has no attribute `{near}`"),
    "unknown-facet": Message("unknown facet `{name}`"),
    "unknown-field": Message("schema `{schema}` has no field `{near}`"),
    "unknown-field:index": Message("{type} has no field `{near}`"),
    "unknown-field:value": Message("`{value}` is {kind}, which has no field `{near}`"),
    "unknown-input": Message("unknown input `$.{near}` in {label}"),
    "unknown-placeholder": Message("placeholder `{{{near}}}` in `{kind}` is not a parameter of `{facet}`"),
    "unknown-return": Message("`{name}` has no return `{near}`"),
    "unknown-step": Message("{label} refers to unknown step `{near}`"),
    "unknown-step:after": Message("`after` needs a step, and `{name}` is {what}"),
    "unknown-step:uncalled": Message("`{name}` is a {what}: the arguments are missing", "write `()` if there are none"),
    "unknown-type": Message("unknown type `{name}`"),
    "when-default": Message("`when` needs exactly one default, as its last case", "end with `case _ => {{ ... }}`"),
    "yield-owner": Message(
        "this block belongs to step `{owner}`, so its values go to that step and not to `{name}`",
        "yield to `{valid_}` here, and to `{name}` after the step{values}",
    ),
    "yield-target": Message("cannot yield to `{near}` here", "a yield goes to {owner}"),
}


SYNTAX_ERRORS: Mapping[str, Message] = {
    "unexpected": Message("{message}"),
    "line break": Message("unexpected line break before `{shown}`", "join the two lines"),
    "left out": Message("unexpected `{token}`", "leave `{token}` out", "Remove `{token}`"),
    "misspelled": Message(
        "unexpected `{token}`; expected {expected}", "did you mean `{meant}`?", "Change `{token}` to `{meant}`", "{meant}"
    ),
    "semicolon in list": Message("unexpected `;`; expected `,` or `{sign}`", "a list is separated by commas", "Write `,`", ","),
    "list comprehension": Message(
        "AFL has no list comprehensions", "collect a list in a loop: `andThen foreach x in $.items {{ yield F(list = [x]) }}`"
    ),
    "no comma": Message("a comma is missing here", None, "Insert `,`", ","),
    "nested declaration": Message("unexpected `{token}`: a declaration cannot stand inside a block"),
    "foreign declaration": Message("unexpected `{token}`; expected a declaration"),
    "nested namespace": Message(
        "unexpected `namespace`: namespaces do not nest", "write the full name, such as `namespace a.b {{ ... }}`, beside the first"
    ),
    "word outside": Message(
        "unexpected `{token}`; expected {expected}",
        "`{token}` belongs to a declaration or a block; is there a `}}` too many before it?",
    ),
    "extra brace": Message("unexpected `}}`; expected a declaration or the end of the file", "there is a `}}` too many"),
    "import": Message("unexpected `{word}`; expected a declaration"),
    "= before fields": Message("unexpected `=`; expected `{{`", "fields stand in braces: `schema {name} {{ ... }}`", "Remove it"),
    "fields in parentheses": Message("unexpected `(`; expected `{{`", "fields stand in braces: `schema {name} {{ ... }}`"),
    "field default": Message("unexpected `=`: a field has no default", "give the value where the schema is called", "Remove it"),
    "mark after name": Message("unexpected `?` after a name", "the mark follows the type, as in `{name}: Long?`"),
    "= before type": Message("unexpected `=`; expected `:`", "a parameter is written `{token}: {type}`", "Write `:`", ":"),
    "no type": Message(
        "unexpected `{shown}`; expected `:`", "every parameter has a type, such as `{token}: Json`", "Insert `: Json`", ": Json"
    ),
    ": after kind": Message("unexpected `:`; expected a name", "write `{words} F(...) => (...) andThen {{ ... }}`"),
    "event without facet": Message("unexpected `{token}`; expected `facet`", "write `event facet`", "Insert `facet`", " facet"),
    "no parameters": Message(
        "expected `(`: the list of parameters is missing", "write `()` if there are none", "Insert `()`", "()"
    ),
    "-> before returns": Message("unexpected `->`; expected `=>`", "returns follow `=>`", "Write `=>`", "=>"),
    ": before returns": Message("unexpected `:`; expected `=>`", "returns are named: `=> (result: Long)`"),
    "unnamed return": Message("unexpected `{shown}`; expected `(`", "returns are named: `=> (result: Long)`"),
    "no andThen": Message("unexpected `{{`; expected `andThen`", "a block follows `andThen`", "Insert `andThen`", "andThen "),
    "= before block": Message("unexpected `=`; expected `andThen`", "a block follows `andThen`", "Write `andThen`", "andThen"),
    "sign after directive": Message("unexpected `{kind}`", 'write `{directive} "..."`', "Remove it"),
    "for": Message("unexpected `for`; expected `foreach`", None, "Write `foreach`", "foreach"),
    "construct": Message("unexpected `{token}`"),
    ": before block": Message("unexpected `:`; expected `{{`", "a block stands in braces: `andThen {{ ... }}`"),
    "script in step": Message(
        "unexpected `script` in the body of a step", "`andThen script` belongs to declarations; call a facet that has it"
    ),
    "catch variable": Message(
        "unexpected `(`; expected `{{`", "the error has no name: read `step.error`, or `$.error` in the `catch` of a declaration"
    ),
    "input as variable": Message("unexpected `{token}`; expected a name", "write `foreach x in {token}`"),
    "of": Message("unexpected `{token}`; expected `in`", None, "Write `in`", "in"),
    "foreach value": Message("unexpected `{shown}`; expected a reference such as `$.items`"),
    "foreach parentheses": Message("unexpected `(`; expected a name", "write `foreach x in $.items {{ ... }}`"),
    "foreach call": Message("unexpected call of `{token}`; expected a reference such as `$.items`"),
    "collectErrors": Message(
        "expected `(` after `collectErrors`", "name the return that takes the errors, as in `collectErrors(failed)`"
    ),
    "input as return": Message(
        "unexpected `{token}`; expected a name", "name the return, without `$.`", "Write `{name}`", "{name}"
    ),
    "failFast": Message("unexpected `(`; expected `{{`", "`failFast` takes nothing", "Remove `()`"),
    "two modes": Message("unexpected `{token}`", "a foreach has one error mode"),
    "default case": Message("unexpected `{token}`; expected `case`", "the default is written `case _ => {{ ... }}`"),
    "no arrow": Message("unexpected `{{`; expected `=>`", None, "Insert `=>`", "=> "),
    "other arrow": Message("unexpected `{shown}`; expected `=>`", None, "Write `=>`", "=>"),
    "case without braces": Message("unexpected `{first}`; expected `{{`", "each case has a block in braces"),
    "comma after statement": Message("unexpected `,` after a statement", "statements need no separator", "Remove it"),
    "yield without owner": Message(
        "unexpected `{token}`; expected {wanted}", "name the owner of the block and its returns: `yield {owner}({results})`"
    ),
    "call in expression": Message(
        "unexpected call of `{target}` inside an expression",
        "a call is a step of its own: `name = F(...)`; then use its results, `name.result`",
    ),
    "no andThen in step": Message(
        "unexpected `{{`; expected `andThen`", "the body of a step follows `andThen`", "Insert `andThen`", "andThen "
    ),
    "no comma in after": Message("a comma is missing here", "write `after {found}, {token}`", "Insert `,`", ","),
    "with after after": Message("unexpected `with` after `after`", "mixins stand before `after`"),
    "attribute in after": Message(
        "unexpected `{token}`; expected the name of a step", "write `after {name}`", "Write `{name}`", "{name}"
    ),
    "misplaced after": Message("unexpected `after`"),
    "= after yield": Message("unexpected `=` after `yield`", "write `yield F(...)`", "Remove `=`"),
    "keyword as step": Message("`{token}` is a keyword and cannot name a step", "choose another name"),
    "clause after value": Message(
        "unexpected `{token}` after a value", "`{name}` is computed immediately; `{token}` belongs to a step that calls a facet"
    ),
    "construct as call": Message("unexpected `{token}`; expected the call of a facet"),
    "second comparison": Message(
        "unexpected `{token}` after a comparison", "combine comparisons with `&&`, or put one into parentheses"
    ),
    "operator at start of line": Message(
        "a line cannot begin with the operator `{token}`", "end the previous line with `{token}` instead"
    ),
    "===": Message("unexpected `{operator}=`", "write `{operator}`", "Write `{operator}`", "{operator}"),
    "<>": Message("unexpected `<>`", "write `!=`", "Write `!=`", "!="),
    "{ as map": Message("unexpected `{{`; expected a value", "a map is written `#{{key: value}}`", "Write `#{{`", "#{{"),
    "no argument": Message("`{name}` needs an argument", "write `{form}`"),
    "named argument": Message("the arguments of `{name}` have no names", "write `{form}`", "Remove the name"),
    "= in map": Message("unexpected `=` in a map", "an entry is written `key: value`", "Write `:`", ":"),
    "name after dot": Message("expected a name after `.`"),
    "field by dot": Message("unexpected `.{name}`", "use an index after `]` or `)`: `{keys}`", "Write `{keys}`", "{keys}"),
    "?": Message("unexpected `?{joint}`"),
    "= in condition": Message("unexpected `=` in a condition", "comparison is written `==`", "Write `==`", "=="),
    "foreign word": Message("unexpected `{token}`", "write `{meant}`", "Write `{meant}`", "{meant}"),
    "method": Message("unexpected call of `.{name}`: values have no methods"),
    "formatted string": Message("unexpected `{shown}`", "join texts with `++`: {meant}"),
    "not": Message("unexpected `not` before a value", "write `!`", "Write `!`", "!"),
    "word in expression": Message("unexpected `{token}` in an expression"),
    "mark before type": Message("unexpected `?` before a type", "the mark follows the type, as in `Long?`"),
    "or null": Message("unexpected `or` in a type", "an optional type is written `{shown}?`", "Write `?`", "?"),
    "second mark": Message("unexpected second `?` after a type", None, "Remove it"),
    "foreign type": Message("unexpected type `{shown}`", "write `{meant}`", "Write `{meant}`", "{meant}"),
    "argument sign": Message("unexpected `{kind}`; expected `=`", "an argument is written `{token} = value`", "Write `=`", " ="),
    "unnamed argument": Message("an argument needs a name", "arguments are named: `{example}`"),
    "print": Message("unexpected `print`"),
    "construct in block": Message("unexpected `{text}`; expected a step, `yield` or `}}`"),
    "assignment operator": Message(
        "unexpected `{kind}=`; expected `=`", "a step is assigned once; give the new value another name"
    ),
    ":=": Message("unexpected `:=`; expected `=`", None, "Write `=`", "="),
    "step type": Message("unexpected `:`; expected `=`", "a step has no type; write `{token} = F(...)`", "Remove the type"),
    ": after step": Message("unexpected `:`; expected `=`", "a step is written `{token} = F(...)`"),
    "-> between steps": Message("unexpected `->` between steps", "a step runs after the steps that it reads", "Remove it"),
    "--": Message("`--` does not begin a comment", "AFL comments begin with `//`", "Write `//`", "//"),
    "return at end": Message(
        "unexpected `return`", "a block ends with its last step; it passes values to its owner with `yield`", "Remove it"
    ),
    "return of call": Message("unexpected `return`", "a block passes values to its owner with `yield`", "Write `yield`", "yield"),
    "unnamed call": Message("this call is not a step; expected `=` after the name of a step"),
    "type before name": Message(
        "unexpected `{token}`; expected `:`", "a parameter is written `{text}`", "Write `{text}`", "{text}"
    ),
    "no colon": Message("unexpected `{token}`; expected `:`", None, "Insert `:`", ":"),
    "unknown function": Message("unknown function `{name}`"),
    "yield of value": Message(
        "unexpected value; expected the owner of the block",
        "a block passes values to its owner with `yield`: `yield {owner}({name} = ...)`",
    ),
    "return of value": Message(
        "unexpected `return`", "a block passes values to its owner with `yield`: `yield {owner}({name} = ...)`"
    ),
}
"""Texts of the rule `syntax-error`: forms that cannot stand where they are, most of them from other languages."""
