;;; afl-words.el --- Words of AFL  -*- lexical-binding: t; -*-
;; Derived from src/treadle/lang/tokens.py by `python -m build_tools.editors`; do not edit.

(defconst afl-words-constants '("false" "null" "true"))
(defconst afl-words-controls '("collectErrors" "failFast" "andThen" "foreach" "prompt" "script" "catch" "yield" "case" "when"))
(defconst afl-words-declarations '("namespace" "implicit" "workflow" "schema" "event" "facet" "uses" "use"))
(defconst afl-words-directives '("template" "system" "model"))
(defconst afl-words-modifiers '("after" "with" "as"))
(defconst afl-words-operators '("startsWith" "contains" "endsWith" "not" "in"))
(defconst afl-words-statements '("sys.assert" "sys.log"))
(defconst afl-words-types '("Boolean" "Double" "Int" "Json" "Long" "String"))
(defconst afl-words-called '("andThen" "case" "catch" "collectErrors" "contains" "endsWith" "failFast" "foreach" "in" "not" "prompt" "script" "startsWith" "sys.assert" "sys.log" "when" "yield"))

(provide 'afl-words)
;;; afl-words.el ends here
