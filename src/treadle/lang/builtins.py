"""Functions of expressions and mixins that the engine itself implements, as data; neither needs a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Builtin(NamedTuple):
    """`form` is a call as an example, `result` the type of the value."""

    form: str
    arity: int
    result: str
    doc: str


FUNCTIONS: Mapping[str, Builtin] = {
    "count": Builtin("count($.items)", 1, "Long", "The number of elements of a list."),
    "sum": Builtin("sum($.prices)", 1, "Long or Double", "The sum of a list of numbers; 0 if it is empty."),
    "first": Builtin("first($.items)", 1, "T?", "The first element of a list; null if it is empty."),
    "join": Builtin('join($.names, ", ")', 2, "String", "The elements of a list as text, with a separator between them."),
    "flatten": Builtin("flatten($.lists)", 1, "[T]", "The elements of the lists in a list, one level deep."),
}
"""A null list counts as empty."""

_MEANT = (
    dict.fromkeys(["len", "length", "size", "cardinality", "num", "counter"], "count")
    | dict.fromkeys(["total", "add", "summed", "reduce"], "sum")
    | dict.fromkeys(["head", "firstOrNull", "firstOrDefault", "at"], "first")
    | dict.fromkeys(["implode", "concat", "mkString", "joinToString"], "join")
    | dict.fromkeys(["flat", "flatMap", "flatmap", "chain"], "flatten")
)
_OTHERS = frozenset(
    ["max", "min", "avg", "average", "mean", "last", "map", "filter", "sort", "sorted", "reverse", "range", "abs", "round", "str",
     "int", "float", "toString", "upper", "lower", "split", "trim", "strip", "replace", "substring", "keys", "values", "zip",
     "any", "all", "distinct", "unique", "take", "slice", "append", "push", "get", "contains", "isEmpty", "empty", "coalesce"]
)  # fmt: skip
WORDS = frozenset([*FUNCTIONS, *_MEANT, *_OTHERS])
"""Names that are functions here or in other languages."""


def meant(name: str) -> str | None:
    """Return the function that a name of another language or a typo stands for."""
    from treadle.lang.diagnostics import nearest  # the evaluator reads this module without the compiler

    return _MEANT.get(name.lower()) or _MEANT.get(name) or (nearest(name.lower(), list(FUNCTIONS)) if name not in _OTHERS else None)


def hint(name: str) -> str:
    """Return the advice for a function that does not exist."""
    function = name if name in FUNCTIONS else meant(name)
    if function is not None:
        return f"did you mean `{FUNCTIONS[function].form}`?"
    return f"the functions are {', '.join(FUNCTIONS)}; compute others in a `script`, or in a facet that is a step of its own"


# --- mixins ----------------------------------------------------------------------------------------------------------

TIMEOUT_UNITS: Mapping[str, int] = {
    "days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "milliseconds": 1, "ms": 1,
}  # fmt: skip
"""The arguments of `Timeout`, each in milliseconds; they add up."""
MAX_TIMEOUT = 366 * 86_400_000

RETRY_RANGES: Mapping[str, tuple[float, float]] = {
    "maxAttempts": (1, 1_000_000), "delay": (0, MAX_TIMEOUT / 1000), "backoff": (1, 100),
    "maxDelay": (0, MAX_TIMEOUT / 1000), "jitter": (0, 1),
}  # fmt: skip
"""The arguments of `Retry` with their least and greatest values; delays are seconds."""

BUILTIN_MIXINS: Mapping[str, Mapping[str, object]] = {"Timeout": TIMEOUT_UNITS, "Retry": RETRY_RANGES}
"""Arguments by mixin."""
MIXIN_EXAMPLES = {"Timeout": "Timeout(minutes = 5)", "Retry": "Retry(maxAttempts = 3)"}
