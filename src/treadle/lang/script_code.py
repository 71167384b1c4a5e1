"""Facts about the Python code of a script: its syntax, its imports, and the keys of `params` and `result` that it uses."""

from __future__ import annotations

import ast
import builtins
import warnings
from dataclasses import dataclass, field
from functools import lru_cache

from treadle.lang import nodes
from treadle.model.scripts import SCRIPT_BUILTINS, SCRIPT_MODULES

_LARGEST = 200_000
"""Characters of code that are read; longer code is not checked."""
_OWN = frozenset(["params", "result"])
_KNOWN = frozenset(SCRIPT_BUILTINS) | {"__import__", "__name__", "__builtins__"}
_IMPORTABLE = frozenset(SCRIPT_MODULES) | {"__future__"}
_READING = frozenset(["copy", "get", "items", "keys", "values"])


@dataclass(slots=True)
class ScriptCode:
    """`writes` and `reads` are keys of `result` and `params` with their lines, counted from 1 in the code.

    `reads_any`: it may read other keys too; `open`: it may write other keys too. `forbidden` are imports that scripts cannot make,
    `undefined` names that the script does not have.
    """

    error: tuple[int, str] | None = None
    writes: dict[str, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    forbidden: dict[str, int] = field(default_factory=dict)
    undefined: dict[str, int] = field(default_factory=dict)
    rebinds: int | None = None
    reads_any: bool = False
    open: bool = False


def read_script(script: nodes.Script) -> ScriptCode:
    """Return the facts about a script; scripts with the same code share them."""
    if len(script.code) > _LARGEST or script.language != nodes.PYTHON:
        return ScriptCode(open=True, reads_any=True)
    return _read(script.code)


@lru_cache(maxsize=512)
def _read(code: str) -> ScriptCode:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes, which Python accepts
            parsed = ast.parse(code)
            compile(parsed, "<script>", "exec", dont_inherit=True)
        reader = _ScriptReader()
        reader.visit(parsed)
    except SyntaxError as error:
        return ScriptCode(error=(error.lineno or 1, error.msg), open=True, reads_any=True)
    except (ValueError, OverflowError, MemoryError, RecursionError):
        return ScriptCode(open=True, reads_any=True)
    return reader.finish()


class _ScriptReader(ast.NodeVisitor):
    def __init__(self) -> None:
        self._found = ScriptCode()
        self._bound: set[str] = set(_OWN)
        self._loaded: dict[str, int] = {}
        self._replaced: set[str] = set()
        self._any_name = False

    def finish(self) -> ScriptCode:
        code = self._found
        if not self._any_name:
            code.undefined = {name: line for name, line in self._loaded.items() if name not in self._bound and name not in _KNOWN}
        code.reads = {name: line for name, line in code.reads.items() if name not in self._replaced}
        return code

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._bound.add(alias.asname or alias.name.partition(".")[0])
            self._check_import(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._check_import("." * node.level + (node.module or ""), node.lineno)
        for alias in node.names:
            self._bound.add(alias.asname or alias.name)
            self._any_name = self._any_name or alias.name == "*"

    def _check_import(self, module: str, line: int) -> None:
        if module not in _IMPORTABLE:
            self._found.forbidden.setdefault(module, line)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._loaded.setdefault(node.id, node.lineno)
            if node.id == "result":
                self._found.open = True  # passed on: anything may be written
            elif node.id == "params":
                self._found.reads_any = True
        else:
            self._bound.add(node.id)
            if node.id == "result":
                self._found.rebinds = self._found.rebinds or node.lineno
                self._found.open = True

    def visit_Subscript(self, node: ast.Subscript) -> None:
        own = node.value.id if isinstance(node.value, ast.Name) else ""
        if own not in _OWN or not isinstance(node.slice, ast.Constant):
            self.generic_visit(node)
            return
        key, store = node.slice.value, isinstance(node.ctx, ast.Store)
        if isinstance(key, str) and own == "result" and store:
            self._found.writes.setdefault(key, node.lineno)
        elif isinstance(key, str) and own == "params":
            if store:
                self._replaced.add(key)
            else:
                self._found.reads.setdefault(key, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id == "result" and node.attr in _READING):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        method, first = node.func, node.args[0] if node.args else None
        on = method.value.id if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name) else ""
        called = method.attr if isinstance(method, ast.Attribute) else ""
        key = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
        rest = node.args[1:]
        if (on, called) == ("params", "get") and key is not None:
            self._found.reads.setdefault(key, node.lineno)
        elif (on, called) == ("result", "setdefault") and key is not None:
            self._found.writes.setdefault(key, node.lineno)
        elif (on, called) == ("result", "update") and len(node.args) < 2 and (first is None or self._add_keys(first)):
            for keyword in node.keywords:
                if keyword.arg is None:
                    self._found.open = True
                else:
                    self._found.writes.setdefault(keyword.arg, node.lineno)
            rest = [*node.args, *(keyword.value for keyword in node.keywords)]
        else:
            self.generic_visit(node)
            return
        for part in rest:
            self.visit(part)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id == "result" and isinstance(node.op, ast.BitOr):
            self._found.open = not self._add_keys(node.value) or self._found.open
            self.visit(node.value)
        else:
            self.generic_visit(node)

    def _add_keys(self, node: ast.expr) -> bool:
        """Add the keys of a dict display; return whether all are known."""
        keys = node.keys if isinstance(node, ast.Dict) else [None]
        for key in keys:
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                return False
            self._found.writes.setdefault(key.value, node.lineno)
        return True

    def visit_arg(self, node: ast.arg) -> None:
        self._bind(node.arg)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._bind(node.name)
        self.generic_visit(node)

    def _bind(self, name: str | None) -> None:
        """Note a name that a statement binds; a local `result` or `params` hides the script's own."""
        if name is not None:
            self._bound.add(name)
            self._found.open = self._found.open or name == "result"

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.MatchAs | ast.MatchStar):
            self._bind(node.name)
        elif isinstance(node, ast.MatchMapping):
            self._bind(node.rest)
        super().visit(node)


def has_builtin(name: str) -> bool:
    """Return whether Python has a built-in of this name, which scripts may lack."""
    return hasattr(builtins, name)
