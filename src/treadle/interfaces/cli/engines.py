"""Find engines: from `package.module` or `path/to/file.py`, optionally `:name`, to the engine in it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from treadle.engine import Engine, use_store
from treadle.engine.registration import program_of
from treadle.interfaces.cli.session import CommandSession
from treadle.model.errors import InvalidInput, TreadleError


def load_engines(session: CommandSession, places: Sequence[str]) -> list[Engine]:
    """Load the engines of the modules onto the chosen store; the first one gets the handlers of all.

    Without `--store` and `TREADLE_STORE`, each keeps the store set in its module. Returns at least one engine.
    """
    _search_working_folder()
    engines = []
    for place in dict.fromkeys(places):
        engine = _find_engine(place)
        engine.declare.program = engine.declare.program or program_of(place.rpartition(":")[0] or place)
        engines.append(engine)
    if not engines:
        return [Engine(session.settings.store, settings=session.settings)]
    for engine in dict.fromkeys(engines):
        own, chosen = engine.kernel.settings, session.chosen
        use_store(engine, chosen.store, replace(own, namespace=chosen.namespace or own.namespace, store=chosen.store or own.store))
    first, *others = dict.fromkeys(engines)
    for other in others:
        for handler in other.kernel.registry:
            first.kernel.registry.add(handler)
        for function in other.kernel.function_registry:
            first.kernel.function_registry.add(function)
        for gate in other.goals.gates:
            first.goals.gates.add(gate)
    first.declare.others = [other.declare for other in others]
    return [first, *others]


def load_place(target: str) -> ModuleType:
    """Import the module `package.module` or `path/to/file.py`."""
    _search_working_folder()
    return _load_file(Path(target)) if target.endswith(".py") or "/" in target else _load_module(target)


def _search_working_folder() -> None:
    """Let imports find the modules of the working folder, also those that are registered in the store or named in a topology."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _find_engine(place: str) -> Engine:
    target, colon, name = place.rpartition(":")
    if not colon:
        target, name = place, ""
    module = load_place(target)
    if name:
        engine = getattr(module, name, None)
        if not isinstance(engine, Engine):
            raise InvalidInput(
                f"{name} in {target} is not an Engine; give one as --handlers {target}:NAME.", code="handlers_not_found"
            )
        return engine
    engines_by_id = {id(value): (key, value) for key, value in vars(module).items() if isinstance(value, Engine)}
    if not engines_by_id:
        raise InvalidInput(
            f"There is no Engine in {target}. Add `engine = Engine()` and decorate functions with `@engine.handler(...)`.",
            code="handlers_not_found",
        )
    if len(engines_by_id) > 1:
        names = ", ".join(key for key, _ in engines_by_id.values())
        raise InvalidInput(
            f"There are several engines in {target} ({names}); choose one with --handlers {target}:NAME.", code="handlers_not_found"
        )
    return next(iter(engines_by_id.values()))[1]


def _load_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(
            f"{name!r} is neither a module like package.module nor a file like path/to/file.py.", code="handlers_not_found"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidInput(
                f"There is no module {name} in {Path.cwd()} or among the installed packages.", code="handlers_not_found"
            ) from None
        raise _broken(name, error) from error
    except TreadleError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _load_file(path: Path) -> ModuleType:
    """Import the file under its own name from its own folder, so that other processes find the handlers too."""
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.", code="handlers_not_found")
    name, folder = path.stem, str(path.resolve().parent)
    if not name.isidentifier():
        raise InvalidInput(
            f"{path} cannot be imported: its name must be letters, digits and underscores.", code="handlers_not_found"
        )
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _load_module(name)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise InvalidInput(
            f"{path} cannot be imported: there is another module {name}; rename the file.", code="handlers_not_found"
        )
    return module


def _broken(name: str, error: Exception) -> InvalidInput:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({last.filename}:{last.lineno})"
    return InvalidInput(
        f"{name} raised on import: {type(error).__name__}: {error}{place}. --verbose shows the traceback.", code="handlers_broken"
    )
