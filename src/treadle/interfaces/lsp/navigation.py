"""Go to definition, references, highlights and rename."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lsprotocol import types

from treadle.interfaces.lsp.analysis import Parser, analyse
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Index, Occurrence, Symbol
from treadle.interfaces.lsp.workspace import Workspace, uri_of
from treadle.lang.builtins import SOURCE
from treadle.lang.definitions import Kind
from treadle.lang.diagnostics import Severity
from treadle.lang.tokens import KEYWORDS, TYPES

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUALIFIED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_FIXED = frozenset([Kind.TYPE, Kind.MIXIN, Kind.ERROR, Kind.SCRIPT, Kind.FUNCTION])
_STEP_KEYWORDS = frozenset(
    ["after", "as", "collectErrors", "failFast", "foreach", "in", "with"]
)  # the only keywords that may name a step


class CannotRename(ValueError):
    """A name that cannot be changed, or not to this one."""


def definitions(index: Index, symbol: Symbol) -> Iterator[types.Location]:
    """Yield the place of a declaration; of a namespace, every place that opens it."""
    if symbol.span is not None and symbol.path in index.documents:
        yield types.Location(uri_of(symbol.path), index.documents[symbol.path].span_range(symbol.span))
    elif symbol.kind is Kind.NAMESPACE:
        for path, each in index.references(symbol):
            if each.is_declaration:
                yield types.Location(uri_of(path), index.documents[path].range(each.start, each.end))


def everywhere(workspace: Workspace, index: Index, symbol: Symbol) -> list[tuple[str, Occurrence]]:
    """Return all occurrences of a name, in all programs that contain its declaration."""
    found: dict[tuple[str, int], Occurrence] = {}
    for each in workspace.indexes():
        known = each is index or symbol.path in each.documents
        if known or (symbol.kind is Kind.NAMESPACE and not set(each.documents).isdisjoint(index.documents)):
            for path, occurrence in each.references(symbol):
                found[path, occurrence.start] = occurrence
    return [(path, each) for (path, _), each in sorted(found.items())]


def check_rename(symbol: Symbol) -> None:
    """Raise `CannotRename` for a name that is built in."""
    if symbol.kind in _FIXED or symbol.path == SOURCE.name:
        sort = "a value of a script" if symbol.kind is Kind.SCRIPT else "built in"
        raise CannotRename(f"`{symbol.name}` is {sort} and cannot be renamed.")


def rename(workspace: Workspace, index: Index, symbol: Symbol, name: str) -> dict[str, list[types.TextEdit]]:
    """Return the edits that rename a name everywhere, by URI."""
    check_rename(symbol)
    pattern = _QUALIFIED if symbol.kind is Kind.NAMESPACE else _IDENTIFIER
    if not pattern.fullmatch(name):
        raise CannotRename(f"`{name}` is not a name: use letters, digits and `_`, and begin with a letter or `_`.")
    if symbol.kind in (Kind.STEP, Kind.VALUE) and name in KEYWORDS.keys() - _STEP_KEYWORDS:
        raise CannotRename(f"`{name}` is a keyword and cannot name a step.")
    if symbol.kind is Kind.SCHEMA and name in TYPES:
        raise CannotRename(f"`{name}` is a built-in type.")
    if symbol.kind is Kind.PARAMETER and name.startswith("_"):
        raise CannotRename("Parameters that begin with `_` belong to the runner.")
    places = everywhere(workspace, index, symbol)
    edits: dict[str, list[types.TextEdit]] = {}
    texts = {path: document.text for path, document in workspace.documents.items()}
    for path, each in reversed(places):
        document = workspace.documents[path]
        edits.setdefault(uri_of(path), []).append(types.TextEdit(document.range(each.start, each.end), name))
        texts[path] = texts[path][: each.start] + name + texts[path][each.end :]
    touched = {path for path, _ in places}
    for other in workspace.indexes():
        if touched & set(other.documents) and not _same_meaning(other, texts):
            raise CannotRename(f"`{name}` cannot be used: a name would get another meaning, or an error would appear.")
    return edits


def _same_meaning(before: Index, texts: dict[str, str]) -> bool:
    """Return whether each name of the new texts means what it meant before, and there is no new error."""
    parser = Parser()
    analysis = analyse({path: parser.parse(path, texts[path]) for path in before.documents})
    after = Index(analysis, {path: Document(texts[path]) for path in before.documents})
    pairs = set()
    for path in before.documents:
        old, new = before.occurrences(path), after.occurrences(path)
        if len(old) != len(new) or _errors(after, path) > _errors(before, path):
            return False
        pairs |= {(one.symbol.key, other.symbol.key) for one, other in zip(old, new, strict=True)}
    return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def _errors(index: Index, path: str) -> int:
    return sum(each.severity is Severity.ERROR for each in index.analysis.diagnostics[path])
