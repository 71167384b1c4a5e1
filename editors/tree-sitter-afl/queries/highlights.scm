; Derived from src/treadle/lang/tokens.py by `python -m build_tools.editors`; do not edit.
(comment) @comment
(doc_comment) @comment.documentation
(string) @string
(integer) @number
(float) @number.float
(input) @variable.parameter
(code) @embedded

(namespace name: (_) @module)
(use name: (_) @module)
(facet name: (identifier) @function)
(schema name: (identifier) @type)
(parameter name: (identifier) @variable.parameter)
(field name: (identifier) @property)
(argument name: (identifier) @property)
(entry key: (identifier) @property)
(call target: (_) @function.call)
(mixin target: (_) @attribute)
(step name: (identifier) @variable)
(named_type (_) @type)
(function name: (identifier) @function.builtin)

["andThen" "case" "catch" "collectErrors" "failFast" "foreach" "prompt" "script" "when" "yield"] @keyword
["event" "facet" "implicit" "namespace" "schema" "use" "uses" "workflow"] @keyword.type
["model" "system" "template"] @keyword.directive
["after" "as" "with"] @keyword.modifier
["contains" "endsWith" "in" "not" "startsWith"] @keyword.operator
["sys.assert" "sys.log"] @function.builtin
[(boolean) (null)] @constant.builtin
((named_type (identifier) @type.builtin) (#any-of? @type.builtin "Boolean" "Double" "Int" "Json" "Long" "String"))
["(" ")" "[" "]" "{" "}" "#{"] @punctuation.bracket
["," ":" ";"] @punctuation.delimiter
["++" "=>" "==" "!=" "<=" ">=" "&&" "||" "-" "+" "*" "/" "%" "<" ">" "!" "=" "?"] @operator
