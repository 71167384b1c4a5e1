// The grammar of AFL for tree-sitter. Words and patterns come from tokens.js, which is derived.
//
// Line breaks matter in a few places. Tokens without text that src/scanner.c makes check them: `_joined` (no line break before the
// next token), `_joined_equals` (the same before `=`), `_operand_end` (no line break before an operator), `_line_end` (after a
// namespace without braces) and `_field_break` (a line break that separates fields). `_never` is never made: what leads to it is an error.
const words = require("./tokens.js");

const commas = (rule) => seq(rule, repeat(seq(",", rule)), optional(","));
const listed = (rule) => seq("(", optional(commas(rule)), ")");

/** The levels of expressions: within `[ ]` and `#{ }` a line may begin with an operator, elsewhere it may not. */
function expressions(prefix, end) {
  const level = (name) => ($) => $[prefix + name];
  const rules = {};
  const chain = (name, tighter, ...operators) => {
    rules[prefix + name] = ($) =>
      choice(level(tighter)($), seq(level(name)($), choice(...operators), level(tighter)($)));
  };
  chain("expression", "conjunction", "||");
  chain("conjunction", "comparison", "&&");
  rules[prefix + "comparison"] = ($) =>
    choice(
      level("text")($),
      seq(
        level("text")($),
        choice("==", "!=", "<", ">", "<=", ">=", "in", seq("not", "in"), "contains", "startsWith", "endsWith"),
        level("text")($),
      ),
    );
  chain("text", "sum", "++");
  chain("sum", "product", "+", "-");
  chain("product", "unary", "*", "/", "%");
  rules[prefix + "unary"] = ($) => choice(level("operand")($), seq(choice("+", "-", "!"), level("unary")($)));
  rules[prefix + "operand"] = ($) => (end ? seq($._postfix, $._operand_end) : $._postfix);
  return rules;
}

module.exports = grammar({
  name: "afl",
  word: ($) => $.identifier,
  extras: ($) => [/[ \t\r\n\f\uFEFF]/, $.comment, $.doc_comment],
  externals: ($) => [$.code, $._joined, $._joined_equals, $._operand_end, $._line_end, $._field_break, $._never],
  supertypes: ($) => [],
  rules: {
    source_file: ($) => repeat(choice($.namespace, $.use, $.facet, $.implicit, $.schema, ";")),

    namespace: ($) =>
      seq(
        "namespace",
        $._joined,
        field("name", $._qualified),
        choice(seq("{", repeat(choice($.use, $.facet, $.implicit, $.schema, ";")), "}"), $._line_end),
      ),
    use: ($) => seq(choice("use", "uses"), $._joined, field("name", $._qualified)),
    implicit: ($) => seq("implicit", $._joined, field("name", $.identifier), $._joined_equals, "=", $.call),
    schema: ($) =>
      seq(
        "schema",
        $._joined,
        field("name", $.identifier),
        "{",
        optional(seq($.field, repeat(seq(choice(",", $._field_break), $.field)), optional(","))),
        "}",
      ),
    field: ($) => seq(field("name", $.identifier), $._joined, ":", $._joined, field("type", $._type)),

    facet: ($) =>
      seq(
        field("kind", choice("facet", seq("event", $._joined, "facet"), "workflow")),
        $._joined,
        field("name", $.identifier),
        $._joined,
        $.parameters,
        optional(seq("=>", alias($.parameters, $.returns))),
        repeat($.mixin),
        optional(choice($.prompt, seq($.script, repeat($.then)), repeat1($.then))),
        optional($.catch),
      ),
    parameters: ($) => listed($.parameter),
    parameter: ($) =>
      seq(
        field("name", $.identifier),
        $._joined,
        ":",
        $._joined,
        field("type", $._type),
        optional(seq($._joined_equals, "=", field("default", $._expression))),
      ),
    _type: ($) => choice($.list_type, $.named_type, $.optional_type),
    optional_type: ($) => seq(choice($.list_type, $.named_type), "?"),
    list_type: ($) => seq("[", $._type, "]"),
    named_type: ($) => $._qualified,

    prompt: ($) => seq("prompt", "{", repeat($.directive), "}"),
    directive: ($) => seq(choice("system", "template", "model"), $.string),
    script: ($) => seq("script", optional(field("language", $.identifier)), choice($.string, $.code)),
    then: ($) => seq("andThen", choice($._blocks, $.script)),
    body: ($) => seq("andThen", $._blocks),
    catch: ($) => seq("catch", choice($.block, $.when)),
    _blocks: ($) => choice($.block, $.when, seq($.foreach, $.block)),
    foreach: ($) => seq("foreach", $._joined, field("variable", $.identifier), "in", choice($.input, $._qualified), optional($.error_mode)),
    error_mode: ($) => choice("failFast", seq("collectErrors", "(", field("failed", $.identifier), ")")),
    when: ($) => seq("when", "{", repeat(choice($.case, ";")), "}"),
    case: ($) => seq("case", $._expression, "=>", $.block),

    block: ($) => seq("{", repeat(choice($._statement, ";")), "}"),
    _statement: ($) => choice($.step, $.yield, $.log, $.assert, seq(choice(...words.notSteps), $._never)),
    step: ($) =>
      seq(
        field("name", $.identifier),
        $._joined_equals,
        "=",
        choice(seq($.call, optional($.after), optional($.body), optional($.catch)), field("value", $._expression)),
      ),
    after: ($) => seq("after", $._joined, $.identifier, repeat(seq(",", $.identifier))),
    yield: ($) => seq("yield", $._joined, $.call),
    log: ($) => seq("sys.log", $._joined, $.arguments, optional($.after)),
    assert: ($) => seq("sys.assert", $._joined, "(", $._expression, ")", optional($.after)),

    call: ($) => seq(field("target", choice($._qualified, $._function_name)), $._joined, $.arguments, repeat($.mixin)),
    mixin: ($) =>
      seq(
        "with",
        $._joined,
        field("target", $._qualified),
        $._joined,
        $.arguments,
        optional(seq("as", $._joined, field("alias", $.identifier))),
      ),
    arguments: ($) => listed($.argument),
    argument: ($) => seq(field("name", choice($.identifier, $._function_name)), $._joined_equals, "=", field("value", $._expression)),

    ...expressions("_", true),
    ...expressions("_free_", false),
    _postfix: ($) => choice($._atom, $.index),
    index: ($) => seq($._postfix, "[", $._free_expression, "]"),
    _atom: ($) =>
      choice(
        $.string,
        $.float,
        $.integer,
        $.boolean,
        $.null,
        $.input,
        $._qualified,
        $._function_name,
        $.function,
        $.array,
        $.map,
        $.group,
      ),
    function: ($) => seq(field("name", $._function_name), $._joined, "(", commas($._expression), ")"),
    _function_name: ($) => alias(choice(...words.functions), $.identifier),
    group: ($) => seq("(", $._expression, ")"),
    array: ($) => seq("[", optional(commas($._free_expression)), "]"),
    map: ($) => seq("#{", optional(commas($.entry)), "}"),
    entry: ($) => seq(field("key", choice($.string, $.identifier)), ":", field("value", $._free_expression)),
    boolean: ($) => choice("true", "false"),
    null: ($) => "null",

    _qualified: ($) => choice($.identifier, $.dotted),
    identifier: ($) => words.identifierPattern,
    dotted: ($) => token(words.dottedPattern),
    input: ($) => token(words.inputPattern),
    string: ($) => token(words.stringPattern),
    float: ($) => token(words.floatPattern),
    integer: ($) => token(words.integerPattern),
    comment: ($) => token(words.commentPattern),
    doc_comment: ($) => token(prec(1, words.docPattern)),
  },
});
