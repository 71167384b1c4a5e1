// Derived from src/treadle/lang/tokens.py by `python -m build_tools.editors`; do not edit.
export const keywords = {
  "false": "constant",
  "null": "constant",
  "true": "constant",
  "collectErrors": "control",
  "failFast": "control",
  "andThen": "control",
  "foreach": "control",
  "prompt": "control",
  "script": "control",
  "catch": "control",
  "yield": "control",
  "case": "control",
  "when": "control",
  "namespace": "declaration",
  "implicit": "declaration",
  "workflow": "declaration",
  "schema": "declaration",
  "event": "declaration",
  "facet": "declaration",
  "uses": "declaration",
  "use": "declaration",
  "template": "directive",
  "system": "directive",
  "model": "directive",
  "after": "modifier",
  "with": "modifier",
  "as": "modifier",
  "startsWith": "operator",
  "contains": "operator",
  "endsWith": "operator",
  "not": "operator",
  "in": "operator",
  "sys.assert": "statement",
  "sys.log": "statement"
};
export const types = [
  "Boolean",
  "Double",
  "Int",
  "Json",
  "Long",
  "String"
];
export const called = [
  "andThen",
  "case",
  "catch",
  "collectErrors",
  "contains",
  "endsWith",
  "failFast",
  "foreach",
  "in",
  "not",
  "prompt",
  "script",
  "startsWith",
  "sys.assert",
  "sys.log",
  "when",
  "yield"
];
export const operators = [
  "++",
  "=>",
  "==",
  "!=",
  "<=",
  ">=",
  "&&",
  "||",
  "-",
  "+",
  "*",
  "/",
  "%",
  "<",
  ">",
  "!",
  "=",
  "?"
];
export const identifier = /^(?:[A-Za-z_][A-Za-z0-9_]*)/;
export const word = /^(?:[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)/;
export const input = /^(?:\$(?:\.[A-Za-z_][A-Za-z0-9_]*)*)/;
export const number = /^(?:[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+)/;
export const sign = /^(?:\+\+|=>|==|!=|<=|>=|&&|\|\||\#\{|\/(?!\*)|[-+*%<>!=?(){}\[\],:;])/;
export const naming = /^(?:[ \t]*(?:=(?![=>])|:|\())/;
export const namingOfCalled = /^(?:[ \t]*(?:=(?![=>])|:))/;
export const namingLikeType = /^(?:[ \t]*[:(])/;
