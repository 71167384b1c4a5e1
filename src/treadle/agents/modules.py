"""The loader of handler modules: only from allowed roots, once per checksum, again when the checksum changes.

The roots are those of the machine (`TREADLE_HANDLER_ROOTS`); nothing in a registration or in the store can add one. Installed
packages, virtual environments and the standard library are never allowed, even below a root, and neither is an entry point that
a handler module imported from there.

A module is cached by (module_uri, checksum), and its entry point is looked up at each call. A module that the process has already
imported is used as it is; a new checksum creates a new module object from the current file, and running functions keep the old
one. A failed import is retried with the next task; an import that hangs is abandoned, and fails its later tasks immediately.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from urllib.parse import unquote, urlparse

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from treadle.agents.invoke import check_facet_name
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.records import HandlerRegistration
from treadle.model.values import encode

_LOWER_BOUNDS = (">=", ">", "~=", "==", "===")
_UPPER_BOUNDS = ("<=", "<", "~=", "==", "===")


def check_requirement(text: object) -> str:
    """Parse a requirement; raise `InvalidInput` if pip could not parse it either."""
    try:
        if not isinstance(text, str):
            raise InvalidRequirement(f"a requirement is text, not {type(text).__name__}")
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"The requirement {text!r} is invalid: {reason}. Write it like requests>=2.31,<3.") from None
    return text


def missing_requirements(requirements: Sequence[str]) -> list[str]:
    """Return the unmet requirements, each with the reason.

    A requirement with a marker that does not apply here is met. The dependencies of its extras must be installed as well.
    """
    missing: list[str] = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            missing.append(f"{text} (invalid)")
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            missing += [f"{text} ({problem})" for problem in _problems(requirement, set())]
    return missing


def _problems(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the problems of the installed package, then those of its extras."""
    try:
        package = distribution(requirement.name)
    except PackageNotFoundError:
        yield "not installed"
        return
    if (unfit := _unfit(requirement.specifier, package.version)) is not None:
        yield unfit
    for extra in sorted(requirement.extras):
        if (key := (canonicalize_name(requirement.name), canonicalize_name(extra))) not in seen:
            seen.add(key)
            yield from _lacks(package, extra, seen)


def _lacks(package: Distribution, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the unmet dependencies of an extra of an installed package."""
    offered = {canonicalize_name(name) for name in package.metadata.get_all("Provides-Extra") or ()}
    if canonicalize_name(extra) not in offered:
        yield f"{package.version} has no extra {extra}"
        return
    for text in package.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate() or not needed.marker.evaluate({"extra": extra}):
            continue  # not a dependency of the extra
        for problem in _problems(needed, seen):
            yield f"its extra {extra} needs {needed.name}{needed.specifier}: {problem}"


def _unfit(wanted: SpecifierSet, installed: str) -> str | None:
    """Return the reason why the installed version does not match; None if it does. Pre-releases count like releases."""
    try:
        version = Version(installed)
    except InvalidVersion:
        return f"{installed} is installed, which is not a comparable version"
    failed = [specifier for specifier in wanted if not specifier.contains(version, prereleases=True)]
    if not failed:
        return None
    for specifier in failed:
        try:
            bound = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:
            continue
        if specifier.operator in _LOWER_BOUNDS and version < bound:
            return f"{installed} is installed, which is too old"
        if specifier.operator in _UPPER_BOUNDS and version > bound:
            return f"{installed} is installed, which is too new"
    return f"{installed} is installed"


_TEXTS = {"module_uri": 1000, "entrypoint": 200, "version": 200, "checksum": 200}
"""The longest texts of a registration."""


def check_registration(registration: HandlerRegistration) -> None:
    """Reject a registration that no runner could use, regardless of the module's location."""
    check_facet_name(registration.facet_name)
    if not isinstance(registration.module_uri, str) or not registration.module_uri.strip():
        raise InvalidInput("A handler needs a module_uri: package.module, or file:///path/to/module.py.")
    for name, limit in _TEXTS.items():
        if len(text := str(getattr(registration, name))) > limit or not text.isprintable():
            raise InvalidInput(f"The {name} of a handler has up to {limit} printable characters.")
    if not isinstance(registration.entrypoint, str) or not registration.entrypoint.isidentifier():
        raise InvalidInput(f"The entry point {registration.entrypoint!r} is not a function name.")
    if type(registration.timeout_ms) is not int or not 0 < registration.timeout_ms <= 24 * 3_600_000:
        raise InvalidInput(f"timeout_ms must be from 1 to 86,400,000 (a day), not {registration.timeout_ms!r}.")
    for requirement in registration.requirements:
        check_requirement(requirement)
    if not isinstance(registration.metadata, dict):
        raise InvalidInput(f"metadata is a dict, not {type(registration.metadata).__name__}.")
    registration.check_readable()
    encode(registration.metadata, "metadata")


_CHECKSUM = "__treadle_checksum__"
IMPORT_LIMIT = 10.0
"""Seconds that an import may take before it counts as hanging."""


class OutsideRoots(InvalidInput, code="module_outside_roots"):
    """The module is outside the folders that handlers may be loaded from."""


def runner_roots(configured: Sequence[str | Path]) -> tuple[str, ...]:
    """The configured roots, or else the folder in which an administrator starts the runner, unless that is `/`."""
    here = Path.cwd()
    return tuple(map(str, configured)) or ((str(here),) if here != Path(here.anchor) else ())


class Modules:
    """The handler modules of one process; thread-safe."""

    def __init__(self, roots: Sequence[str | Path] = ()) -> None:
        self.roots = tuple(Path(root).resolve() for root in roots)
        self._loads: dict[tuple[str, str], Future[ModuleType]] = {}
        self._hanging: set[Future[ModuleType]] = set()
        self._lock = threading.Lock()

    def find(
        self, registration: HandlerRegistration, *, in_thread: bool = False, limit: float = IMPORT_LIMIT
    ) -> Callable[..., Any]:
        """Return the entry point, loading its module if necessary; raise `NonRetryable` with the reason if that fails.

        With `in_thread`, import the module in a thread, and abandon it after `limit` seconds.
        """
        module = self._module(registration, in_thread, limit)
        function = getattr(module, registration.entrypoint, None)
        if not callable(function) or not self._is_own(function, module):
            raise NonRetryable(
                f"The module {registration.module_uri} has no function {registration.entrypoint} of its own, the entry point of "
                f"{registration.facet_name}.",
                "entrypoint_missing",
            )
        entrypoint: Callable[..., Any] = function
        return entrypoint

    def locate(self, module_uri: str) -> Path:
        """Return the file of the module; raise `OutsideRoots`, or `InvalidInput` if there is none."""
        try:
            return self._locate(module_uri)
        except InvalidInput:
            raise
        except (OSError, ValueError) as error:  # such as a name that is too long for a file
            raise InvalidInput(f"{module_uri[:200]!r} cannot be the name of a module or a file: {error}"[:500]) from None

    def _locate(self, module_uri: str) -> Path:
        if module_uri.startswith("file:"):
            return self._locate_file(module_uri)
        parts = module_uri.split(".")
        if not all(part.isidentifier() for part in parts):
            raise InvalidInput(f"{module_uri!r} is neither a module like package.module nor a URI like file:///path/to/module.py.")
        for root in self.roots:
            base = root.joinpath(*parts)
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    return self._inside(path, module_uri)
        if parts[0] in sys.builtin_module_names or self._is_elsewhere(parts[0]):
            raise OutsideRoots(f"The module {module_uri} is not below {self._shown()}; set TREADLE_HANDLER_ROOTS to allow more.")
        raise InvalidInput(f"There is no module {module_uri} below {self._shown()}.")

    def _is_elsewhere(self, name: str) -> bool:
        """Whether this process could import the module, but not from a root; without roots, only installed ones count."""
        spec = importlib.machinery.PathFinder.find_spec(name)
        places = [] if spec is None else [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
        return any(self.roots or _is_installed(Path(place)) for place in places)

    def _locate_file(self, uri: str) -> Path:
        parsed = urlparse(uri)
        path = Path(unquote(parsed.path))
        if parsed.netloc not in ("", "localhost") or not path.is_absolute():
            raise InvalidInput(f"{uri!r} is not a local file URI like file:///path/to/module.py.")
        inside = self._inside(path, uri)
        if not inside.is_file():
            raise InvalidInput(f"There is no file {path}.")
        return inside

    def _inside(self, path: Path, shown: str) -> Path:
        resolved = path.resolve()
        if not any(resolved.is_relative_to(root) for root in self.roots):
            raise OutsideRoots(f"{shown} is not below {self._shown()}; set TREADLE_HANDLER_ROOTS to allow more.")
        if _is_installed(resolved):
            raise OutsideRoots(f"{shown} belongs to an installed package or a virtual environment, which handlers never load from.")
        return resolved

    def _is_own(self, function: Any, module: ModuleType) -> bool:
        """Whether a function or class was defined below the roots, and not imported from an installed package."""
        if not isinstance(function, FunctionType | BuiltinFunctionType | type):
            return True  # an object that the module made
        home = sys.modules.get(function.__module__ or "")
        if function.__module__ == module.__name__ or home is module:
            return True
        file = getattr(home, "__file__", None)
        return (
            file is not None
            and any(Path(file).resolve().is_relative_to(root) for root in self.roots)
            and not _is_installed(Path(file))
        )

    def _shown(self) -> str:
        return " or ".join(str(root) for root in self.roots) or "a handler root, because there is none on this machine"

    def _module(self, registration: HandlerRegistration, in_thread: bool, limit: float) -> ModuleType:
        uri, key = registration.module_uri, (registration.module_uri, registration.checksum)
        with self._lock:
            first = key not in self._loads
            load = self._loads.setdefault(key, Future())
        if first and in_thread:
            threading.Thread(target=self._load, args=(key, load), name=f"treadle-import-{uri}", daemon=True).start()
        elif first:
            self._load(key, load)
        try:
            error = load.exception(0 if load in self._hanging else limit)
        except TimeoutError:
            self._hanging.add(load)
            raise NonRetryable(
                f"The import of {uri} did not finish within {limit:g} s and was abandoned.", "import_timeout"
            ) from None
        if error is not None:
            code = error.code if isinstance(error, OutsideRoots) else "import_failed"
            reason = str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"
            raise NonRetryable(f"The module {uri} cannot be loaded: {reason}", code) from error
        return load.result()

    def _load(self, key: tuple[str, str], load: Future[ModuleType]) -> None:
        uri = key[0]
        try:
            module = _module(uri, self.locate(uri), self.roots, key[1])
        except BaseException as error:
            with self._lock:
                self._loads.pop(key, None)  # it may be repaired: the next task tries again
            load.set_exception(error)
            return
        with self._lock:
            for other in [other for other in self._loads if other[0] == uri and other != key and self._loads[other].done()]:
                del self._loads[other]
        load.set_result(module)


class _FreshLoader(importlib.machinery.SourceFileLoader):
    """Loads always from source: the bytecode cache distinguishes versions only by whole seconds."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _is_installed(path: Path) -> bool:
    """Whether the file belongs to an installed package, the standard library or any virtual environment."""
    resolved = path.resolve()
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (
        not {"site-packages", "dist-packages"}.isdisjoint(resolved.parts)
        or any(resolved.is_relative_to(library) for library in libraries)
        or any((parent / "pyvenv.cfg").is_file() for parent in resolved.parents)
    )


def _module(uri: str, path: Path, roots: tuple[Path, ...], checksum: str) -> ModuleType:
    """Return the module of the file: the one that this process has already imported, unless it is that of another checksum."""
    for root in roots:
        if str(root) not in sys.path:
            sys.path.append(str(root))  # for imports of modules beside the handler module
    if (module := _imported(path, checksum)) is None:
        name = _name_of(path, roots) if uri.startswith("file:") else uri
        if parent := name.rpartition(".")[0]:
            importlib.import_module(parent)  # which may import the module
        module = _imported(path, checksum) or _execute(name, path)
    setattr(module, _CHECKSUM, checksum)
    return module


def _imported(path: Path, checksum: str) -> ModuleType | None:
    """Return the imported module of that file, unless it was loaded for another checksum."""
    plain = (module for module in list(sys.modules.values()) if type(module) is ModuleType)
    same = (module for module in plain if str(module.__dict__.get("__file__")).endswith(path.name) and _file_of(module) == path)
    return next((module for module in same if module.__dict__.get(_CHECKSUM, checksum) == checksum), None)


def _file_of(module: ModuleType) -> Path | None:
    file = module.__dict__.get("__file__") if type(module) is ModuleType else None
    return Path(file).resolve() if isinstance(file, str) else None


def _name_of(path: Path, roots: tuple[Path, ...]) -> str:
    """Return the name of a file's module, within a package made of its root, so that relative imports find its siblings."""
    base = next((root for root in roots if path.is_relative_to(root)), path.parent)
    if any("." in part for part in path.relative_to(base).parent.parts):
        base = path.parent
    package = f"treadle_handler_{hashlib.sha256(str(base).encode()).hexdigest()[:16]}"
    if package not in sys.modules and (base / "__init__.py").is_file() and path.name != "__init__.py":
        _execute(package, base / "__init__.py")
    elif package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(base)]
    parts = [package, *path.relative_to(base).parent.parts]
    return ".".join([*parts, path.stem.replace(".", "_")] if path.name != "__init__.py" else parts)


def _execute(name: str, path: Path) -> ModuleType:
    """Create a new module object from the file. It is in `sys.modules` unless another module has that name."""
    package = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_FreshLoader(name, str(path)), submodule_search_locations=package
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    own = before is None or _file_of(before) == path
    if own:
        sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if own and before is None:
            sys.modules.pop(name, None)
        elif own and before is not None:
            sys.modules[name] = before
        raise
    return module
