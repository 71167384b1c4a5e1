"""The query language over runs and tasks: `state = failed and tag.customer = acme and created > 2d ago`. Pure.

    query     := all ("or" all)*
    all       := one ("and" one)*
    one       := "not" one | "(" query ")" | condition
    condition := FIELD OP VALUE | FIELD ["not"] "in" "(" VALUE ("," VALUE)* ")" | FIELD "exists"
    OP        := "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"
    FIELD     := state | activity | name | kind | list | id | run | created | finished | error | tag.KEY | input.PATH | output.PATH
                 | tag (any tag; only with "=" and in)
    VALUE     := "text" | word | prefix* | 12.5 | true | false | null | 2026-11-01 | 2d ago

`parse` returns a tree of `Condition` and `QueryGroup`; `print_query` is its inverse. `kernel.search.match`
decides whether a record matches, `kernel.search.plan` which index finds candidates.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from treadle.model.clock import LATEST_AT, as_text
from treadle.model.errors import InvalidInput, InvalidQuery
from treadle.model.runs import ActivityKind
from treadle.model.states import FINAL_TASK_STATES, LIVE_TASK_STATES, TASK_ACTIVITIES, RunState, TaskState
from treadle.model.tags import check_tag_key, time_in

QUERY_LIMIT = 4000
"""Limit on the characters of a query."""
DEPTH_LIMIT = 50
RUN_STATES = tuple(state.value for state in RunState)
TASK_STATES = tuple(dict.fromkeys([*LIVE_TASK_STATES, TaskState.RUNNING, TaskState.PAUSED, *FINAL_TASK_STATES]))


# --- the tree ---


class Prefix(NamedTuple):
    """Any text that begins with this one: `import*`."""

    text: str


class Instant(NamedTuple):
    """An instant in milliseconds."""

    at: int


class Ago(NamedTuple):
    """The instant this many milliseconds before the search."""

    ms: int


Value = str | int | float | bool | None | Prefix | Instant | Ago


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a record: its root, and the path below `tag`, `input` or `output`."""

    root: str
    path: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """The field compares with the values: `in` with any of several, `exists` with none, every other operator with one.

    `~` means that the field contains all words of a text.
    """

    field: Field
    op: str
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """All parts match (`and`), any of them (`or`), or the only one does not (`not`)."""

    op: str
    parts: tuple[Query, ...]


Query = Condition | QueryGroup


def parts_of(query: Query) -> tuple[Query, ...]:
    """The conditions that must all match."""
    return query.parts if isinstance(query, QueryGroup) and query.op == "and" else (query,)


# --- fields ---

_ALIASES = {"workflow": "name", "function": "name", "handler": "name", "task_list": "list", "waiting": "activity", "run_id": "run"}
_TIMES = ("created", "finished")
_DEEP = ("tag", "input", "output")
_PLAIN = ("state", "activity", "name", "kind", "list", "id", "run", *_TIMES, "error")
FIELDS = (*_PLAIN, *(f"{root}.…" for root in _DEEP))
_EXACT = ("state", "activity", "kind", "list", "id", "run")
_KNOWN = {
    ("state", True): TASK_STATES,
    ("state", False): RUN_STATES,
    ("activity", True): TASK_ACTIVITIES,
    ("activity", False): tuple(activity.value for activity in ActivityKind),
    ("kind", False): ("workflow", "function"),
}
"""The values of a field, of tasks (True) or runs."""
_ORDERED = ("<", "<=", ">", ">=")
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<op><=|>=|!=|<>|==|[=<>~])
    |(?P<mark>[(),])
    |(?P<word>[^\s"'()=<>!~,]+)""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_SPAN = re.compile(r"(\d+)([smhdw])")
_DAY = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
_PART = re.compile(r"[^.\[\]\"]+|\"(?:[^\"\\]|\\.)*\"")
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_./@:-]*")
_SIMPLE_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_KEYWORDS = ("and", "or", "not", "in", "exists", "true", "false", "null", "ago", "now")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str, *, tasks: bool = False) -> Query:
    """Return the tree of a query over runs, or over `tasks`; raise `InvalidQuery`."""
    if len(text) > QUERY_LIMIT:
        raise InvalidQuery(text[:QUERY_LIMIT], 0, f"it is longer than {QUERY_LIMIT} characters.")
    return _Parser(text, tasks).parse()


_WORDS = ("like", "ilike", "is", "contains", "matches")
"""Operators of other languages."""


class _Parser:
    """Recursive descent over the tokens of one query."""

    def __init__(self, text: str, tasks: bool) -> None:
        self._text, self._tasks, self._next, self._depth = text, tasks, 0, 0
        self._tokens = list(self._scan())

    def _scan(self) -> list[_Token]:
        tokens, at = [], 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                quoted = self._text[at] in "\"'"
                sign = self._text[at]
                word = {"&": "; write and", "|": "; write or"}.get(sign, "")
                wrong = "this quote is not closed." if quoted else f"{sign!r} is not part of the language{word}."
                raise self._error(wrong, at)
            kind = match.lastgroup or ""
            word = match[0]
            at = match.end()
            if kind == "word":  # a quoted part of a path: tag."my key"
                while word.endswith((".", "[")) and (more := _TOKEN.match(self._text, at)) and more.lastgroup in ("text", "word"):
                    word, at = word + more[0], more.end()
                    if (rest := _TOKEN.match(self._text, at)) and rest.lastgroup == "word" and rest[0][0] in ".[":
                        word, at = word + rest[0], rest.end()
            if kind != "space":
                tokens.append(_Token(kind, word, match.start()))
        return [*tokens, _Token("end", "", len(self._text))]

    def _error(self, problem: str, at: int | None = None) -> InvalidQuery:
        return InvalidQuery(self._text, self._peek().at if at is None else at, problem)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _keyword(self, *words: str) -> bool:
        token = self._peek()
        if token.kind == "word" and token.text.lower() in words:
            self._next += 1
            return True
        return False

    def parse(self) -> Query:
        if self._peek().kind == "end":
            raise self._error("it is empty; write a condition like state = failed.")
        query = self._group()
        token = self._peek()
        if token.kind != "end":
            raise self._error(f"expected and, or, or the end of the query, not {token.text!r}; put text with spaces in quotes.")
        return query

    def _group(self, op: str = "or") -> Query:
        """A sequence of parts with that operator between them; `or` binds less than `and`."""
        parts = [self._group("and") if op == "or" else self._one()]
        while self._keyword(op):
            parts.append(self._group("and") if op == "or" else self._one())
        return parts[0] if len(parts) == 1 else QueryGroup(op, tuple(parts))

    def _one(self) -> Query:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise self._error(f"it is nested more than {DEPTH_LIMIT} deep.")
        try:
            if self._keyword("not"):
                return QueryGroup("not", (self._one(),))
            if self._peek().text == "(" and self._peek().kind == "mark":
                self._take()
                query = self._group()
                if self._peek().text != ")":
                    raise self._error("a closing parenthesis is missing.")
                self._take()
                return query
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Query:
        token = self._take()
        if token.kind != "word":
            raise self._error(f"a field was expected: one of {', '.join(FIELDS)}.", token.at)
        field = self._field(token)
        if self._keyword("exists"):
            return Condition(field, "exists")
        if self._keyword("not"):
            if not self._keyword("in"):
                raise self._error("in was expected after not: state not in (failed, canceled).")
            return QueryGroup("not", (self._in(field),))
        if self._keyword("in"):
            return self._in(field)
        op = self._peek()
        if op.kind != "op":
            example = f"{token.text} = ..." if op.kind == "end" or op.text.lower() in _WORDS else f"{token.text} = {op.text}"
            raise self._error(
                f"an operator was expected after {token.text}: {example}; there are =, !=, <, <=, >, >=, ~, in, exists."
            )
        self._take()
        sign = {"==": "=", "<>": "!="}.get(op.text, op.text)
        at = self._peek().at
        value = self._value(field)
        self._check(field, sign, value, op.at, at)
        return Condition(field, sign, (value,))

    def _in(self, field: Field) -> Query:
        if self._take().text != "(":
            raise self._error(f"a list was expected: {field.root} in (a, b).", self._tokens[self._next - 1].at)
        values: list[Value] = []
        while True:
            at = self._peek().at
            values.append(self._value(field))
            self._check(field, "=", values[-1], at, at)
            mark = self._take()
            if mark.text == ")":
                return Condition(field, "in", tuple(values))
            if mark.text != ",":
                raise self._error("a comma or a closing parenthesis was expected.", mark.at)

    def _field(self, token: _Token) -> Field:
        root, _, rest = token.text.partition(".")
        low = root.lower()
        low = _ALIASES.get(low, low)
        if low in _DEEP and rest:
            return Field(low, self._path(low, rest, token))
        if low == "tag" and token.text == root and self._peek().text.lower() in ("=", "==", "in"):
            return Field(low)
        if low in _PLAIN and not rest:
            if low == "run" and not self._tasks:
                raise self._error("a run has no field run; use id.", token.at)
            return Field(low)
        if low in _DEEP:
            raise self._error(f"{low} needs a name: {low}.{'customer' if low == 'tag' else 'order.id'} = ...", token.at)
        if low in ("and", "or"):
            raise self._error(f"a condition is missing before {root!r}.", token.at)
        near = difflib.get_close_matches(low, [*_PLAIN, *_DEEP, *_ALIASES], 1)
        hint = f"; did you mean {near[0]}?" if near else f"; a tag is written tag.{root}." if rest == "" else "."
        raise self._error(f"{root!r} is not a field{hint} Fields are {', '.join(FIELDS)}.", token.at)

    def _path(self, root: str, rest: str, token: _Token) -> tuple[str | int, ...]:
        if root == "tag":
            key = _unquoted(rest) if rest.startswith('"') else rest
            try:
                return (check_tag_key(key),)
            except InvalidInput as error:
                raise self._error(str(error), token.at) from None
        parts: list[str | int] = []
        at = 0
        while at < len(rest):
            if rest[at] == "[":
                index = re.compile(r"\[(\d{1,9})\]").match(rest, at)
                if index is None:
                    raise self._error(f"an index was expected in {token.text}: {root}.orders[0].id.", token.at)
                parts.append(int(index[1]))
                at = index.end()
            else:
                match = _PART.match(rest, at)
                if match is None:
                    raise self._error(f"the path {token.text} has an empty part.", token.at)
                parts.append(_unquoted(match[0]) if match[0].startswith('"') else match[0])
                at = match.end()
            if at < len(rest) and rest[at] == ".":
                at += 1
                if at == len(rest):
                    raise self._error(f"the path {token.text} ends with a dot.", token.at)
        return tuple(parts)

    def _value(self, field: Field) -> Value:
        token = self._take()
        if token.kind == "text":
            return self._instant(field, _unquoted(token.text), token)
        if token.kind != "word":
            raise self._error("a value was expected; put text with spaces or signs in quotes.", token.at)
        text, low = token.text, token.text.lower()
        if (span := _SPAN.fullmatch(low)) and self._keyword("ago"):
            return Ago(min(int(span[1]) * _UNITS[span[2]], LATEST_AT))
        if low == "now" and field.root in _TIMES:
            return Ago(0)
        if low in ("true", "false"):
            return low == "true"
        if low == "null":
            return None
        if _NUMBER.fullmatch(text) and field.root in _DEEP:
            number = float(text)
            if not math.isfinite(number):
                raise self._error(f"{text} is too large.", token.at)
            return int(text) if re.fullmatch(r"-?\d+", text) else number
        if text.endswith("*") and "*" not in text[:-1]:
            return Prefix(text[:-1])
        return self._instant(field, text, token)

    def _instant(self, field: Field, text: str, token: _Token) -> Value:
        """Return the text, or the instant that it is."""
        if _DAY.fullmatch(text) and (field.root in _TIMES or (field.root == "tag" and token.kind == "word")):
            try:
                at = round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
            except ValueError:
                at = -1
            if not 0 <= at < LATEST_AT:
                raise self._error(f"{text} is not a time; write 2026-11-01 or 2026-11-01T09:00Z (without a zone: UTC).", token.at)
            return Instant(at)
        if field.root in (*_TIMES, "tag") and (time := time_in(text)) is not None:
            return Instant(time)
        return text

    def _check(self, field: Field, op: str, value: Value, op_at: int, at: int) -> None:
        """Raise the error of a comparison that can match nothing."""
        root = field.root
        is_time = isinstance(value, Instant | Ago)
        ordered = op in _ORDERED
        words_of = isinstance(value, str) and words(value)
        if root in _TIMES:
            problems: tuple[tuple[bool, str, int], ...] = (
                (not is_time, f"{root} compares with a time: {root} > 2d ago, {root} >= 2026-11-01.", at),
                (not ordered, f"{root} compares with <, <=, > or >=: {root} >= 2026-11-01 and {root} < 2026-11-02.", op_at),
            )
        else:
            problems = (
                (isinstance(value, Ago) and root != "tag", f"a relative time is for created, finished and tags, not {root}.", at),
                (op == "~" and not words_of, '~ takes a text with words to find: error ~ "timeout".', at),
                (op == "~" and root in _EXACT, f"{root} compares with = or in; ~ is for error, name, tags and values.", op_at),
                (root == "error" and op != "~", 'error compares with ~ (it contains all these words): error ~ "timeout".', op_at),
                (
                    ordered and (root in _PLAIN or value is None or isinstance(value, bool | Prefix)),
                    f"{root} does not compare with {op}; use = or !=.",
                    op_at,
                ),
                (root in _PLAIN and not isinstance(value, str | Prefix), f"{root} compares with text.", at),
            )
        for wrong, problem, place in problems:
            if wrong:
                raise self._error(problem, place)
        choices = _KNOWN.get((root, self._tasks), ())
        if choices and isinstance(value, str) and value not in choices:
            near = difflib.get_close_matches(value.lower(), choices, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            if root == "state" and value in _KNOWN["activity", self._tasks]:
                hint = f" Use activity = {value}."
            raise self._error(f"{root} is never {value!r}; it is one of {', '.join(choices)}.{hint}", at)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


# --- words ---

_WORD = re.compile("[0-9A-Za-z\u0080-\U0010ffff]+\\*?")
WORD_LIMIT = 64
ERROR_LIMIT = 2000
"""Only the beginning of an error text is searched, up to this many characters."""
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def words(text: str) -> list[str]:
    """The words of a text: runs of ASCII letters, digits and non-ASCII characters, in ASCII lower case, cut to 64 characters.

    In a query, a word may end in `*`: any word with that beginning.
    """
    return [
        word[:-1].translate(_LOWER)[:WORD_LIMIT] + "*" if word.endswith("*") else word.translate(_LOWER)[:WORD_LIMIT]
        for word in _WORD.findall(text)
    ]


# --- print ---


def print_query(query: Query) -> str:
    """Return the query as text; `parse` returns the same tree."""
    match query:
        case Condition(field, op, values):
            listed = ", ".join(map(_shown, values))
            return f"{_shown_field(field)} {op} {f'({listed})' if op == 'in' else listed}".rstrip()
        case QueryGroup("not", (Condition(field, "in", values),)):
            return f"{_shown_field(field)} not in ({', '.join(map(_shown, values))})"
        case QueryGroup("not", (part,)):
            return f"not {_grouped(part)}"
        case QueryGroup("or", parts):
            return " or ".join(_grouped(part, "or") for part in parts)
        case QueryGroup(_, parts):
            return " and ".join(map(_grouped, parts))


def _grouped(query: Query, *ops: str) -> str:
    """Return the text of a part, in parentheses if it is a group with one of these operators (none: any)."""
    return f"({print_query(query)})" if isinstance(query, QueryGroup) and query.op in (ops or ("and", "or")) else print_query(query)


def _shown_field(field: Field) -> str:
    text = field.root
    for part in field.path:
        if isinstance(part, int):
            text += f".[{part}]" if text == field.root else f"[{part}]"
        elif field.root == "tag" or _SIMPLE_PART.fullmatch(part):
            text += f".{part}"
        else:
            text += f".{_quoted(part)}"
    return text


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shown(value: Value) -> str:
    match value:
        case None | bool():
            return json.dumps(value)
        case Prefix(text):
            return f"{text}*"
        case Instant(at):
            return f'"{as_text(at)}"'
        case Ago(ms):
            return "now" if ms == 0 else f"{ms // 1000}s ago"
        case str():
            return value if _SIMPLE.fullmatch(value) and value.lower() not in _KEYWORDS else _quoted(value)
        case _:
            return json.dumps(value)
