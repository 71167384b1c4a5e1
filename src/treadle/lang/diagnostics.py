"""Diagnostics: the place, the problem, the valid alternatives, and the source line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import Any

from treadle.lang.hints import SYNONYMS
from treadle.lang.messages import MESSAGES
from treadle.lang.nodes import Span

_ALTERNATIVES = 12  # how many valid names a message lists
_DETAILED = 100  # how many diagnostics of one compilation get alternatives; keeps hopeless sources linear
_WIDTH = 120  # how much of a very long line is shown


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of the span; an empty span inserts."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the diagnostic's source that removes its cause; the edits do not overlap."""

    title: str
    edits: tuple[Edit, ...]

    def as_json(self) -> dict[str, object]:
        return {"title": self.title, "edits": [{**edit.span._asdict(), "text": edit.text} for edit in self.edits]}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. Lines and columns count from 1, the end is exclusive; `rule` is stable and has an entry in `rules.py`.

    `help` is the hint. Of several `fixes`, the first is the most likely one; each of them stands alone.
    """

    rule: str
    severity: Severity
    source: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    valid: tuple[str, ...] = ()
    suggestion: str | None = None
    help: str | None = None
    text: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def span(self) -> Span:
        return Span(self.line, self.column, self.end_line, self.end_column)

    @classmethod
    def from_json(cls, report: dict[str, Any]) -> Diagnostic:
        """Return the diagnostic that a server of any version reported, without its fixes."""
        return cls(**{key: value for key, value in report.items() if key in _REPORTED})

    def render(self) -> str:
        """Format it in several lines: the place, the source line with a marker, the remedy."""
        number = str(self.line)
        margin = " " * len(number)
        text, column = _window(self.text, self.column)
        end = self.end_column if self.end_line == self.line else len(self.text) + 1
        width = max(1, min(end - self.column, len(text) - column + 1))
        lines = [f"{self.source}:{self.line}:{self.column}: {self.severity}[{self.rule}]: {self.message}"]
        if self.text:
            lead = "".join("\t" if char == "\t" else " " for char in text[: column - 1])
            lines += [f" {number} | {text}", f" {margin} | {lead}{'^' * width}"]
        if self.suggestion:
            lines.append(f" {margin} = did you mean `{self.suggestion}`?")
        if self.valid:
            lines.append(f" {margin} = valid here: {', '.join(self.valid)}")
        if self.help:
            lines.append(f" {margin} = help: {self.help}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """Return the same facts as JSON values."""
        return {
            "rule": self.rule,
            "severity": str(self.severity),
            "source": self.source,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "message": self.message,
            "valid": list(self.valid),
            "suggestion": self.suggestion,
            "help": self.help,
            "fixes": [fix.as_json() for fix in self.fixes],
        }


_REPORTED = {attribute.name for attribute in fields(Diagnostic)} - {"fixes"}


def _window(text: str, column: int) -> tuple[str, int]:
    """Return the part of a line to show, and the column within it."""
    if len(text) <= _WIDTH:
        return text, column
    start = max(0, column - 1 - _WIDTH // 2)
    return text[start : start + _WIDTH], column - start


@dataclass
class Source:
    """A named text, split into lines on first use."""

    name: str
    text: str
    library: bool = False

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.removeprefix("\ufeff").split("\n")

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((len(line) + 1 for line in self._lines), initial=int(self.text.startswith("\ufeff"))))

    def line(self, number: int) -> str:
        """Return a line without its end; the first one also without a byte order mark."""
        return self._lines[number - 1].rstrip("\r") if 0 < number <= len(self._lines) else ""

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place in the text."""
        return min(self._starts[min(line, len(self._starts)) - 1] + column - 1, len(self.text))

    def offsets(self, span: Span) -> tuple[int, int]:
        """Return the offsets of both ends of a span."""
        return self.offset(span.line, span.column), self.offset(span.end_line, span.end_column)

    def part(self, span: Span) -> str:
        """Return the text of a span."""
        return self.text[slice(*self.offsets(span))]

    def apply(self, edits: Iterable[Edit]) -> str:
        """Return the text with edits that do not overlap."""
        text = self.text
        for edit in sorted(edits, key=lambda edit: edit.span, reverse=True):
            start, end = self.offsets(edit.span)
            text = text[:start] + edit.text + text[end:]
        return text


@dataclass(slots=True)
class Reporter:
    """Collects the diagnostics of one compilation."""

    found: list[tuple[int, Diagnostic]] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)

    @property
    def detailed(self) -> bool:
        """Whether the next diagnostic still lists alternatives, so that collecting them pays off."""
        return len(self.found) < _DETAILED

    def report(
        self,
        key: str,
        source: Source,
        span: Span,
        *,
        severity: Severity = Severity.ERROR,
        valid: Iterable[str] = (),
        near: str | None = None,
        hint: str | None = None,
        fixes: Iterable[Fix] = (),
        **values: object,
    ) -> None:
        """Add a diagnostic with a text from `MESSAGES`, whose templates take the values and `near`; `hint` replaces its hint.

        `near` is the misspelled name that the suggestion should resemble. A suggestion for a name that stands once in the span
        becomes a fix, after the given ones. `valid` is read only if the diagnostic lists alternatives.
        """
        if severity is Severity.WARNING and source.library:
            return
        names: tuple[str, ...] = ()
        suggestion = None
        if self.detailed:
            every = sorted(set(valid))
            suggestion = nearest(near, every) if near else None
            more = len(every) - _ALTERNATIVES
            names = (*every[:_ALTERNATIVES], f"and {more} more") if more > 0 else tuple(every)
        if suggestion and near:
            fixes = (*fixes, *_respelled(source, span, near, suggestion))
        message = MESSAGES[key]
        hint = hint or (message.hint and message.hint.format(near=near, **values))
        diagnostic = Diagnostic(
            key.partition(":")[0], severity, source.name, span.line, span.column, span.end_line, span.end_column,
            message.text.format(near=near, **values), names, suggestion, hint, source.line(span.line), tuple(fixes),
        )  # fmt: skip
        self.found.append((self.sources.setdefault(source.name, len(self.sources)), diagnostic))

    def warn(self, key: str, source: Source, span: Span, **values: Any) -> None:
        """Add a warning, unless the source is a library."""
        self.report(key, source, span, severity=Severity.WARNING, **values)

    def sorted(self) -> tuple[Diagnostic, ...]:
        """Return all diagnostics in the order of sources, lines and columns, without duplicates."""
        order = sorted(self.found, key=lambda entry: (entry[0], entry[1].line, entry[1].column))
        return tuple(dict.fromkeys(diagnostic for _, diagnostic in order))


def replace(title: str, span: Span, text: str) -> Fix:
    """Return the fix that replaces the text of one span."""
    return Fix(title, (Edit(span, text),))


def enclose(title: str, first: Span, before: str, last: Span, after: str) -> Fix:
    """Return the fix that inserts texts at the start of one span and at the end of another."""
    return Fix(title, (Edit(first.start, before), Edit(last.end, after)))


def _respelled(source: Source, span: Span, wrong: str, right: str) -> tuple[Fix, ...]:
    """Return the fix that replaces a name, if it stands exactly once in the span."""
    if span.line != span.end_line:
        return ()
    matches = list(re.finditer(rf"(?<![\w]){re.escape(wrong)}(?![\w])", source.part(span)))
    if len(matches) != 1:
        return ()
    return (replace(f"Change `{wrong}` to `{right}`", span.part(matches[0].start(), len(wrong)), right),)


def nearest(name: str, candidates: list[str]) -> str | None:
    """Return the most similar candidate, if any is similar."""
    meant = SYNONYMS.get(name.lower())
    if meant in candidates:
        return meant
    close = difflib.get_close_matches(name, candidates[:500], n=1, cutoff=0.6)
    if close:
        return close[0]
    folded = {candidate.lower(): candidate for candidate in candidates}
    return folded.get(name.lower())
