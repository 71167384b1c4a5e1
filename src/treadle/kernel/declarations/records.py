"""Declared limits and triggers: the declarations of a program, and the record of those that were applied.

An item is the maximum of a limit key (`max KEY`), its rate (`rate KEY`) or a trigger (`schedule NAME`, `watcher NAME`, `alert
NAME`); its value is JSON, None if it does not exist. One record per namespace has the items of all programs, so that its version
orders their changes.
"""

from __future__ import annotations

import re
from typing import Any

from treadle.model.alerts import shown_target
from treadle.model.clock import as_text
from treadle.model.declarations import MAX, RATE, Value
from treadle.model.errors import InvalidInput
from treadle.model.lists import HANDLER_KEY, Bucket, check_count, check_rate, handler_key, parse_rate
from treadle.model.names import check_key, check_name
from treadle.model.values import encode

TRIGGERS = SCHEDULE, WATCHER, ALERT = "schedule", "watcher", "alert"

_RELEASE = re.compile(r"\d+(\.\d+)*", re.ASCII)


class ProgramDeclarations:
    """The declarations of one program, collected when its code is loaded; nothing is stored before `Declarations.sync`."""

    def __init__(self, program: str | None = None, release: int | str = 0) -> None:
        self.named = program is not None
        """Whether the code names the program, so that an empty set of declarations removes its former ones."""
        self.program = program if program is None else check_name(program, "program name")
        self.release = check_release(release)
        self.items: dict[str, dict[str, Any]] = {}
        self.incomplete: set[str] = set()
        """Triggers without a target, which a decorated handler or function is to give."""
        self.others: list[ProgramDeclarations] = []
        """Those of other programs in the same process."""

    def default_program(self) -> str:
        """Return the owner of declarations in code that does not name it."""
        return "python"

    def add(self, item: str, value: dict[str, Any]) -> None:
        """Declare the item; twice the same is once."""
        if self.items.setdefault(item, value) != value:
            raise InvalidInput(f"The {name_of(item)} is declared twice, with different values.")

    def limit(
        self,
        key: str | None = None,
        *,
        handler: str | None = None,
        rate: float | str | None = None,
        burst: int | None = None,
        max: int | None = None,  # noqa: A002
    ) -> None:
        """Declare the limit of a key or a handler: `rate` with bursts of up to `burst`, at most `max` running tasks, or both.

        As `kernel.lists.limit_key_rate` and `limit_key`; a rate is a number per second, or a text such as `100/min`. The limit of a
        handler holds across all lists, for its tasks without a limit key.
        """
        if (key is None) == (handler is None):
            raise InvalidInput("A limit is that of a key or of a handler: engine.declare.limit(handler='mail.Send', rate='10/s').")
        key = key if handler is None else handler_key(check_name(handler))
        assert key is not None
        check_key(key, "limit key")
        if rate is None and max is None:
            raise InvalidInput(f"The limit of {key} needs a rate or a max: engine.declare.limit({key!r}, rate='10/s').")
        per_second = None if rate is None else parse_rate(rate)
        burst = check_rate(per_second, burst)
        if per_second is not None:
            self.add(f"{RATE} {key}", {"rate": float(per_second), "burst": burst})
        if max is not None:
            self.add(f"{MAX} {key}", {"max": check_count(max, "A limit")})

    def add_trigger(self, kind: str, name: str, options: dict[str, Any]) -> bool:
        """Declare a schedule, a watcher or an alert rule with the options of its `create`; False if it has no target yet."""
        from treadle.kernel.declarations.decide import trigger_value  # programs without triggers need not load it

        item = f"{kind} {check_name(name, f'{kind} name')}"
        value = trigger_value(kind, options)
        if value is None:
            self.incomplete.add(item)
            return False
        self.incomplete.discard(item)
        self.add(item, value)
        return True


def check_release(release: int | str) -> str:
    """Return the release as text, or raise `InvalidInput`: releases are compared, so they are numbers."""
    text = str(release)
    if isinstance(release, bool) or not _RELEASE.fullmatch(text) or len(text) > 100:
        raise InvalidInput(f"A release is a number, or numbers with dots, such as 3 or '2027.1.15', not {text[:50]!r}.")
    return text


def release_key(release: str) -> tuple[int, ...]:
    """Return the key by which releases are ordered: 1.10 is newer than 1.9, and 1.0 is 1."""
    parts = [int(part) for part in release.split(".")]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)


def name_of(item: str) -> str:
    """Return the item for people."""
    kind, _, name = item.partition(" ")
    if kind in TRIGGERS:
        return item
    owner = f"handler {name.removeprefix(HANDLER_KEY)}" if name.startswith(HANDLER_KEY) else f"key {name}"
    return f"{'rate' if kind == RATE else 'maximum'} of {owner}"


def shown_value(value: Value) -> Value:
    """Return the value without secrets: the target of an alert rule may have some in its path."""
    return value if value is None or "to" not in value else value | {"to": shown_target(value["to"])}


def text_of(item: str, value: Value) -> str:
    """Return the value of an item for people."""
    if value is None:
        return "none"
    kind = item.partition(" ")[0]
    if kind == MAX:
        return f"{value['max']} running"
    if kind == RATE:
        return Bucket(rate=value["rate"], burst=value["burst"]).rate_text
    if kind == ALERT:
        return encode(shown_value(value))
    when, target = value.get("when", {}), dict(value.get("target", {}))
    if kind == WATCHER:
        time = value["source"]["place"]
    elif "cron" in when:
        time = f"{when['cron']} {when.get('zone', 'UTC')}"
    elif "every_for" in when:
        time = f"every {when['every_for'] / 1000:g} s"
    else:
        time = f"at {as_text(when.get('at', 0))}"
    work, name = target.pop("kind", ""), target.pop("name", "")
    if work == "task" and target.get("given_as") in ("tick", "change"):
        del target["given_as"]
    rest = target | {key: option for key, option in value.items() if key not in ("when", "target", "source")}
    return f"{time}, {work} {name}" + (f" {encode(rest)}" if rest else "")
