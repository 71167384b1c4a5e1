"""The compiler of AFL.

CPU milliseconds per 1,000 lines, of a whole compilation and of its phases: schemas, event facets, workflows with steps, `catch`
and `foreach`, without errors. *Edit*: CPU milliseconds to parse one changed file of a project of 50 files and to check the project,
which an editor waits for after a keystroke.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.benchmark import Figures, Found
from bench.figures import Aim, judged, spread
from bench.results import table
from treadle.lang.check import check
from treadle.lang.compiler import compile_sources, digest_of
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.emit import emit
from treadle.lang.lexer import lex
from treadle.lang.parse import parse

NAME = "language"
TITLE = "The language"
STORES = ("sqlite",)

PART = """/** Handles the orders of one region. */
namespace shop{n} {{
    schema Line {{ sku: String, qty: Long, price: Double }}
    schema Order {{
        id: String
        lines: [Line]
    }}

    event facet Fetch(id: String, limit: Long = 10) => (order: Order, count: Long)
    event facet Charge(amount: Double, currency: String = "EUR") => (receipt: String)
    facet Total(price: Double, qty: Long) => (sum: Double) andThen {{
        yield Total(sum = $.price * $.qty + 1.5)
    }}
    implicit charge = Charge(currency = "USD")

    /** Processes one order.
     * @param id the order
     */
    workflow Process(id: String, discount: Double = 0.1, tags: [String] = ["a"]) => (receipt: String, note: String, all: [String])
    andThen {{
        fetched = Fetch(id = $.id, limit = 20 + 5)
        total = Total(price = fetched.order.lines[0]["price"], qty = fetched.count)
        paid = Charge(amount = total.sum - $.discount * total.sum) catch {{
            again = Charge(amount = total.sum, currency = "EUR")
            yield Charge(receipt = again.receipt)
        }}
        // the note is for people
        yield Process(receipt = paid.receipt, note = "order " ++ $.id ++ ": " ++ total.sum)
    }} andThen foreach tag in $.tags {{
        f = Fetch(id = $.tag ++ "-" ++ $.id)
        yield Process(all = [f.order.id])
    }}
}}
"""
PHASES = {"lex": "tokens", "parse": "parsing, with tokens", "check": "checks", "emit": "JSON and digest"}
NOTE = (
    "Tokens from one scan of the text, and checks that do nothing for declarations without a body, took 0.74 of the time for "
    "tokens, 0.77 for parsing, 0.67 for checks, 0.78 for a whole compilation and 0.60 for an edit: minima of 14 rounds, old and "
    "new in turn in one run."
)
AIMS = (
    Aim("a whole compilation per 1,000 lines", "compile", " ms", at_most=80),
    Aim("an edit in 50 files", "edit", " ms", at_most=100),
)


@dataclass(frozen=True)
class Sizes:
    """So many `rounds` with so many `parts` of 33 lines."""

    rounds: int = 10
    parts: int = 60


SIZES = Sizes()
QUICK = Sizes(rounds=1, parts=2)


async def measure(url: str, sizes: Sizes) -> Figures:
    """The milliseconds of all rounds."""
    figures: Figures = {"rounds": sizes.rounds, "lines": PART.count("\n") * sizes.parts}
    for _ in range(sizes.rounds):
        for name, took in {**_compile(sizes.parts), "edit": _edit()}.items():
            figures.setdefault(name, []).append(took)
    return figures


def _compile(parts: int) -> dict[str, float]:
    """Milliseconds per 1,000 lines."""
    text = "".join(PART.format(n=number) for number in range(parts))
    source, reporter = Source("a.afl", text), Reporter()
    took: dict[str, float] = {}
    _timed("lex", took, lambda: lex(source, reporter))
    file = _timed("parse", took, lambda: parse(source, reporter).file)
    context = _timed("check", took, lambda: check(declare([(source, file)], reporter), reporter))
    _timed("emit", took, lambda: emit(context, digest_of, locations=True))
    _timed("compile", took, lambda: compile_sources([("a.afl", text)]))
    return {name: each * 1000 / text.count("\n") for name, each in took.items()}


def _edit() -> float:
    texts = {f"f{number}.afl": PART.format(n=number) for number in range(50)}
    files = [(source, parse(source, Reporter()).partial) for source in (Source(*each) for each in texts.items())]
    took: dict[str, float] = {}

    def edit() -> None:
        reporter, changed = Reporter(), Source("f25.afl", texts["f25.afl"] + "// more\n")
        files[25] = (changed, parse(changed, reporter).partial)
        check(declare(files, reporter), reporter)

    _timed("edit", took, edit)
    return took["edit"]


def _timed(name: str, took: dict[str, float], work: Callable[[], Any]) -> Any:
    started = time.process_time()
    result = work()
    took[name] = (time.process_time() - started) * 1000
    return result


def show(found: Found) -> str:
    """The phases and the targets."""
    (figures,) = found.values()
    names = {"compile": "a whole compilation", **PHASES}
    rows = [(f"{what}, per 1,000 lines", spread(figures[name])) for name, what in names.items()]
    rows.append(("an edit in 50 files", spread(figures["edit"])))
    head = f"{figures['rounds']} rounds, {figures['lines']} lines.\n\n"
    return f"{head}{table(('CPU', 'ms'), rows)}\n\n{judged(found, AIMS)}\n\n{NOTE}"
