"""What every command has in common: its options, its settings, an open engine, and one way to show what it found."""

from __future__ import annotations

import inspect
import json
import os
import pwd
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from treadle.model.errors import InvalidInput
from treadle.model.names import check_name
from treadle.settings import Settings, load_settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from treadle.api.face import Api
    from treadle.model.values import Json
    from treadle.wiring.engine import Engine

P = ParamSpec("P")
PANEL = "Common options"

_STORE_HELP = "sqlite:///path, postgresql://... or memory://; default sqlite:///treadle.db"
_NAMESPACE_HELP = "Which namespace of the store; default: default"
_SERVER_HELP = "Ask this server, e.g. http://127.0.0.1:8787, instead of opening a store"
_TOKEN_HELP = "The token for the server; better in TREADLE_TOKEN, as others can see command lines"  # noqa: S105

StoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=_STORE_HELP, rich_help_panel=PANEL)]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help=_NAMESPACE_HELP, rich_help_panel=PANEL)]
ServerOption = Annotated[str | None, typer.Option("--server", metavar="URL", help=_SERVER_HELP, rich_help_panel=PANEL)]
TokenOption = Annotated[str | None, typer.Option("--token", metavar="SECRET", help=_TOKEN_HELP, rich_help_panel=PANEL)]
RootServerOption = Annotated[str | None, typer.Option("--server", metavar="URL", envvar="TREADLE_SERVER", help=_SERVER_HELP)]
RootTokenOption = Annotated[
    str | None, typer.Option("--token", metavar="SECRET", envvar="TREADLE_TOKEN", show_envvar=True, help=_TOKEN_HELP)
]
RootStoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", envvar="TREADLE_STORE", help=_STORE_HELP)]
RootNamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", envvar="TREADLE_NAMESPACE", help=_NAMESPACE_HELP)
]
"""Only the root reads the environment: an option before the command's name must win over a variable."""
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output, errors too", rich_help_panel=PANEL)]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more; tracebacks for errors", rich_help_panel=PANEL)]
RootJsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output, errors too")]
RootVerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more; tracebacks for errors")]


class NotOverHttp(InvalidInput):
    """A command that works on the store itself was given a server."""

    code = "not_over_http"


@dataclass(frozen=True)
class Common:
    """The options that can be given before or after the command's name."""

    store: str | None = None
    namespace: str | None = None
    json: bool = False
    verbose: bool = False
    server: str | None = None
    token: str | None = field(default=None, repr=False)
    typed_store: str | None = None
    """The store if it was typed, and not taken from the environment."""
    typed_server: str | None = None

    def over(self, other: Common) -> Common:
        """These options, and the other's where these say nothing."""
        return Common(
            self.store or other.store,
            self.namespace or other.namespace,
            self.json or other.json,
            self.verbose or other.verbose,
            self.server or other.server,
            self.token or other.token,
            self.store or other.typed_store,
            self.server or other.typed_server,
        )

    @property
    def remote(self) -> str | None:
        """The server to ask, unless a store was typed: what is typed wins over what the environment says."""
        if self.typed_store and self.typed_server:
            raise InvalidInput("Give either --store or --server: a command works on one of them.")
        return None if self.typed_store else self.server


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

    def refuse_claims(self, *claims: object) -> None:
        """Refuse what says who somebody is where a server is asked: that is what their token says."""
        if self.chosen.remote and any(claims):
            raise InvalidInput("A server knows you by your token: leave --as and --group out, and use a token of that name.")

    @cached_property
    def console(self) -> Console:
        """Where people read; wide when nobody does, so that lines stay whole for `grep`."""
        from rich.console import Console

        console = Console(markup=False, highlight=False, emoji=False)
        return console if console.is_terminal else Console(markup=False, highlight=False, emoji=False, width=240)

    def again(self, command: str, **options: object) -> str:
        """How to type that command with these options, on the same store; what is None, False or empty is not said."""
        chosen = {"store": self.chosen.typed_store, "server": self.chosen.typed_server, "namespace": self.chosen.namespace}
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
        if self.chosen.remote:
            raise NotOverHttp(_on_the_store(self.chosen.remote))
        from treadle.wiring.engine import Engine  # much that a server's clients and `--help` do not need

        engine = Engine(self.settings.store, settings=self.settings, tolerant=True)
        if first is not None:
            first(engine)
        await engine.open(migrate=migrate)
        try:
            yield engine
        finally:
            await engine.close()

    @asynccontextmanager
    async def api(
        self,
        *,
        migrate: bool = False,
        first: Callable[[Engine], None] | None = None,
        actor: str | None = None,
        groups: Sequence[str] = (),
        scratch: bool = False,
    ) -> AsyncIterator[Api]:
        """The calls that commands are made of, on the chosen server or else on the store; `migrate` and `first` as for `engine`.

        Who can open the store is believed who they say they are (`actor`, `groups`); a server knows them by their token.
        `scratch` is for calls that need nothing that is stored: without a server they are made on an empty store in memory.
        """
        if self.chosen.remote:
            from treadle.client import Client  # what talks HTTP is not needed for a store

            async with Client(self.chosen.remote, self.chosen.token) as client:
                yield client
            return
        from treadle.wiring.engine import Engine

        opening = Engine("memory://", settings=self.settings) if scratch else self.engine(migrate=migrate, first=first)
        async with opening as engine:
            yield self.on(engine, actor, groups)

    def on(self, engine: Engine, actor: str | None = None, groups: Sequence[str] = ()) -> Api:
        """The calls on an engine that is open, for whoever types this."""
        from treadle.model.access import Access, Scope
        from treadle.service import Service

        return Service(engine, Access(actor or self.actor, frozenset(Scope), groups=tuple(groups)))

    def show(self, value: Json, human: Callable[[], RenderableType]) -> None:
        """The value (JSON, or a record of the contract) as JSON, or what `human` makes of it."""
        if self.json:
            if is_dataclass(value):
                from treadle.api.wire import to_builtins

                value = to_builtins(value)
            sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None) + "\n")
            sys.stdout.flush()
        else:
            self.console.print(human(), soft_wrap=not self.console.is_terminal)


def make_session(chosen: Common, *, quiet: bool = True) -> Session:
    """The settings of the environment with the chosen options over them, and logging set up."""
    from treadle.kernel.telemetry.log_format import set_up_logging

    settings = load_settings()
    if chosen.store:
        settings = replace(settings, store=chosen.store)
    if chosen.namespace:
        settings = replace(settings, namespace=check_name(chosen.namespace, "namespace"))
    level = "DEBUG" if chosen.verbose else "ERROR" if quiet else settings.log_level
    set_up_logging(level, settings.log_format)
    return Session(chosen, settings)


def _on_the_store(server: str, why: str = "") -> str:
    return (
        f"This command works on the store itself, and not on the server {server}{': ' if why else ''}{why}. Leave --server (and "
        "TREADLE_SERVER) out, and say --store if it is not the default one."
    )


class Options:
    """Base of tables of options that several commands share: dataclasses, each field as it would be a parameter of a command."""


_COMMON = ("store", "namespace", "json", "verbose", "server", "token")

Body = Callable[Concatenate[Session, P], Coroutine[Any, Any, None] | None]


def command(body: Body[P], *, quiet: bool = True, store_only: str = "") -> Callable[..., None]:
    """What Typer calls for `body`: takes its options and the common ones, and runs it with a session.

    A parameter that is a table of options (`Options`) is given it, made from its options.
    `quiet` commands log only errors, as what they have to say is their output. `store_only` ones refuse a server, for that reason.
    """
    own, tables = _options_of(body)
    common = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("common_store", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=StoreOption),
        inspect.Parameter("common_namespace", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=NamespaceOption),
        inspect.Parameter("common_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption),
        inspect.Parameter("common_verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=VerboseOption),
        inspect.Parameter("common_server", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ServerOption),
        inspect.Parameter("common_token", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TokenOption),
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + common

    @wraps(body)
    def run(**options: Any) -> None:
        ctx: typer.Context = options.pop("ctx")
        given = Common(*(options.pop(f"common_{name}") for name in _COMMON))
        before = ctx.find_root().obj or Common()
        chosen = given.over(before)
        if store_only and chosen.remote:
            raise NotOverHttp(_on_the_store(chosen.remote, store_only))
        session = make_session(chosen, quiet=quiet)
        for name, table in tables.items():
            options[name] = table(**{each.name: options.pop(each.name) for each in fields(table)})  # type: ignore[arg-type]
        running = body(session, **options)  # type: ignore[call-arg]
        if running is not None:
            import asyncio

            from treadle.cli.loops import lasting_loop

            try:
                with asyncio.Runner(loop_factory=None if quiet else lasting_loop()) as runner:
                    runner.run(running)
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(body: Body[P]) -> tuple[list[inspect.Parameter], dict[str, type[Options]]]:
    """The options that the body takes, those in tables among them, and which of its parameters are tables."""
    own: list[inspect.Parameter] = []
    tables: dict[str, type[Options]] = {}
    for each in list(inspect.signature(body, eval_str=True).parameters.values())[1:]:
        if not (isinstance(each.annotation, type) and issubclass(each.annotation, Options)):
            own.append(each)
            continue
        tables[each.name] = each.annotation
        hints = get_type_hints(each.annotation, include_extras=True)
        own += [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
            for field in fields(each.annotation)  # type: ignore[arg-type]
        ]
    return own, tables
