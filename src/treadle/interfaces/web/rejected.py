"""Rejected forms: the page with the form again, with the typed values in it and each error at its field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser

from starlette.datastructures import FormData

from treadle.model.errors import InvalidInput

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
