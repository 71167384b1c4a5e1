"""`treadle token ...`: who may use the server, and for what."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exits import tell_note
from treadle.cli.inputs import seconds
from treadle.cli.session import Session
from treadle.cli.words import ago, grid, plain, state
from treadle.model.access import Token, check_token_name, parse_scopes
from treadle.model.clock import as_text
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

_SCOPES = "What it is for: read, work, operate (work and read too) or admin (everything); may be repeated"


async def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the log says did it, such as ci or ada@example.org")],
    scopes: Annotated[list[str], typer.Option("--scope", metavar="SCOPE", help=_SCOPES)],
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Valid for so long, e.g. 12h or 30d; default: until it is revoked")
    ] = None,
    lists: Annotated[
        list[str] | None, typer.Option("--list", metavar="LIST", help="Only for this task list; may be repeated; default: all")
    ] = None,
) -> None:
    """Make a token and print its secret, which is shown this once; stdout has the secret alone."""
    valid_for = seconds(expires, "--expires")

    def check(_: object) -> None:
        check_token_name(name)
        parse_scopes(scopes)

    async with session.engine(migrate=True, first=check) as engine:
        made = await engine.tokens.create(name, scopes, expires=valid_for, task_lists=lists or (), actor=session.actor)
    if session.json:
        session.show(token_json(made.token) | {"secret": made.secret}, lambda: plain(""))
        return
    sys.stdout.write(made.secret + "\n")
    sys.stdout.flush()
    until = f" until {as_text(made.token.expires_at)}" if made.token.expires_at else ""
    tell_note(
        f"Token {name} ({', '.join(made.token.scopes)}) is valid{until}. Keep its secret now: it is not stored and cannot be shown "
        "again. Callers send it as `Authorization: Bearer SECRET`."
    )


async def list_tokens(
    session: Session, every: Annotated[bool, typer.Option("--all", help="Those that have expired or were revoked too")] = False
) -> None:
    """List tokens, newest first; never their secrets, which are not stored."""
    async with session.engine() as engine:
        found = await engine.tokens.list(ended=every)
        now = await engine.store.now()
    session.show({"tokens": [token_json(each) for each in found]}, lambda: _table(found, now))


async def revoke(
    session: Session, token: Annotated[str, typer.Argument(metavar="ID|NAME", help="The token's id, or its name")]
) -> None:
    """Revoke a token, and with it the sessions that were opened with it; running servers know within 5 seconds."""
    async with session.engine() as engine:
        done = await engine.tokens.revoke(token, actor=session.actor)
    session.show(token_json(done), lambda: plain(f"Token {done.name} ({done.id}) is {done.state}."))


def token_json(token: Token) -> dict[str, Json]:
    """A token, the same names as in Python."""
    return {
        "id": token.id,
        "name": token.name,
        "state": token.state,
        "scopes": list(token.scopes),
        "task_lists": list(token.task_lists),
        "created_by": token.created_by,
        "created_at": as_text(token.created_at),
        "expires_at": as_text(token.expires_at),
        "ended_at": as_text(token.ended_at),
    }


def _table(found: list[Token], now: int) -> RenderableType:
    if not found:
        return plain("No tokens.")
    table = grid("id", "name", "state", "scopes", "lists", "made", "by", "expires")
    for each in found:
        table.add_row(
            each.id,
            plain(each.name),
            state(each.state),
            ", ".join(each.scopes) or "sealed",
            plain(", ".join(each.task_lists) or "all"),
            ago(each.created_at, now),
            plain(each.created_by),
            ago(each.expires_at, now),
        )
    return table
