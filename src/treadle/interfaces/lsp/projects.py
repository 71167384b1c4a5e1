"""Decides which files form one program, because a workspace usually contains several.

Files of one folder belong together when one names what another declares, or when they open the same namespace. A namespace
that no file of the folder declares is looked up in the rest of the workspace; the files that declare it are then part of the
program, but not the other way round, so that two programs may use one library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from treadle.lang import tree

_NAME = re.compile(r"(?<![\w.$\"])(?P<qualifier>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Za-z_]\w*)(?=\s*\()")


@dataclass(frozen=True, slots=True)
class Facts:
    """The declarations of a file, and the names that it needs from elsewhere."""

    namespaces: frozenset[str]
    declared: frozenset[str]
    needed_namespaces: frozenset[str]
    needed_names: frozenset[str]


def facts_of(file: tree.File, text: str) -> Facts:
    """Collect the facts of a file; names come from its text, so that a broken file stays in its program."""
    namespaces: set[str] = set()
    declared: set[str] = set()
    needed: set[str] = set()
    for item in _items(file.items):
        match item:
            case tree.Namespace(name):
                namespaces.add(name.text)
            case tree.Facet() | tree.Schema():
                declared.add(item.name.text)
            case tree.Use(name):
                needed.add(name.text)
            case _:
                pass
    words = {(match["qualifier"].rstrip("."), match["name"]) for match in _NAME.finditer(text)}
    types = {each for item in _items(file.items) for each in _types(item)}
    needed |= {qualifier for qualifier, _ in words if qualifier}
    needed |= {each.rpartition(".")[0] for each in types if "." in each}
    names = {name for qualifier, name in words if not qualifier} | {each for each in types if "." not in each}
    return Facts(frozenset(namespaces), frozenset(declared), frozenset(needed - namespaces), frozenset(names - declared))


def _items(items: Iterable[tree.Namespace | tree.Item]) -> Iterator[tree.Namespace | tree.Item]:
    for item in items:
        yield item
        if isinstance(item, tree.Namespace):
            yield from item.items


def _types(item: tree.Namespace | tree.Item) -> Iterator[str]:
    match item:
        case tree.Facet():
            params = item.params + item.returns
        case tree.Schema():
            params = item.fields
        case _:
            return
    for param in params:
        type_ = tree.named_type(param.type)
        if isinstance(type_, tree.NamedType):
            yield type_.name.text


def programs(facts: dict[str, Facts]) -> dict[str, tuple[str, ...]]:
    """Return for each file the files of its program, sorted."""
    folders: dict[str, list[str]] = {}
    for path in sorted(facts):
        folders.setdefault(str(PurePath(path).parent), []).append(path)
    groups: dict[str, tuple[str, ...]] = {}
    for paths in folders.values():
        groups.update(_groups(paths, facts))
    owners: dict[str, set[str]] = {}
    for path, each in facts.items():
        for namespace in each.namespaces:
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
        wanted = [("namespace", each) for each in mine.needed_namespaces | mine.namespaces]
        wanted += [("name", each) for each in mine.needed_names]
        for other in {other for key in wanted for other in homes.get(key, ())}:
            leader[find(other)] = find(path)
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(find(path), []).append(path)
    return {path: tuple(found[find(path)]) for path in paths}


def _closure(
    group: tuple[str, ...], groups: dict[str, tuple[str, ...]], owners: dict[str, set[str]], facts: dict[str, Facts]
) -> tuple[str, ...]:
    """Add the files that declare needed namespaces, and what these need in turn."""
    found = set(group)
    left = list(group)
    while left:
        here = {namespace for path in found for namespace in facts[path].namespaces}
        for namespace in facts[left.pop()].needed_namespaces - here:
            for owner in owners.get(namespace, ()):
                more = set(groups[owner]) - found
                found |= more
                left += sorted(more)
    return tuple(sorted(found))
