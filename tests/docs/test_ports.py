"""The page about ports lists every method of every port, and a store has few to implement."""

from __future__ import annotations

import re
from inspect import isclass, isfunction
from pathlib import Path

from treadle.kernel.store import database, metrics, operator_ports, ports, usage

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ports.md"
MODULES = (ports, operator_ports, database, metrics, usage)
METHODS_LIMIT = 100
"""Methods that a store implements."""
PARTS = {"Statements", "Port", "ReadPort"}
"""Classes that ports consist of."""


def declared() -> dict[str, set[str]]:
    classes = {cls for module in MODULES for cls in vars(module).values() if isclass(cls) and cls.__module__ == module.__name__}
    methods = {
        cls.__name__: {
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if isfunction(member) and not name.startswith("_") and base.__module__.startswith("treadle")
        }
        for cls in classes
        if cls.__name__ not in PARTS
    }
    methods["TransactionStore"] -= methods["Store"]
    return {name: own for name, own in methods.items() if own}


def test_the_page_lists_every_method_of_every_port() -> None:
    listed: dict[str, set[str]] = {}
    counts = []
    for table in PAGE.read_text("utf-8").split("| port | methods |")[1:]:
        rows = re.findall(r"^\| (?:`store\.\w+`: )?`(\w+)`.*? \| (.*) \|$", table.partition("\n\n")[0], re.MULTILINE)
        counts.append(sum(len(re.findall(r"`(\w+)`", methods)) for _, methods in rows))
        for port, methods in rows:
            listed.setdefault(port, set()).update(re.findall(r"`(\w+)`", methods))
    assert listed == declared()
    assert counts[0] <= METHODS_LIMIT
