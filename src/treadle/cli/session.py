"""What every command has in common: its options, its settings, an open engine, and one way to show what it found."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pwd
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from treadle.cli.logs import set_up_logging
from treadle.model.names import check_name
from treadle.model.values import Json
from treadle.settings import Settings, load_settings
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

P = ParamSpec("P")
PANEL = "Common options"

_STORE_HELP = "sqlite:///path, postgresql://... or memory://; default sqlite:///treadle.db"
_NAMESPACE_HELP = "Which namespace of the store; default: default"

StoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=_STORE_HELP, rich_help_panel=PANEL)]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help=_NAMESPACE_HELP, rich_help_panel=PANEL)]
RootStoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", envvar="TREADLE_STORE", help=_STORE_HELP)]
RootNamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", envvar="TREADLE_NAMESPACE", help=_NAMESPACE_HELP)
]
"""Only the root reads the environment: an option before the command's name must win over a variable."""
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output, errors too", rich_help_panel=PANEL)]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more; tracebacks for errors", rich_help_panel=PANEL)]
RootJsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output, errors too")]
RootVerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more; tracebacks for errors")]


@dataclass(frozen=True)
class Common:
    """The options that can be given before or after the command's name."""

    store: str | None = None
    namespace: str | None = None
    json: bool = False
    verbose: bool = False
    typed_store: str | None = None
    """The store if it was typed, and not taken from the environment."""

    def over(self, other: Common) -> Common:
        """These options, and the other's where these say nothing."""
        return Common(
            self.store or other.store,
            self.namespace or other.namespace,
            self.json or other.json,
            self.verbose or other.verbose,
            self.store or other.typed_store,
        )


@dataclass(frozen=True)
class Session:
    """One run of one command."""

    chosen: Common
    settings: Settings

    @property
    def json(self) -> bool:
        """Whether output is for machines."""
        return self.chosen.json

    @cached_property
    def actor(self) -> str:
        """Who the log says did it."""
        try:
            return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
        except KeyError:
            return f"cli:{os.getuid()}"

    @cached_property
    def console(self) -> Console:
        """Where people read; wide when nobody does, so that lines stay whole for `grep`."""
        from rich.console import Console

        console = Console(markup=False, highlight=False, emoji=False)
        return console if console.is_terminal else Console(markup=False, highlight=False, emoji=False, width=240)

    def again(self, command: str, **options: object) -> str:
        """How to type that command with these options, on the same store; what is None, False or empty is not said."""
        chosen = {"store": self.chosen.typed_store, "namespace": self.chosen.namespace}
        words = ["treadle", *command.split()]
        for name, value in (options | chosen).items():
            values = value if isinstance(value, list | tuple) else [] if value in (None, False) else [value]
            for each in values:
                words += [f"--{name.replace('_', '-')}", *([] if each is True else [shlex.quote(str(each))])]
        return " ".join(words)

    @asynccontextmanager
    async def engine(self, *, migrate: bool = False, first: Callable[[Engine], None] | None = None) -> AsyncIterator[Engine]:
        """An open engine on the chosen store; only commands that write new things bring the schema up to date.

        `first` is called before it is opened: bad input must not even make the database.
        """
        engine = Engine(self.settings.store, settings=self.settings, tolerant=True)
        if first is not None:
            first(engine)
        await engine.open(migrate=migrate)
        try:
            yield engine
        finally:
            await engine.close()

    def show(self, value: Json, human: Callable[[], RenderableType]) -> None:
        """The value as JSON, or what `human` makes of it."""
        if self.json:
            sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None) + "\n")
            sys.stdout.flush()
        else:
            self.console.print(human(), soft_wrap=not self.console.is_terminal)


def make_session(chosen: Common, *, quiet: bool = True) -> Session:
    """The settings of the environment with the chosen options over them, and logging set up."""
    settings = load_settings()
    if chosen.store:
        settings = replace(settings, store=chosen.store)
    if chosen.namespace:
        settings = replace(settings, namespace=check_name(chosen.namespace, "namespace"))
    level = "DEBUG" if chosen.verbose else "ERROR" if quiet else settings.log_level
    set_up_logging(level, settings.log_format)
    return Session(chosen, settings)


Body = Callable[Concatenate[Session, P], Coroutine[Any, Any, None] | None]


def command(body: Body[P], *, quiet: bool = True) -> Callable[..., None]:
    """What Typer calls for `body`: takes its options and the common ones, and runs it with a session.

    `quiet` commands log only errors, as what they have to say is their output.
    """
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("common_store", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=StoreOption),
        inspect.Parameter("common_namespace", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=NamespaceOption),
        inspect.Parameter("common_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption),
        inspect.Parameter("common_verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=VerboseOption),
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + common

    @wraps(body)
    def run(**options: Any) -> None:
        ctx: typer.Context = options.pop("ctx")
        given = Common(*(options.pop(f"common_{name}") for name in ("store", "namespace", "json", "verbose")))
        before = ctx.find_root().obj or Common()
        session = make_session(given.over(before), quiet=quiet)
        running = body(session, **options)  # type: ignore[call-arg]
        if running is not None:
            asyncio.run(running)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
