"""Render docstrings and signatures as Markdown, for pages that are read without the site: in the repository and by models.

A page marks each name with `<!-- python: treadle.Engine -->` and `<!-- /python -->`; `docs.generate` fills the lines between.
On the site, `build_tools/site_hooks.py` replaces them by a directive of mkdocstrings, which renders the same docstrings. Words
after the name are options: `fields` shows undocumented attributes, `brief` no members, `-name` hides a member (`-__init__` the
constructor), and `+name` shows only such members.
`<!-- options: treadle.api.options.EnqueueOptions -->` marks a table of options.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import griffe

SOURCES = Path(__file__).parents[1] / "src"
_BLOCK = re.compile(r"<!-- (?P<kind>python|options): (?P<path>\S+)(?P<flags>[^>]*?) -->\n.*?<!-- /(?P=kind) -->", re.S)
_DOC = re.compile(r"^Annotated\[(?P<type>.+?), Doc\((?P<text>(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\s)+)", re.S)
_LINE = 90
_RECORDS = ("NamedTuple", "Struct", "TypedDict", "msgspec.Struct")


def with_python(text: str) -> str:
    """The page with every marked block as the code has it."""
    return _BLOCK.sub(_filled, text)


def marked(text: str) -> list[str]:
    """The paths that a page marks."""
    return [match["path"] for match in _BLOCK.finditer(text)]


def _filled(match: re.Match[str]) -> str:
    made = options_table(match["path"]) if match["kind"] == "options" else described(match["path"], match["flags"].split())
    head = match[0].partition("\n")[0]
    return f"{head}\n{made}\n<!-- /{match['kind']} -->"


@cache
def find(path: str) -> griffe.Object:
    """The definition behind a dotted path, through re-exports; reads only the files on the way."""
    module, _, rest = _module_of(path)
    found: griffe.Object | griffe.Alias = module
    for name in rest.split("."):
        if name in found.members:
            found = found.members[name]
        elif isinstance(found, griffe.Class):
            found = members(found)[name]
        else:
            found = _starred(found, name)
        if isinstance(found, griffe.Alias):
            found = find(found.target_path)
    assert isinstance(found, griffe.Object)
    return found


def _starred(module: griffe.Object | griffe.Alias, name: str) -> griffe.Object:
    """The definition of a name that a module imports with `*`."""
    for each in module.members.values():
        if isinstance(each, griffe.Alias) and each.name.endswith("*"):
            with suppress(LookupError):
                return find(f"{each.target_path}.{name}")
    raise LookupError(f"{module.path} has no {name}.")


def _module_of(path: str) -> tuple[griffe.Module, str, str]:
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        base = SOURCES.joinpath(*parts[:end])
        for place in (base.with_suffix(".py"), base / "__init__.py"):
            if place.is_file():
                return _visited(".".join(parts[:end]), place), ".".join(parts[:end]), ".".join(parts[end:])
    raise LookupError(f"{path} is not in src/.")


@cache
def _visited(name: str, place: Path) -> griffe.Module:
    return griffe.visit(name, filepath=place, code=place.read_text("utf-8"))


def exports(module: str) -> list[str]:
    """The public names of a module: `__all__`, else explicit re-exports (`X as X`), else its own public definitions."""
    base = SOURCES.joinpath(*module.split("."))
    found = _visited(module, next(each for each in (base.with_suffix(".py"), base / "__init__.py") if each.is_file()))
    if found.exports is not None:
        return sorted(str(each) for each in found.exports)
    if again := re.findall(r"^from \S+ import (\w+) as \1$", found.filepath.read_text("utf-8"), re.M):  # type: ignore[union-attr]
        return sorted(again)
    return sorted(name for name, each in found.members.items() if not name.startswith("_") and not each.is_alias and each.docstring)


def members(cls: griffe.Class) -> dict[str, griffe.Object]:
    """The documented public members of a class and of its bases in this package, its own last definition first."""
    found: dict[str, griffe.Object] = {
        name: each
        for name, each in cls.members.items()
        if not each.is_alias and not each.is_module and isinstance(each, griffe.Object)
    }
    for base in cls.bases:
        path = base if isinstance(base, str) else base.canonical_path
        if path.startswith("treadle.") and "[" not in path:
            with suppress(LookupError):  # a class made by a call
                inherited = find(path)
                found = {**members(inherited), **found} if isinstance(inherited, griffe.Class) else found
    return {name: each for name, each in found.items() if not name.startswith("_") or name == "__init__"}


def described(path: str, flags: list[str]) -> str:
    """A heading, the signature, the docstring and the members."""
    found, name = find(path), path.rpartition(".")[2]
    parts = [f"## `{name}`", f"`from {path.rpartition('.')[0]} import {name}`"]
    if isinstance(found, griffe.Function):
        return "\n\n".join([*parts, _code(signature(found, name)), _doc(found)]) + "\n"
    if not isinstance(found, griffe.Class):
        return "\n\n".join([*parts, *([_doc(found)] if found.docstring else [])]) + "\n"
    hidden = {each[1:] for each in flags if each.startswith("-")}
    only = {each[1:] for each in flags if each.startswith("+")} or members(found).keys()
    inside = {key: each for key, each in members(found).items() if key not in hidden and (key in only or key == "__init__")}
    start = inside.pop("__init__", None)
    parts += [] if "__init__" in hidden else [_code(_constructor(found, start, name))]
    parts += [_doc(found)]
    if start is not None and start.docstring:
        parts.append(_doc(start))
    if "brief" in flags:
        return "\n\n".join(filter(None, parts)) + "\n"
    rows = [
        f"| `{key}` | {_cell(str(each.annotation or ''))} | {_cell(each.docstring.value if each.docstring else '')} |"
        for key, each in inside.items()
        if isinstance(each, griffe.Attribute) and (each.docstring or "fields" in flags)
    ]
    if rows:
        parts.append("\n".join(["| attribute | type | meaning |", "|---|---|---|", *rows]))
    for key, each in inside.items():
        if isinstance(each, griffe.Function) and each.docstring:
            parts += [f"### `{name}.{key}`", _code(_specific(found, signature(each, key))), _doc(each)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _specific(cls: griffe.Class, line: str) -> str:
    """A signature with the arguments of a generic base in place of its type variables."""
    for base in cls.bases:
        _, _, arguments = str(base).rstrip("]").partition("[")
        if not arguments or isinstance(base, str) or not base.canonical_path.startswith("treadle."):
            continue
        generic = find(base.canonical_path)
        names = [str(each)[8:-1] for each in getattr(generic, "bases", ()) if str(each).startswith("Generic[")]
        for variable, argument in zip(", ".join(names).split(", "), arguments.split(", "), strict=False):
            line = re.sub(rf"\b{variable}\b", argument, line) if variable else line
    return line


def signature(function: griffe.Function, name: str) -> str:
    """The function's line as a caller needs it: parameters without `self`, and what it returns; overloads one per line."""
    shown = function.overloads or [function]
    return "\n".join(_line(each, name) for each in shown)


def _line(function: griffe.Function, name: str) -> str:
    awaited = "async " if "async" in function.labels else ""
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return f"{awaited}def {name}({_wrapped(_parameters(list(function.parameters)))}){returns}"


def _wrapped(parameters: list[str]) -> str:
    """The parameters in one line, or each in a line of its own if that were long."""
    line = ", ".join(parameters)
    return line if len(line) <= _LINE else "\n    " + ",\n    ".join(parameters) + ",\n"


def _parameters(given: list[griffe.Parameter]) -> list[str]:
    shown, kind = [], None
    for each in given:
        if each.name in ("self", "cls"):
            continue
        if kind is griffe.ParameterKind.positional_only and each.kind is not kind:
            shown.append("/")
        if each.kind is griffe.ParameterKind.keyword_only and kind not in (each.kind, griffe.ParameterKind.var_positional):
            shown.append("*")
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        match = _DOC.match(str(each.annotation))
        annotation = each.annotation if match is None else match["type"]
        text = f"{star}{each.name}" + (f": {annotation}" if annotation is not None else "")
        if each.default is not None and not star:
            text += f" = {each.default}" if each.annotation is not None else f"={each.default}"
        shown.append(text)
        kind = each.kind
    if kind is griffe.ParameterKind.positional_only:
        shown.append("/")
    return shown


def _constructor(cls: griffe.Class, start: griffe.Object | None, name: str) -> str:
    if isinstance(start, griffe.Function):
        return f"class {name}({_wrapped(_parameters(list(start.parameters)))})"
    bases = [str(each) for each in cls.bases]
    if any(each.startswith(_RECORDS) for each in bases) or any("dataclass" in str(each.value) for each in cls.decorators):
        fields = [
            f"{key}: {each.annotation}" + (f" = {each.value}" if each.value is not None else "")
            for key, each in members(cls).items()
            if isinstance(each, griffe.Attribute)
            and each.annotation is not None
            and not ("ClassVar" in str(each.annotation) or "property" in each.labels)
        ]
        return f"class {name}({_wrapped(fields)})"
    return f"class {name}({', '.join(bases)})" if bases else f"class {name}"


def options_table(path: str) -> str:
    """A table of the options of a `TypedDict` whose fields are `Annotated[type, Doc(text)]`, or documented by strings."""
    found = find(path)
    assert isinstance(found, griffe.Class)
    rows = []
    for name, each in members(found).items():
        annotation = str(each.annotation) if isinstance(each, griffe.Attribute) else ""
        match = _DOC.match(annotation)
        kind = match["type"] if match else annotation
        text = str(ast.literal_eval(f"({match['text']})")) if match else (each.docstring.value if each.docstring else "")
        rows.append(f"| `{name}` | {_cell(kind)} | {_cell(text)} |")
    return "\n" + "\n".join(["| option | type | meaning |", "|---|---|---|", *rows]) + "\n"


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _doc(found: griffe.Object) -> str:
    return found.docstring.value.strip() if found.docstring else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
