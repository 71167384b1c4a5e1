"""The session of a command: common options, settings, access to the engine or the server, and output."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from treadle.model.errors import InvalidInput
from treadle.model.names import check_name
from treadle.model.text import json_text
from treadle.settings import Settings, chosen_store, find_variable, place_store, read_settings

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from rich.console import Console, RenderableType

    from treadle.api.facade import Api
    from treadle.engine import Engine
    from treadle.model.values import Json

_COMMON = ("store", "namespace", "json", "verbose", "server", "token")


@dataclass(frozen=True)
class Common:
    """The options that can stand before or after the command's name."""

    store: str | None = None
    namespace: str | None = None
    json: bool = False
    verbose: bool = False
    server: str | None = None
    token: str | None = field(default=None, repr=False)
    typed_store: str | None = None
    """The store if it was typed, rather than taken from the environment."""
    typed_server: str | None = None

    @property
    def remote(self) -> str | None:
        """The server to use, unless a store was typed: typed options win over the environment."""
        if self.typed_store and self.typed_server:
            raise InvalidInput("Give either --store or --server, not both.")
        return None if self.typed_store else self.server


def common_of(ctx: click.Context) -> Common:
    """The common options of a command: after its name, else before it, else from the environment."""
    root = ctx.find_root()

    def typed(name: str) -> str | None:
        before = root.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return ctx.params.get(name) or (root.params.get(name) if before else None)

    values = {name: ctx.params.get(f"common_{name}") or root.params.get(f"common_{name}") for name in _COMMON}
    return Common(**values, typed_store=typed("common_store"), typed_server=typed("common_server"))  # type: ignore[arg-type]


@dataclass(frozen=True)
class CommandSession:
    """One execution of one command."""

    chosen: Common
    settings: Settings
    default_store: str = ""
    """The store of namespaces that no directory places."""

    @property
    def json(self) -> bool:
        """Whether output is JSON."""
        return self.chosen.json

    @cached_property
    def strict(self) -> bool:
        """Whether warnings about AFL are errors, by the settings or the project in the current folder."""
        from treadle.interfaces.cli.project import find_project

        return self.settings.strict or ((project := find_project()) is not None and project.strict)

    @cached_property
    def actor(self) -> str:
        """The actor recorded in the log."""
        try:
            return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
        except KeyError:
            return f"cli:{os.getuid()}"

    def refuse_claims(self, *claims: object) -> None:
        """Refuse claimed identities if a server is used, because the token identifies the caller."""
        if self.chosen.remote and any(claims):
            raise InvalidInput("The server identifies you by your token: omit --as and --group, and use a token with that name.")

    @cached_property
    def console(self) -> Console:
        """The console; wide if it is not a terminal, so that lines stay whole for `grep`."""
        from rich.console import Console

        console = Console(markup=False, highlight=False, emoji=False)
        return console if console.is_terminal else Console(markup=False, highlight=False, emoji=False, width=240)

    def _next_page(self, following: dict[str, object]) -> str:
        """The typed command with the options that select the next page, on the same store or server."""
        ctx = click.get_current_context()
        chosen = {"store": self.chosen.typed_store, "server": self.chosen.typed_server, "namespace": self.chosen.namespace}
        words = ctx.command_path.split()
        for param in ctx.command.params:
            name, value = str(param.name), ctx.params.get(str(param.name))
            typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if name in following or not typed or name.startswith("common_"):
                continue
            for argument in value if isinstance(value, list) else [value]:
                words += [param.opts[0]] if isinstance(param, click.Option) else []
                words += [] if argument is True else [shlex.quote(str(argument))]
        for name, value in (following | chosen).items():
            words += [f"--{name}", shlex.quote(str(value))] if value is not None else []
        return " ".join(words)

    def need_store(self) -> None:
        """Refuse a command that opens the store itself if a server was chosen."""
        if self.chosen.remote:
            raise InvalidInput(_on_the_store(self.chosen.remote), code="not_over_http")

    @asynccontextmanager
    async def engine(self, *, migrate: bool = False, first: Callable[[Engine], None] | None = None) -> AsyncIterator[Engine]:
        """Open an engine on the chosen store; only commands that create records migrate the schema.

        `first` is called before it is opened, so that bad input does not create the database.
        """
        self.need_store()
        from treadle.engine import Engine  # a slow import that clients and `--help` do not need

        engine = Engine(self.settings.store, settings=self.settings)
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
        for_model: bool = False,
    ) -> AsyncIterator[Api]:
        """Open the API of the chosen server, or else of the store; `migrate` and `first` as for `engine`.

        Callers who can open the store may claim an `actor` and `groups`; a server identifies them by their token.
        `scratch` is for calls that need no stored data: without a server they use an empty store in memory. `for_model` tells the
        server that a model acts.
        """
        if self.chosen.remote:
            from treadle.client import Client  # a store needs no HTTP client
            from treadle.interfaces.cli.local_token import find_local_secret

            token = self.chosen.token or find_local_secret(self.settings.store, self.chosen.remote)
            async with Client(self.chosen.remote, token, for_model=for_model) as client:
                yield client
            return
        from treadle.engine import Engine

        opening = Engine("memory://", settings=self.settings) if scratch else self.engine(migrate=migrate, first=first)
        async with opening as engine:
            yield self.on(engine, actor, groups)

    def on(self, engine: Engine, actor: str | None = None, groups: Sequence[str] = ()) -> Api:
        """The API on an open engine, for the caller of this command."""
        from treadle.engine.operations import Operations
        from treadle.model.access import Access, Scope

        return Operations(engine, Access(actor or self.actor, frozenset(Scope), groups=tuple(groups)))

    def show(self, value: Json, human: Callable[[], RenderableType]) -> None:
        """Print the value (JSON, or a record of the API) as JSON, or as rendered by `human`."""
        if self.json:
            from treadle.api.contract import ApiRecord
            from treadle.api.wire import to_builtins

            if isinstance(value, ApiRecord):
                value = to_builtins(value)
            sys.stdout.write(json_text(value, indent=2 if sys.stdout.isatty() else None) + "\n")
            sys.stdout.flush()
        else:
            self.console.print(human(), soft_wrap=not self.console.is_terminal)

    def show_page(
        self, page: Json, rows: Sequence[object], empty: str, table: Callable[[], RenderableType], **following: object
    ) -> None:
        """Print a page of records as JSON, or as a table; `following` are the options that select the next page, if any."""

        def human() -> RenderableType:
            from rich.console import Group
            from rich.text import Text

            first = table() if rows else Text(empty)
            if all(value is None for value in following.values()):
                return first
            return Group(first, Text(f"More: {self._next_page(following)}", "dim"))

        self.show(page, human)


def make_session(chosen: Common, *, quiet: bool = True) -> CommandSession:
    """Load the settings, apply the chosen options, and set up logging."""
    from treadle.kernel.telemetry.log_format import set_up_logging

    settings = read_settings()
    typed, default = chosen.typed_store, settings.store
    chosen = replace(chosen, store=chosen.store or chosen_store(), token=chosen.token or find_variable("TREADLE_TOKEN"))
    if chosen.store:
        settings = replace(settings, store=chosen.store)
    if chosen.namespace:
        settings = replace(settings, namespace=check_name(chosen.namespace, "namespace"))
    if settings.directory and not typed:
        settings = place_store(settings)
        chosen = replace(chosen, store=settings.store)
    level = "DEBUG" if chosen.verbose else "ERROR" if quiet else settings.log_level
    set_up_logging(level, settings.log_format)
    return CommandSession(chosen, settings, default)


def _on_the_store(server: str, why: str = "") -> str:
    return (
        f"This command needs the store and cannot use the server {server}{': ' if why else ''}{why}. Omit --server (and unset "
        "TREADLE_SERVER), and add --store if it is not the default one."
    )


def run_command(body: Callable[..., Any], arguments: dict[str, Any], *, quiet: bool, store_only: str) -> None:
    """Run a command's body with a session and its arguments.

    A `quiet` command logs only errors, because its output is its message. A `store_only` one refuses a server, for that reason.
    """
    chosen = common_of(click.get_current_context())
    if store_only and chosen.remote:
        raise InvalidInput(_on_the_store(chosen.remote, store_only), code="not_over_http")
    running = body(make_session(chosen, quiet=quiet), **arguments)
    if running is not None:
        from treadle.interfaces.cli.process import run_interruptibly

        run_interruptibly(running, None if quiet else lasting_loop())


def lasting_loop() -> Callable[[], AbstractEventLoop] | None:
    """A factory of faster event loops for long-running commands, if uvloop is installed (the extra `fast`)."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
