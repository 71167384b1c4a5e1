"""The files of a workspace, open ones as the editor shows them, and the analysis of the program of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from pygls import uris

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import ParsedText, ProgramIndex, analyse, collect, parse_text
from treadle.lang import nodes
from treadle.lang.diagnostics import Diagnostic

_SKIPPED = frozenset([".git", ".venv", "node_modules", "__pycache__"])
_MAX_FILES = 5000


def path_of(uri: str) -> str:
    """Return the path of a file, or the URI itself of what is not one, such as an unsaved text."""
    return uris.to_fs_path(uri) or uri if uri.startswith("file:") else uri


def uri_of(path: str) -> str:
    return path if "://" in path or path.startswith("untitled:") else uris.from_fs_path(path) or path


class Workspace:
    """All `.afl` files of the folders, and all open documents."""

    def __init__(self) -> None:
        self.encoding = "utf-16"
        self.documents: dict[str, Document] = {}
        self.open: set[str] = set()
        self.folders: list[str] = []
        self._parsed: dict[str, ParsedText] = {}
        self._facts: dict[str, tuple[ParsedText, Facts]] = {}
        self._programs: dict[str, tuple[str, ...]] | None = None
        self._indexes: dict[tuple[str, ...], ProgramIndex] = {}

    # --- files

    def set(self, path: str, document: Document | None) -> None:
        """Replace the text of a file; None: it is gone."""
        if document is None:
            self.documents.pop(path, None)
            self._parsed.pop(path, None)
            self._facts.pop(path, None)
            self._programs = None
        else:
            self.documents[path] = document
        for program in [program for program in self._indexes if path in program]:
            del self._indexes[program]

    def read(self, path: str) -> None:
        """Take the text of a closed file from the disk."""
        if path in self.open:
            return
        try:
            text = Path(path).read_bytes().decode("utf-8")
        except (OSError, ValueError):
            self.set(path, None)
            return
        self.set(path, Document(text, None, self.encoding))

    def scan(self, folder: str) -> None:
        """Read all sources of a folder."""
        for path in self._sources(Path(folder)):
            if path not in self.documents:
                self.read(path)

    def _sources(self, folder: Path) -> Iterator[str]:
        count = 0
        for path in sorted(folder.rglob("*.afl")):
            if not _SKIPPED.intersection(path.relative_to(folder).parts) and path.is_file():
                yield str(path)
                count += 1
                if count == _MAX_FILES:
                    return

    def _parse(self, path: str) -> ParsedText:
        """Parse a file, each text once."""
        parsed = self._parsed[path] = parse_text(path, self.documents[path].text, self._parsed.get(path))
        return parsed

    # --- programs

    def program(self, path: str) -> tuple[str, ...]:
        """Return the files that are compiled together with this one."""
        changed = self._programs is None
        for file, document in self.documents.items():
            parsed = self._parse(file)
            cached = self._facts.get(file)
            if cached is None or cached[0] is not parsed:
                facts = facts_of(parsed.tree, document.text)
                changed = changed or cached is None or cached[1] != facts
                self._facts[file] = (parsed, facts)
        if self._programs is None or changed:
            self._programs = programs({file: facts for file, (_, facts) in self._facts.items()})
        return self._programs[path]

    def index(self, path: str) -> ProgramIndex:
        """Return the analysis of the program that a file belongs to, with the meanings of its names."""
        return self._index(self.program(path))

    def _index(self, program: tuple[str, ...]) -> ProgramIndex:
        if program not in self._indexes:
            files = {file: self._parse(file) for file in program}
            self._indexes[program] = analyse(files, self.documents)
        return self._indexes[program]

    def surroundings(self, path: str) -> ProgramIndex:
        """Return the names available in a file: its program and the other files of its folder, whose names come second."""
        folder = str(Path(path).parent)
        others = sorted(other for other in self.documents if str(Path(other).parent) == folder)
        order = dict.fromkeys([path, *self.program(path), *others])
        files = {file: self._parse(file) for file in order}
        namespaces = (name for _, facts in self._facts.values() for name in facts.namespaces)
        return collect(files, self.documents, namespaces, self.index(path))

    def indexes(self) -> Iterable[ProgramIndex]:
        """Return the analyses of all programs."""
        return [self._index(program) for program in sorted({self.program(path) for path in self.documents})]

    def diagnostics(self, path: str) -> list[Diagnostic]:
        return self.index(path).diagnostics[path]


# --- programs: files of one folder belong together when one names what another declares ------------------------------

_NAME = re.compile(r"(?<![\w.$\"])(?P<qualifier>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Za-z_]\w*)(?=\s*\()")


@dataclass(frozen=True, slots=True)
class Facts:
    """The declarations of a file, and the names that it needs from elsewhere."""

    namespaces: frozenset[str]
    declared: frozenset[str]
    needed_namespaces: frozenset[str]
    needed_names: frozenset[str]


def facts_of(file: nodes.File, text: str) -> Facts:
    """Collect the facts of a file; names come from its text, so that a broken file stays in its program."""
    namespaces: set[str] = set()
    declared: set[str] = set()
    needed: set[str] = set()
    for item in _items(file.items):
        match item:
            case nodes.Namespace(name):
                namespaces.add(name.text)
            case nodes.Facet() | nodes.Schema():
                declared.add(item.name.text)
            case nodes.Use(name):
                needed.add(name.text)
            case _:
                pass
    words = {(match["qualifier"].rstrip("."), match["name"]) for match in _NAME.finditer(text)}
    types = {type_name for item in _items(file.items) for type_name in _types(item)}
    needed |= {qualifier for qualifier, _ in words if qualifier}
    needed |= {type_name.rpartition(".")[0] for type_name in types if "." in type_name}
    names = {name for qualifier, name in words if not qualifier} | {type_name for type_name in types if "." not in type_name}
    return Facts(frozenset(namespaces), frozenset(declared), frozenset(needed - namespaces), frozenset(names - declared))


def _items(items: Iterable[nodes.Namespace | nodes.Item]) -> Iterator[nodes.Namespace | nodes.Item]:
    for item in items:
        yield item
        if isinstance(item, nodes.Namespace):
            yield from item.items


def _types(item: nodes.Namespace | nodes.Item) -> Iterator[str]:
    if isinstance(item, nodes.Facet | nodes.Schema):
        for param in item.params + (item.returns if isinstance(item, nodes.Facet) else ()):
            yield nodes.named_type(param.type).name


def programs(facts: dict[str, Facts]) -> dict[str, tuple[str, ...]]:
    """Return for each file the files of its program, sorted."""
    folders: dict[str, list[str]] = {}
    for path in sorted(facts):
        folders.setdefault(str(PurePath(path).parent), []).append(path)
    groups: dict[str, tuple[str, ...]] = {}
    for paths in folders.values():
        groups.update(_groups(paths, facts))
    owners: dict[str, set[str]] = {}
    for path, file_facts in facts.items():
        for namespace in file_facts.namespaces:
            owners.setdefault(namespace, set()).add(path)
    return {path: _closure(group, groups, owners, facts) for path, group in groups.items()}


def _groups(paths: list[str], facts: dict[str, Facts]) -> dict[str, tuple[str, ...]]:
    """Join the files of one folder that belong together."""
    leader = {path: path for path in paths}

    def find(path: str) -> str:
        while leader[path] != path:
            path = leader[path]
        return path

    homes: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        for namespace in facts[path].namespaces:
            homes.setdefault(("namespace", namespace), []).append(path)
        for name in facts[path].declared:
            homes.setdefault(("name", name), []).append(path)
    for path in paths:
        mine = facts[path]
        wanted = [("namespace", namespace) for namespace in mine.needed_namespaces | mine.namespaces]
        wanted += [("name", name) for name in mine.needed_names]
        for other in {other for key in wanted for other in homes.get(key, ())}:
            leader[find(other)] = find(path)
    members: dict[str, list[str]] = {}
    for path in paths:
        members.setdefault(find(path), []).append(path)
    return {path: tuple(members[find(path)]) for path in paths}


def _closure(
    group: tuple[str, ...], groups: dict[str, tuple[str, ...]], owners: dict[str, set[str]], facts: dict[str, Facts]
) -> tuple[str, ...]:
    """Add the files that declare needed namespaces, and their dependencies."""
    files = set(group)
    queue = list(group)
    while queue:
        here = {namespace for path in files for namespace in facts[path].namespaces}
        for namespace in facts[queue.pop()].needed_namespaces - here:
            for owner in owners.get(namespace, ()):
                more = set(groups[owner]) - files
                files |= more
                queue += sorted(more)
    return tuple(sorted(files))
