// Derived from src/treadle/lang/tokens.py by `python -m build_tools.editors`; do not edit.
exports.notSteps = ["event", "facet", "false", "implicit", "namespace", "null", "prompt", "schema", "script", "true", "use", "uses", "workflow"];
exports.functions = ["count", "first", "flatten", "join", "sum"];
exports.stringPattern = /"[^"\\]*(?:\\(?:.|\n)[^"\\]*)*"/;
exports.floatPattern = /[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?/;
exports.integerPattern = /[0-9]+/;
exports.inputPattern = /\$\.[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*/;
exports.commentPattern = /\/\/[^\n]*|\/\*[^*]*\*+(?:[^\/*][^*]*\*+)*\//;
exports.docPattern = /\/\*\*+[^\/*][^*]*\*+(?:[^\/*][^*]*\*+)*\//;
exports.identifierPattern = /[A-Za-z_][A-Za-z0-9_]*/;
exports.dottedPattern = /[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+/;
