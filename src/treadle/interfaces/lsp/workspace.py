"""The files of a workspace, open ones as the editor shows them, and the analysis of the program of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pygls import uris

from treadle.interfaces.lsp.analysis import Analysis, Parsed, Parser, analyse, collect
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Index
from treadle.interfaces.lsp.projects import Facts, facts_of, programs
from treadle.lang.diagnostics import Diagnostic

_SKIPPED = frozenset([".git", ".venv", "node_modules", "__pycache__"])
_MOST_FILES = 5000


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
        self._parser = Parser()
        self._facts: dict[str, tuple[Parsed, Facts]] = {}
        self._programs: dict[str, tuple[str, ...]] | None = None
        self._indexes: dict[tuple[str, ...], Index] = {}

    # --- files

    def set(self, path: str, document: Document | None) -> None:
        """Replace the text of a file; None: it is gone."""
        if document is None:
            self.documents.pop(path, None)
            self._parser.forget(path)
            self._facts.pop(path, None)
            self._programs = None
        else:
            self.documents[path] = document
        for program in [each for each in self._indexes if path in each]:
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
        found = 0
        for path in sorted(folder.rglob("*.afl")):
            if not _SKIPPED.intersection(path.relative_to(folder).parts) and path.is_file():
                yield str(path)
                found += 1
                if found == _MOST_FILES:
                    return

    # --- programs

    def program(self, path: str) -> tuple[str, ...]:
        """Return the files that are compiled together with this one."""
        changed = self._programs is None
        for each, document in self.documents.items():
            parsed = self._parser.parse(each, document.text)
            known = self._facts.get(each)
            if known is None or known[0] is not parsed:
                facts = facts_of(parsed.tree, document.text)
                changed = changed or known is None or known[1] != facts
                self._facts[each] = (parsed, facts)
        if self._programs is None or changed:
            self._programs = programs({each: facts for each, (_, facts) in self._facts.items()})
        return self._programs[path]

    def index(self, path: str) -> Index:
        """Return the analysis of the program that a file belongs to, with the meanings of its names."""
        return self._index(self.program(path))

    def _index(self, program: tuple[str, ...]) -> Index:
        if program not in self._indexes:
            files = {each: self._parser.parse(each, self.documents[each].text) for each in program}
            self._indexes[program] = Index(analyse(files), self.documents)
        return self._indexes[program]

    def surroundings(self, path: str) -> Index:
        """Return the names available in a file: its program and the other files of its folder, whose names come second."""
        folder = str(Path(path).parent)
        others = sorted(each for each in self.documents if str(Path(each).parent) == folder)
        order = dict.fromkeys([path, *self.program(path), *others])
        files = {each: self._parser.parse(each, self.documents[each].text) for each in order}
        namespaces = (name for _, facts in self._facts.values() for name in facts.namespaces)
        return Index(collect(files), self.documents, namespaces, self.index(path))

    def indexes(self) -> Iterable[Index]:
        """Return the analyses of all programs."""
        return [self._index(each) for each in sorted({self.program(path) for path in self.documents})]

    def diagnostics(self, path: str) -> list[Diagnostic]:
        return self.analysis(path).diagnostics[path]

    def analysis(self, path: str) -> Analysis:
        return self.index(path).analysis
