"""Forms of other languages that people and models write in AFL, with the correct form: data, and the code of their fixes."""

from __future__ import annotations

import re
from collections.abc import Container

from treadle.lang.literals import encode

_WHEN = "AFL has no `{}`; choose between blocks with `andThen when {{ case condition => {{ ... }} case _ => {{ ... }} }}`"
_LOOP = "a loop is the block of a declaration or step: `andThen foreach x in $.items { ... }`"

WITHOUT_NULL = "tell null from other values in a `when`: `case {0} == null => {{ ... }} case _ => {{ ... }}`"

# Words that cannot begin a statement or a value, with a hint.
WORDS = {word: _WHEN.format(word) for word in ("if", "else", "elif", "unless", "switch", "match")} | {
    "foreach": _LOOP,
    "for": _LOOP,
    "while": "AFL has no `while`; iterate with `andThen foreach x in $.items { ... }`, or call the workflow from itself",
    "try": "put `catch { ... }` behind the step that may fail: `s = F(...) catch { ... }`",
    "throw": "fail with `sys.assert(condition)`, or in the handler of an event facet",
    "raise": "fail with `sys.assert(condition)`, or in the handler of an event facet",
    "print": "log values with `sys.log(name = value)`",
    "lambda": "AFL has no functions as values; compute in `script { ... }` or in a facet",
    "new": "a record is a step: `line = Line(sku = ...)`",
    "await": "every step waits for the steps that it reads; leave `await` out",
    "when": "a `when` is the block of a declaration or step: `andThen when { case condition => { ... } case _ => { ... } }`",
    "parallel": "steps run concurrently unless one reads the other; leave `parallel` out",
}
# Words that begin a construct of another language whatever follows them.
CONSTRUCTS = frozenset(["if", "for", "while", "switch", "match"])
# Words at the start of a statement that can be left out.
NOISE = frozenset(["let", "var", "val", "const", "await", "async"])
# Words before a declaration that can be left out.
MODIFIERS = frozenset(["async", "export", "public", "private", "static", "final", "abstract", "default"])
# Words at the start of a declaration, with the word to write instead.
DECLARATIONS = {
    "def": "facet", "fn": "facet", "func": "facet", "fun": "facet", "function": "facet", "class": "schema", "struct": "schema",
    "record": "schema", "interface": "schema", "type": "schema", "data": "schema",
    "package": "namespace", "module": "namespace", "flow": "workflow", "pipeline": "workflow",
}  # fmt: skip
IMPORTS = frozenset(["import", "from", "include", "require", "using"])
BLOCKS = {"then": "andThen", "and_then": "andThen", "do": "andThen", "except": "catch", "rescue": "catch"}
OPERATORS = {"and": "&&", "or": "||", "AND": "&&", "OR": "||", "is": "==", "eq": "==", "mod": "%"}
NULLS = dict.fromkeys(["None", "nil", "undefined", "NULL", "Null"], "null")  # names of null in other languages
FORMATTED = frozenset("fFrRbB")
# Words that stand for a value, with the value; the empty ones have an entry in `WORDS`.
VALUES = (
    NULLS
    | {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false", "not": "!"}
    | dict.fromkeys(["if", "lambda", "new", "await"], "")
    | dict.fromkeys(FORMATTED, "")
)
# Names of types in other languages, in lower case.
SYNONYMS = (
    dict.fromkeys(["float", "number", "decimal", "real", "numeric", "f64", "float64"], "Double")
    | dict.fromkeys(["integer", "i64", "int64", "bigint", "uint"], "Long")
    | dict.fromkeys(["str", "text", "char", "varchar", "date", "datetime", "timestamp", "uuid", "url", "path"], "String")
    | dict.fromkeys(["bool", "flag"], "Boolean")
    | dict.fromkeys(["any", "object", "map", "dict", "dictionary", "list", "array", "record", "struct", "hash"], "Json")
)
_LISTS = frozenset(["list", "array", "seq", "sequence", "set", "vector", "iterable", "tuple"])
_REFERENCE = re.compile(r"(?:\$\.)?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_PLACEHOLDER = re.compile(r"\$?\{([^{}]*)\}")


def generic(name: str, parts: list[str]) -> str:
    """Return the AFL type for a generic type of another language."""
    if name.lower() in _LISTS and len(parts) == 1:
        return f"[{parts[0]}]"
    if name == "Union":
        real = [part for part in parts if part not in NULLS and part != "null"]
        return f"{real[0]}?" if len(real) == 1 and len(parts) > 1 else "Json"
    return f"{parts[0]}?" if name.lower() in ("optional", "option", "maybe", "nullable") and len(parts) == 1 else "Json"


def formatted(text: str, inputs: Container[str], bound: Container[str]) -> tuple[str, bool]:
    """Return the concatenation that a format string means, and whether all of its placeholders are known references."""
    resolved, pieces = True, []
    for number, part in enumerate(_PLACEHOLDER.split(text)):
        part = part.strip() if number % 2 else encode(part)
        if number % 2:
            first = part.removeprefix("$.").partition(".")[0]
            part = f"$.{part}" if first in inputs and first not in bound and not part.startswith("$.") else part
            resolved = resolved and bool(_REFERENCE.fullmatch(part)) and (first in bound or first in inputs)
        pieces.append(part)
    return " ++ ".join(piece for piece in pieces if piece not in ('""', "")) or '""', resolved
