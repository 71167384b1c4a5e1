"""Values of forms and queries, converted for calls; a rejected form is shown again, with each error at its field."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from html.parser import HTMLParser
from typing import Any, TypeVar

from starlette.datastructures import FormData, QueryParams

from treadle.api.contract import OptionField, option_fields
from treadle.model.errors import Forbidden, InvalidInput

T = TypeVar("T")
Fields = FormData | QueryParams


def parse_object(fields: Fields, name: str) -> dict[str, Any] | None:
    """The JSON object in a field; None if it is empty."""
    typed = text(fields, name)
    if typed is None:
        return None
    try:
        value = json.loads(typed)
    except (ValueError, RecursionError) as error:
        raise InvalidForm({name: f"This is not JSON: {error}."}) from None
    if not isinstance(value, dict):
        raise InvalidForm({name: "This is JSON, but not an object: it must look like {...}."})
    return value


def text(fields: Fields, name: str) -> str | None:
    """The text of a field; None if it is empty."""
    return str(fields.get(name) or "").strip() or None


def _parsed(fields: Fields, name: str, parse: Callable[[str], T], expected: str) -> T | None:
    """The value in a field; None if it is empty."""
    typed = text(fields, name)
    try:
        return None if typed is None else parse(typed)
    except ValueError:
        raise InvalidForm({name: f"{name} must be {expected}, not {typed!r}."}) from None


def number(fields: Fields, name: str) -> float | None:
    """The number in a field; None if it is empty."""
    return _parsed(fields, name, float, "a number")


def whole(fields: Fields, name: str) -> int | None:
    """The whole number in a field; None if it is empty."""
    return _parsed(fields, name, int, "a whole number")


def instant(fields: Fields, name: str) -> datetime | None:
    """The date and time in a field, in UTC unless it names a zone; None if it is empty."""
    at = _parsed(fields, name, datetime.fromisoformat, "a date and a time, such as 2030-01-31T12:00")
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


TARGETS = ("task", "workflow", "function")
"""Options that name the started work; forms have a selection of the kind (`kind`) and one name (`target`) for them."""


def described(options: type, without: Container[str] = TARGETS) -> list[OptionField]:
    """The fields of an options class that a form shows, for `parts.options`."""
    return [each for each in option_fields(options) if each.name not in without]


def options_of(form: Fields, options: type) -> dict[str, Any]:
    """The options that are filled in, converted by their descriptions."""
    given: dict[str, Any] = {}
    with each_field() as check:
        for each in option_fields(options):
            with check:
                given[each.name] = _option(form, each)
    if (target := text(form, "target")) is not None:
        kind = text(form, "kind") or TARGETS[0]
        given[kind if kind in TARGETS else TARGETS[0]] = target
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def each_field() -> Iterator[_Collector]:
    """Collect the errors of fields that are parsed in `with check:` blocks, and raise all of them together."""
    collector = _Collector()
    yield collector
    if collector.fields:
        raise InvalidForm(collector.fields)


class _Collector:
    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, InvalidForm):
            self.fields |= error.fields
            return True
        return False


def _option(form: Fields, option: OptionField) -> Any:
    name = option.name
    match option.kind:
        case "integer":
            return whole(form, name)
        case "number" | "duration":
            return number(form, name)
        case "boolean":
            return {"true": True, "false": False}.get(text(form, name) or "")
        case "instant":
            return instant(form, name)
        case "choices":
            return [str(each) for each in form.getlist(name)] or None
        case "object":
            return parse_object(form, name)
        case "text" | "choice":
            return text(form, name)


async def if_allowed(call: Awaitable[T]) -> T | None:
    """The result, or None if the caller may not see it, so that the rest of the page is still shown."""
    try:
        return await call
    except Forbidden:
        return None


def parse_typed(name: str, kind: str, text: str) -> Any:
    """The value of an input of an AFL type; anything but text, numbers and booleans is entered as JSON."""
    try:
        match kind.removesuffix("?"):
            case "String":
                return text
            case "Int" | "Long":
                return int(text)
            case "Double":
                return float(text)
            case "Boolean":
                return {"true": True, "false": False}[text.strip().lower()]
            case _:
                return json.loads(text)
    except (ValueError, KeyError, RecursionError):
        raise InvalidForm({f"in-{name}": f"{name} must be of type {kind}; {text!r} is not."}) from None


_VOID = ("checkbox", "radio")


class InvalidForm(InvalidInput):
    """Fields of a form have invalid values; `fields` has the message of each."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(" ".join(fields.values()))
        self.fields = fields


@dataclass(frozen=True)
class Rejected:
    """A form that was rejected."""

    action: str
    form: FormData
    error: Exception

    def put_into(self, page: str) -> str | None:
        """Return the page with the form filled in and marked; None if the page does not have the form."""
        filler = _Filler(self)
        filler.feed(page)
        filler.close()
        if not filler.fields:
            return None
        return "".join(filler.out).replace("<body data-live=", '<body data-live="" data-was-live=', 1)

    def errors(self, names: Sequence[str]) -> dict[str, str]:
        """Return the message of each field among `names`; under an empty name, one that concerns none of them alone."""
        if isinstance(self.error, InvalidForm):
            known = {name: message for name, message in self.error.fields.items() if name in names}
            return known or {"": str(self.error)}
        said = str(self.error)
        quoted = [name for name in names if (typed := str(self.form[name])).strip() and repr(typed) in said]
        words = re.sub(r"'[^']*'", "", said)
        named = [name for name in sorted(names, key=len, reverse=True) if _word(name).search(words)]
        return {next(iter(quoted + named), ""): said}


class _Filler(HTMLParser):
    """Copies a page, and fills in the form with the action of the rejected one."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self.found = False
        self._rejected = rejected
        self._inside = False
        self._select: str | None = None
        self._errors: dict[str, str] = {}
        self._text: str | None = None
        self._option: str | None = None
        self._done: set[str] = set()
        self.fields = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text, given = self.get_starttag_text() or "", dict(attrs)
        if tag == "form" and not self.found and given.get("action") == self._rejected.action and given.get("method") == "post":
            self.found = self._inside = True
            self._begin(text)
            return
        name = given.get("name") or ""
        if not self._inside or tag not in ("input", "select", "textarea", "option") or given.get("type") == "hidden":
            self.out.append(text)
            return
        values = [str(each) for each in self._rejected.form.getlist(name)]
        self.fields += tag != "option"
        if tag == "option" and "value" not in given:
            self._option = text
        elif tag == "option":
            self.out.append(_chosen(text, given["value"], "selected", self._rejected.form.getlist(self._select or "")))
        elif given.get("type") in _VOID:
            self.out.append(_chosen(text, given.get("value", "on"), "checked", values))
        else:
            if tag == "input":
                text = re.sub(r'\svalue="[^"]*"', "", text[: text.rindex(">")].rstrip("/")) + (
                    f' value="{escape(values[0])}">' if values else ">"
                )
            if name in self._errors:
                text = f'{text[:-1]} aria-invalid="true" aria-describedby="error-{escape(name)}">'
            self.out.append(text)
            if tag == "select":
                self._select = name
            elif tag == "textarea":
                self._text = values[0] if values else ""
                self.out.append(escape(self._text, quote=False))
            else:
                self._say(name)

    def _begin(self, text: str) -> None:
        self._errors = self._rejected.errors([name for name in self._rejected.form if name != "csrf"])
        self.out.append(text)
        if "" in self._errors:
            self.out.append(f'<p class="field-error" role="alert">{escape(self._errors[""])}</p>')

    def _say(self, name: str) -> None:
        if name in self._errors and name not in self._done:
            self._done.add(name)
            self.out.append(f'<span class="field-error" id="error-{escape(name)}" role="alert">{escape(self._errors[name])}</span>')

    def handle_endtag(self, tag: str) -> None:
        self.out.append(f"</{tag}>")
        if tag == "form":
            self._inside = False
        elif tag == "select" and self._select is not None:
            self._say(self._select)
            self._select = None
        elif tag == "textarea" and self._text is not None:
            self._text = None
            self._say(self._name_of_text())

    def _name_of_text(self) -> str:
        for text in reversed(self.out):
            if text.startswith("<textarea") and (found := re.search(r'name="([^"]*)"', text)):
                return found[1]
        return ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if self._option is not None:
            self.out.append(_chosen(self._option, data.strip(), "selected", self._rejected.form.getlist(self._select or "")))
            self._option = None
        if self._text is None:
            self.out.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.out.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.out.append(f"<!{decl}>")


def _word(name: str) -> re.Pattern[str]:
    """A field's name as a message would write it."""
    return re.compile(rf"\b{re.escape(name.removeprefix('in-')).replace('_', '[ _-]')}\b", re.IGNORECASE)


def _chosen(text: str, value: str | None, mark: str, values: Sequence[object]) -> str:
    """The tag of an option or box, marked as it was sent."""
    bare = re.sub(rf"\s{mark}(=\"[^\"]*\")?", "", text)
    return f"{bare[:-1]} {mark}>" if value in [str(each) for each in values] else bare
