"""How Hypothesis makes inputs: by the grammar of what a target takes, of words that matter to it, and of its corpus, changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from tests.fuzz.harness import LARGEST, corpus_of
from tests.lang.printer import print_file
from tests.properties.test_lang_text import PIECES, exchanges, mutations
from tests.properties.test_lang_trees import expressions, files
from tests.properties.test_schedule_plans import LINES, ZONES

import treadle.settings
from treadle.lang import compile_sources
from treadle.lang.emit import print_expr

SETTINGS = Path(treadle.settings.__file__)
_JSON_WORDS = ["null", "true", "1e308", "-0.0", "9" * 30, '"\\u0000"', '"\\ud800"', "{}", "[]", "[" * 50, '{"a":' * 50]
_DEEP = ["(" * 300, "[" * 300, "!" * 3000, "-" * 3000, "{" * 300, "1+" * 3000, "a[" * 500]


def _words(text: str) -> list[str]:
    return text.split(" ")


def _quoted(words: str) -> list[str]:
    return [f'"{word}"' for word in _words(words)]


_TIMES = [*_words("2027-01-15T09:00 0001-01-01T00:00+23:59 9999-12-31T23:59:59-23:59 24:00 1d 1e3 -1 0 NaN"), "9" * 400]

_VARIABLES = sorted(set(re.findall(r'"((?:TREADLE|AFL|ANTHROPIC|OTEL)_[A-Z_]+)"', SETTINGS.read_text("utf-8"))))

WORDS: dict[str, list[str]] = {
    "afl": [*PIECES, *_DEEP],
    "expression": [*"+-*/%<>![](){},:.=", *_words("++ #{ && || == $.n $.l $.m.a.b in contains"), "not in", *_DEEP],
    "program": [*_JSON_WORDS, *_quoted("type Program id declarations BinaryExpr args name value")],
    "cron": [*"*/,-L#?\n ", *_words("@daily @reboot MON JAN 7 59 60 31 0-59/7 5#5 5L LW"), "29 2", *ZONES],
    "schedule": [*_JSON_WORDS, *_TIMES, *_quoted("cron every at zone start end catch_up window all jitter")],
    "duration": [*_TIMES, *_words("ms s m h d . Europe/Berlin ٣"), "\n"],
    "store_url": [*":/?#@%[]&=\n", *_words("postgresql:// postgres: sqlite:/// memory:// direct_url= schema= %2F [::1]")],
    "topology": [
        *"{}[]&*!|>?-:#%@`'\",\n",
        *_words("types: TICKET: handler: gates: pattern: deadlines: !!binary !!timestamp <<: 2026-99-99 .nan 1_000:59"),
        *("use: regex", "a{99999999999999}", "(?:" * 200),
    ],
    "setting": [*_VARIABLES, *_TIMES, *_JSON_WORDS, *":[]/,@\n", "http://", "[::1]:9464", "9" * 5000, "inf"],
    "glob": [*"*?[]!-^/.\\", "**", "[!a-z]", "[--]", "[]]", "*a" * 40, "**/" * 4],
    "requirement": _words("requests >= == ~= != === 2.31 .* [ ] , ; extra python_version ' @ ( and os_name"),
    "payload": [*_JSON_WORDS, *_quoted("@blob @value size @refs: @code:"), "a" * 9000],
    "plan": [
        *_JSON_WORDS,
        *_quoted("name handler arguments $from $value inputs retry approval task_list a.0 inputs.a.1.b"),
        "9" * 5000,
    ],
    "encoded": _words("@code: @refs: zlib : = z c%1E4 \x00"),
    "signature": ["t=", "v1=", ",", "1800000000", "9" * 400, "=", " ", "\n"],
    "github": [*_JSON_WORDS, *_quoted("action opened labeled issue repository label id name agent"), "ping"],
    "callback": [*_JSON_WORDS, *_quoted("result failure_detail error_code progress_hint progress polling_interval_seconds")],
    "request": [
        *_JSON_WORDS,
        *_words("{task} {run} {objective} {job} ?limit= ?before= &after= %00 %ED%A0%80"),
        *("Last-Event-ID: 0", "Idempotency-Key: k", "Content-Type: application/json", "Content-Length: 99999999999"),
    ],
}
"""Inputs that random generation would hardly find."""

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["0", "opened", "agent", "1h", "TICKET", "@blob"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.sampled_from(["@blob", "@value"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def _json(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return strategy.map(lambda value: json.dumps(value).encode())


def _text(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return strategy.map(lambda text: text.encode("utf-8", "surrogatepass"))


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any of the fields, most of them right, some of them anything."""
    return st.fixed_dictionaries({}, optional={name: st.one_of(right, right, right, values) for name, right in fields.items()})


_number = st.integers(0, 70).map(str)
_piece = st.one_of(
    st.just("*"),
    _number,
    st.builds("{}-{}".format, _number, _number),
    st.builds("{}/{}".format, st.just("*") | _number, _number),
    st.sampled_from(["MON", "SUN", "JAN", "DEC", "L", "5#2", "5L", "LW", "?", "7", "MON-FRI", "0-7", "31", "29"]),
)
_field = st.lists(_piece, min_size=1, max_size=3).map(",".join)
_line = st.sampled_from(LINES) | st.lists(_field, min_size=5, max_size=6).map(" ".join)
_zone = st.sampled_from([*ZONES, "", "Asia/Gaza", "Antarctica/Troll", "Pacific/Apia", "europe/berlin", "../UTC", "UTC\x00"])
_moment = st.datetimes().map(lambda at: at.isoformat() + "+00:00") | st.sampled_from(_TIMES)
_seconds = st.floats(0, 1e7) | st.integers(0, 10**7)

_options = _some(
    cron=_line,
    zone=_zone,
    every=_seconds,
    anchor=_moment,
    at=_moment,
    start=_moment,
    end=_moment,
    task=st.just("report.Make"),
    workflow=st.just("shop.Buy"),
    inputs=st.dictionaries(st.text(max_size=3), values, max_size=2),
    tick_as=st.just("when"),
    priority=st.integers(-5, 5),
    retry=st.integers(0, 5),
    timeout=_seconds,
    catch_up=st.sampled_from(["skip", "latest", "all", "window"]),
    catch_up_limit=st.integers(0, 100),
    catch_up_window=_seconds,
    grace=_seconds,
    overlap=st.sampled_from(["allow", "skip", "queue", "cancel"]),
    jitter=_seconds,
)
_gate = st.one_of(
    st.sampled_from(["exit_code", "regex", "own.Gate"]),
    _some(
        use=st.sampled_from(["exit_code", "json_schema", "regex"]),
        argv=st.lists(st.text(max_size=4), max_size=2),
        pattern=st.text(st.sampled_from("a(){}[]?*+\\|0,9^$:"), max_size=10),
        schema=values,
        of=st.sampled_from(["title", "content", "notes"]),
        timeout=st.just("5s"),
    ),
)
_rules = _some(
    handler=st.just("agents.Fix"),
    gates=st.lists(_gate, max_size=3),
    budget=st.sampled_from(["10m", "1.5h", 30, "1y", -1]),
    on_fail=st.sampled_from(["TODO", "BLOCKED"]),
    max_workorders=st.integers(0, 5),
    prompt=st.text(max_size=5),
)
_topology = _some(
    name=st.text(max_size=5),
    roles=st.dictionaries(
        st.sampled_from(["readiness", "scheduler", "runner", "gate", "deadline"]),
        _some(interval=st.just("1s"), lease=st.just("30s")),
    ),
    types=st.dictionaries(st.sampled_from(["TICKET", "STANDING", "ticket"]), _rules),
    deadlines=st.dictionaries(st.integers(-1, 5), st.sampled_from(["1h", 5, "2d"])),
    reviewer=st.just("agents.Review"),
)
_place = st.sampled_from(["inputs.a.0", "a", "a.receipt.0", "inputs.", "nobody", "", "a." + "9" * 5000, "a.receipt.٣"])
_step = _some(
    name=st.sampled_from(["a", "b", "a.b", "inputs"]),
    handler=st.just("billing.Charge"),
    arguments=st.dictionaries(st.text(max_size=3), values | st.fixed_dictionaries({"$from": _place}), max_size=2),
    retry=st.integers(-1, 5) | _some(retries=st.integers(0, 5), delay_for=_seconds, factor=st.floats(0, 5)),
    approval=st.booleans() | st.just({"title": "?"}),
    task_list=st.just("default"),
)
_issue = _some(
    id=st.integers(1),
    number=st.integers(1),
    title=st.text(min_size=1, max_size=5),
    body=st.text(max_size=5),
    labels=st.lists(_some(name=st.sampled_from(["agent", "bug"])), max_size=2),
)
_repository = st.just(
    {
        "id": 5,
        "name": "loom",
        "full_name": "weavers/loom",
        "owner": {"login": "weavers"},
        "clone_url": "https://example.org/loom.git",
        "default_branch": "main",
    }
)
_webhook = _some(
    action=st.sampled_from(["opened", "reopened", "labeled", "closed"]),
    issue=_issue,
    repository=_repository,
    label=_some(name=st.just("agent")),
    installation=_some(id=st.integers(1)),
)
_callback = _some(
    result=st.dictionaries(st.text(max_size=3), values, max_size=3),
    failure_detail=st.text(max_size=5),
    error_code=st.text(max_size=5),
    progress_hint=st.text(max_size=5),
    progress=st.floats(0, 1),
    polling_interval_seconds=st.floats(0, 1e6),
)
_url = st.builds(
    "{}\n{}\n{}\n{}".format,
    st.sampled_from(
        ["postgresql://ada", "postgres://ada", "mysql://ada", "postgresql:/ada", "postgresql:ada", "ada", "sqlite://ada", "://a"]
    ),
    st.text(st.sampled_from("ab:/?#@%[]&= \\"), max_size=6),
    st.text(st.sampled_from("ab:/?#@%[]&= \\"), max_size=6),
    st.sampled_from(
        [
            "host/db",
            "[::1]:5432/db",
            "host:99999/db?schema=a b",
            "host/db?direct_url=postgresql%3A%2F%2Fa%3Ahun@h",
            "[",
            "h?pgbouncer=2",
        ]
    ),
)


def _requests() -> st.SearchStrategy[bytes]:
    """The requests of the corpus, each with a body, a query and an id of another."""
    heads = [path.read_bytes().partition(b"\n\n")[0].decode("latin-1") for path in corpus_of("request")]
    heads = [head for head in heads if head.isascii()] or ["GET /v1/tasks"]
    body = _json(values | _options | _callback | _webhook | st.fixed_dictionaries({"name": st.just("a.B"), "payload": values}))
    query = st.dictionaries(
        st.sampled_from(["limit", "before", "after", "after_seq", "wait_for", "status", "state", "name", "version", "count"]),
        st.sampled_from(["0", "1", "-1", "9" * 30, "1e9", "NaN", "true", "", "%00", "{task}", "0.0.0.0", "%F0%9F%A7%B5", "é"]),
        max_size=2,
    ).map(lambda found: "&".join(f"{name}={value}" for name, value in found.items()))

    def made(head: str, asked: str, said: bytes) -> bytes:
        first, *lines = head.split("\n")
        path = f"{first}{'&' if '?' in first else '?'}{asked}" if asked else first
        return "\n".join([path, *lines, "", ""]).encode("latin-1", "replace") + said

    return st.builds(made, st.sampled_from(heads), query, body)


def _compiled() -> st.SearchStrategy[bytes]:
    """Examples, compiled, with a value somewhere in them replaced."""
    examples = sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.afl"))
    programs = [json.dumps(compile_sources([("a", path.read_text("utf-8"))]).program) for path in examples[:12]]

    def changed(text: str, at: int, value: Any) -> bytes:
        signs = [index for index, letter in enumerate(text) if letter == ":"]
        begin = signs[at % len(signs)] + 1
        end = min([index for sign in ",}]" if (index := text.find(sign, begin)) > 0] or [len(text)])
        return (text[:begin] + json.dumps(value) + text[end:]).encode()

    return st.builds(changed, st.sampled_from(programs), st.integers(0, 10_000), values)


GRAMMARS: dict[str, Callable[[], st.SearchStrategy[bytes]]] = {
    "afl": lambda: _text(mutations() | exchanges() | files.map(print_file)),
    "expression": lambda: _text(expressions.map(print_expr)),
    "program": _compiled,
    "cron": lambda: _text(st.builds("{}\n{}".format, _line, _zone)),
    "schedule": lambda: _json(_options),
    "duration": lambda: _text(
        st.builds("{}{}{}\n{}".format, _seconds, st.just("") | st.just("."), st.sampled_from(["ms", "m", "d", ""]), _zone) | _moment
    ),
    "store_url": lambda: _text(_url),
    "topology": lambda: _text(_topology.map(lambda value: yaml.safe_dump(value, allow_unicode=True))),
    "setting": lambda: _text(
        st.builds("{}\n{}".format, st.sampled_from(_VARIABLES), st.sampled_from(_TIMES) | st.text(max_size=8) | values.map(str))
    ),
    "glob": lambda: _text(st.text(st.sampled_from("ab*?[]!-^/.\\{}"), max_size=20)),
    "requirement": lambda: _text(st.text(st.sampled_from("<>=!~0123456789.*,[]; a'@()"), max_size=12).map("requests{}".format)),
    "payload": lambda: _json(values | st.dictionaries(st.text(max_size=6), values, max_size=4)),
    "plan": lambda: _json(st.lists(_step, max_size=4)),
    "encoded": lambda: _text(st.builds("@code:{}:{}".format, st.sampled_from(["zlib", "", "secret"]), st.text(max_size=8))),
    "signature": lambda: _text(
        st.builds("t={},v1={}\n{}".format, st.integers(0, 2 * 10**9), st.text(max_size=8), st.text(max_size=4))
    ),
    "github": lambda: _json(_webhook).map(lambda body: b"issues 72d3162e-cc78\n" + body),
    "callback": lambda: _json(_callback),
    "request": _requests,
}


@st.composite
def changed_seeds(draw: st.DrawFn, name: str) -> bytes:
    """An input of the corpus with a few pieces cut, doubled, moved or put in."""
    kept = [path.read_bytes() for path in corpus_of(name)] or [b""]
    data = draw(st.sampled_from(kept))
    words = st.sampled_from(WORDS[name]).map(lambda word: word.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        piece = draw(st.one_of(words, st.binary(max_size=4), st.just(data[start:end] * 2), st.just(b"")))
        data = data[:start] + piece + data[end:]
    return data[:LARGEST]


def inputs_for(name: str) -> st.SearchStrategy[bytes]:
    """Everything that is tried on a target."""
    words = st.lists(st.sampled_from(WORDS[name]), max_size=30)
    return st.one_of(
        GRAMMARS[name](),
        changed_seeds(name),
        _text(words.map(" ".join) | words.map("".join)),
        st.binary(max_size=40),
    )
