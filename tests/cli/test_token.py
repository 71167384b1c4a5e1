"""Tokens at the command line, for people and for scripts, and across processes."""

from __future__ import annotations

import re

import pytest
from tests.commands import Treadle

from treadle import Engine
from treadle.engine import use_store
from treadle.kernel.access.credentials import Credential
from treadle.kernel.store.process import SystemClock
from treadle.model.access import Scope
from treadle.model.errors import Unauthorized
from treadle.settings import Settings

SECRET = re.compile(r"tdl_[0-9a-f]{32}_[A-Za-z0-9_-]{43}")


class SkippingClock(SystemClock):
    """The machine's clock, for a process that is told that more time has passed than has."""

    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


def engine_on(treadle: Treadle, clock: SkippingClock | None = None) -> Engine:
    return Engine(f"sqlite:///{treadle.folder / 'treadle.db'}", settings=Settings(), clock=clock)


def test_the_secret_stands_alone_on_stdout_and_the_hint_beside_it(treadle: Treadle) -> None:
    made = treadle("token", "create", "ci", "--scope", "read", "--scope", "work", "--expires", "30d", "--list", "orders")
    assert made.code == 0
    secret = made.out.removesuffix("\n")
    assert SECRET.fullmatch(secret)
    assert secret not in made.err
    assert all(word in made.err for word in ("ci", "read, work", "cannot be shown again", "Bearer"))


def test_no_other_command_prints_the_secret(treadle: Treadle) -> None:
    made = treadle.json("token", "create", "ci", "--scope", "admin")
    assert SECRET.fullmatch(made["secret"])
    digest = Credential("", made["secret"][-43:]).digest()
    shown = ""
    for words in (
        ["token", "list", "--all"],
        ["store", "verify"],
        ["store", "info"],
        ["token", "revoke", "ci"],
        ["token", "list", "--all"],
    ):
        for more in ([], ["--json"], ["--verbose"]):
            ended = treadle(*words, *more)
            shown += ended.out + ended.err
    assert "ci" in shown
    assert made["secret"][-43:] not in shown
    assert digest not in shown


def test_the_list_describes_each_token(treadle: Treadle) -> None:
    made = treadle.json("token", "create", "ci", "--scope", "work", "--expires", "1h", "--list", "orders", "--list", "mails")
    treadle.json("token", "create", "ada@example.org", "--scope", "admin")
    newest, oldest = treadle.json("token", "list")["tokens"]
    assert "secret" not in oldest
    assert oldest == {name: value for name, value in made.items() if name != "secret"}
    assert (oldest["name"], oldest["state"], oldest["scopes"], oldest["task_lists"]) == (
        "ci",
        "active",
        ["work"],
        ["orders", "mails"],
    )
    assert oldest["created_by"].startswith("cli:")
    assert (newest["name"], newest["expires_at"], newest["task_lists"]) == ("ada@example.org", None, [])
    people = treadle("token", "list").out
    assert all(word in people for word in ("ada@example.org", "orders, mails", "admin", "active"))


def test_a_revoked_token_is_listed_only_on_request(treadle: Treadle) -> None:
    made = treadle.json("token", "create", "ci", "--scope", "read")
    assert treadle("token", "revoke", made["id"]).out.strip() == f"Token ci ({made['id']}) is revoked."
    assert treadle.json("token", "list") == {"tokens": []}
    (token,) = treadle.json("token", "list", "--all")["tokens"]
    assert (token["state"], token["ended_at"] is None) == ("revoked", False)
    assert "No tokens." in treadle("token", "list").out
    assert treadle.json("store", "verify")["holds"]


@pytest.mark.parametrize(
    ("words", "exit_code", "error"),
    [
        (["create", "ci"], 2, "invalid_input"),
        (["create", "ci", "--scope", "root"], 2, "invalid_input"),
        (["create", "a b", "--scope", "read"], 2, "invalid_input"),
        (["create", "ci", "--scope", "read", "--expires", "soon"], 2, "invalid_policy"),
    ],
)
def test_bad_input_makes_neither_a_token_nor_a_store(treadle: Treadle, words: list[str], exit_code: int, error: str) -> None:
    ended = treadle("token", *words, "--json")
    assert (ended.code, ended.error["code"]) == (exit_code, error)
    assert not (treadle.folder / "treadle.db").exists()


def test_missing_duplicate_and_invalid_tokens_are_reported(treadle: Treadle) -> None:
    treadle.json("token", "create", "ci", "--scope", "read")
    again = treadle("token", "create", "ci", "--scope", "read", "--json")
    assert (again.code, again.error["code"]) == (5, "token_exists")
    gone = treadle("token", "revoke", "nobody", "--json")
    assert (gone.code, gone.error["code"]) == (3, "token_not_found")
    held = treadle("token", "create", "root", "--scope", "admin", "--list", "orders", "--json")
    assert (held.code, held.error["code"]) == (2, "invalid_input")


async def test_tokens_created_and_revoked_by_another_process_take_effect(treadle: Treadle) -> None:
    secret = treadle("token", "create", "ci", "--scope", "operate").out.strip()
    clock = SkippingClock()
    async with engine_on(treadle, clock) as engine:
        access = await engine.kernel.tokens.find_access(secret)
        assert (access.actor, access.may(Scope.OPERATE), access.may(Scope.ADMIN)) == ("ci", True, False)
        opened = await engine.kernel.sessions.open(secret)
        treadle.json("token", "revoke", "ci")
        clock.skipped = 5.0
        for refused in (engine.kernel.tokens.find_access(secret), engine.kernel.sessions.find(opened.cookie)):
            with pytest.raises(Unauthorized):
                await refused
        assert not await engine.kernel.tokens.any_live()


async def test_token_changes_and_their_actors_are_events(treadle: Treadle) -> None:
    treadle.json("token", "create", "ci", "--scope", "read")
    treadle.json("token", "revoke", "ci")
    async with engine_on(treadle) as engine, engine.events(after=0, entity="token") as events:
        made, ended = [await anext(events) for _ in range(2)]
    assert [made.transition, ended.transition] == ["create", "revoke"]
    assert made.actor == ended.actor
    assert (made.actor or "").startswith("cli:")


async def test_an_engine_put_on_another_store_has_the_tokens_of_that_store(treadle: Treadle) -> None:
    treadle.json("token", "create", "ci", "--scope", "read")
    engine = engine_on(treadle)
    async with engine:
        assert await engine.kernel.tokens.any_live()
    use_store(engine, "memory://", Settings())
    async with engine:
        assert not await engine.kernel.tokens.any_live()
