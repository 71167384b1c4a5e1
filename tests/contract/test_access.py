"""Tokens and sessions on every store, at the store's own time: who is let in, until when, and what is known of their secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.contract.databases import Database, StoreClock
from tests.errors import raises_code

from treadle.engine.codecs import Zlib
from treadle.kernel.access import credentials
from treadle.kernel.access.credentials import Credential
from treadle.kernel.access.sessions import Sessions
from treadle.kernel.access.tokens import Tokens
from treadle.kernel.core import Core
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.encoded_store import encoded_store
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.records import ChangeRecord
from treadle.kernel.store.retention import KEEP_RECORDS_FOR, Retention
from treadle.kernel.store.units import Unit
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.store.verify import verify
from treadle.model.access import Access, Scope, granted
from treadle.model.errors import InvalidInput, InvalidName, InvalidPolicy, Unauthorized
from treadle.testing import ManualClock
from treadle.testing.clock import SeededIds
from treadle_conformance.task_steps import UNKNOWN_ID, ids, transitions_of

READ, ENQUEUE, WORK, APPROVE, OPERATE, PUBLISH, REGISTER, ADMIN = Scope
SECOND, HOUR = 1_000, 3_600_000

shared = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


class Gate:
    """The services around one store, in one process."""

    def __init__(self, store: Store, time: StoreClock, namespace: str = "default") -> None:
        self.store = store
        self.time = time
        self.clock = ManualClock()
        self.committer = Committer(store, SystemClock())
        own = SeededIds(int(ids.random() * 2**32), clock=self.clock)
        core = Core(store, self.committer, ValueStore(store, None), own, self.clock, namespace=namespace)
        self.tokens = Tokens(core)
        self.sessions = Sessions(core, self.tokens)

    async def advance(self, ms: int) -> None:
        """Time passes for the store and for the process."""
        await self.time.advance(ms)
        self.clock.advance(ms / 1000)

    async def make(self, name: str = "ci", *scopes: Scope, **options: object) -> str:
        """The secret of a new token."""
        return (await self.tokens.create(name, scopes or (READ,), **options)).secret

    async def refusal(self, secret: str) -> str:
        """Why a token is not accepted; that it is not is certain."""
        with pytest.raises(Unauthorized) as refused:
            await self.tokens.find_access(secret)
        assert str(refused.value) == str(Unauthorized())
        return refused.value.reason

    async def session_refusal(self, cookie: str) -> str:
        with pytest.raises(Unauthorized) as refused:
            await self.sessions.find(cookie)
        assert str(refused.value) == str(Unauthorized())
        return refused.value.reason


@pytest.fixture
async def gate(store: Store, clock: StoreClock) -> AsyncIterator[Gate]:
    made = Gate(store, clock)
    yield made
    await made.committer.drain()
    assert (await verify(store)).problems == ()


def other_secret(secret: str) -> str:
    """The same token with another secret."""
    return f"{secret.rpartition(secret[-43:])[0]}{'A' * 43}"


async def everything_said(store: Store) -> str:
    """All that readers of the log and of histories are shown."""
    return repr(await store.log.list_events(0, 2**62, 1000)) + repr(await store.log.list_histories(None, 1000))


# --- tokens ---


async def test_a_token_secret_grants_its_scopes_under_the_token_name(gate, clock):
    made = await gate.tokens.create("ada", ["operate"], expires=60, task_lists=["orders"], actor="root")
    access = await gate.tokens.find_access(made.secret)
    assert access == Access("ada", granted(Scope(each) for each in made.scopes), ("orders",), made.id, made.expires_at.ms)
    assert (access.actor, access.scopes, access.task_lists) == ("ada", {OPERATE, WORK, ENQUEUE, READ}, ("orders",))
    assert (access.token_id, access.expires_at, access.session_id) == (made.id, clock.now() + 60 * SECOND, None)
    assert made.secret.startswith(f"tdl_{made.id.replace('-', '')}_")


@pytest.mark.parametrize("given", [["operate"], ["read", "operate"], ["work"], ["read"], ["admin"]])
async def test_a_token_of_an_older_version_keeps_its_scopes(gate, given):
    made = await gate.tokens.create("old", given)
    record = await gate.store.records.find(made.id)
    document = json.loads(record.document)
    del document["separate"]  # as stored before approving and publishing were permissions of their own
    await gate.committer.submit(Unit(rows=(ChangeRecord(record.id, record.version, json.dumps(document)),)), 5)
    gate.clock.advance(10)
    access = await gate.tokens.find_access(made.secret)
    more = {APPROVE, PUBLISH} if "operate" in given else set()
    assert access.scopes == granted([Scope(each) for each in given]) | more
    assert set((await gate.tokens.get("old")).scopes) == {*given, *more}


async def test_secrets_are_unique_and_open_only_their_own_token(gate):
    secrets = [await gate.make(f"t{number}") for number in range(5)]
    assert len({secret[-43:] for secret in secrets}) == 5
    mixed = secrets[0][:-43] + secrets[1][-43:]
    assert await gate.refusal(mixed) == "wrong"


async def test_every_invalid_token_is_rejected_with_the_same_message(gate, store, clock):
    expired, revoked = await gate.make("old", expires=1), await gate.make("gone")
    elsewhere = await Gate(store, clock, "elsewhere").make("far")
    good = await gate.make("good")
    session = await gate.sessions.open(good)
    await gate.tokens.revoke("gone")
    await gate.advance(SECOND)
    unknown = Credential(UNKNOWN_ID, good[-43:]).text("tdl")
    reasons = {
        expired: "expired",
        revoked: "revoked",
        elsewhere: "unknown",
        unknown: "unknown",
        other_secret(good): "wrong",
        good[:-1]: "malformed",
        f"{good}x": "malformed",
        good.upper(): "malformed",
        session.cookie: "malformed",
        "Bearer": "malformed",
        "tdl__": "malformed",
        "ü\ud800\x00": "malformed",
        "x" * 100_000: "malformed",
        "": "missing",
    }
    assert {secret: await gate.refusal(secret) for secret in reasons} == reasons  # `refusal` compares the words
    assert (await gate.tokens.find_access(good)).actor == "good"


async def test_digests_are_compared_in_constant_time_on_every_path(gate, monkeypatch):
    good, ended = await gate.make("good"), await gate.make("ended")
    await gate.tokens.revoke("ended")
    compared: list[tuple[str, str]] = []
    real = credentials.hmac.compare_digest
    monkeypatch.setattr(credentials.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    await gate.tokens.find_access(good)
    unknown = Credential(UNKNOWN_ID, good[-43:]).text("tdl")
    for secret in (ended, unknown, other_secret(good), "nonsense", ""):
        await gate.refusal(secret)
    assert len(compared) == 6
    assert all(len(given) == len(known) == 64 for given, known in compared)


async def test_a_token_expires_at_its_instant_also_while_it_is_remembered(gate):
    secret = await gate.make(expires=3)
    await gate.tokens.find_access(secret)
    await gate.advance(3 * SECOND - 1)
    await gate.tokens.find_access(secret)
    await gate.advance(1)
    assert await gate.refusal(secret) == "expired"
    (token,) = (await gate.tokens.list(every=True)).tokens
    assert (token.state, (await gate.tokens.list()).tokens, await gate.tokens.any_live()) == ("expired", [], False)


async def test_a_revoked_token_is_rejected_immediately_and_revoking_is_idempotent(gate, store, clock):
    secret = await gate.make()
    await gate.tokens.find_access(secret)
    revoked = await gate.tokens.revoke("ci", actor="root")
    assert (revoked.state, revoked.ended_at.ms) == ("revoked", clock.now())
    assert await gate.refusal(secret) == "revoked"
    await gate.advance(SECOND)
    assert await gate.tokens.revoke(revoked.id, actor="eve") == revoked
    assert transitions_of(await store.log.list_transitions(revoked.id)) == ["create", "revoke"]


@shared
async def test_a_token_revoked_by_another_process_is_refused_within_five_seconds(gate, database, clock):
    other = Gate(await database.open_store(), clock)
    secret = await gate.make()
    await gate.tokens.find_access(secret)
    await other.tokens.revoke("ci", actor="root")
    assert await other.refusal(secret) == "revoked"
    await gate.advance(5 * SECOND)
    assert await gate.refusal(secret) == "revoked"


@shared
async def test_a_token_created_by_another_process_is_accepted_immediately(gate, database, clock):
    other = Gate(await database.open_store(), clock)
    assert not await gate.tokens.any_live()
    secret = await other.make("theirs", WORK)
    assert await gate.tokens.any_live()
    assert (await gate.tokens.find_access(secret)).scopes == {WORK, ENQUEUE}


async def test_a_token_is_not_looked_up_at_every_use(gate, store, monkeypatch):
    secret = await gate.make()
    asked: list[str] = []
    real = store.records.find

    async def find_record(record_id: str) -> object:
        asked.append(record_id)
        return await real(record_id)

    monkeypatch.setattr(store.records, "find", find_record)
    for _ in range(50):
        await gate.tokens.find_access(secret)
    assert len(asked) == 1


async def test_token_changes_are_logged_with_their_actor(gate, store):
    made = await gate.tokens.create("ci", [READ, WORK], task_lists=["orders"], expires=60, actor="ada")
    await gate.tokens.revoke(made.id, actor="bob")
    transitions = await store.log.list_transitions(made.id)
    assert [
        (transition.transition, transition.from_state, transition.to_state, transition.actor) for transition in transitions
    ] == [
        ("create", "new", "active", "ada"),
        ("revoke", "active", "revoked", "bob"),
    ]
    assert '"scopes":["read","work"]' in (transitions[0].data or "")
    events = await store.log.list_events(0, 2**62, 10)
    assert [(event.namespace, event.transition.transition) for event in events] == [("default", "create"), ("default", "revoke")]


async def test_secrets_and_digests_are_in_no_output(gate, store):
    made = await gate.tokens.create("ci", [ADMIN])
    opened = await gate.sessions.open(made.secret)
    found = await gate.sessions.find(opened.cookie)
    shown = repr([made, opened, found, (await gate.tokens.list()).tokens, await gate.tokens.get("ci"), found.access])
    record = await store.records.find(made.id)
    assert record is not None
    shown += await everything_said(store)
    for hidden in (made.secret, opened.cookie):
        part = hidden[-43:]
        assert part not in shown
        assert Credential("", part).digest() not in shown
    assert opened.csrf not in shown
    assert Credential("", made.secret[-43:]).digest() in record.document  # it is there, and only there


@shared
async def test_the_database_has_no_secret_and_after_the_end_no_digest_either(gate, database: Database):
    made = await gate.tokens.create("ci", [ADMIN])
    opened = await gate.sessions.open(made.secret)
    rows = repr([database.rows(table) for table in ("records", "log", "record_items")])
    secrets = [made.secret[-43:], opened.cookie[-43:]]
    digests = [Credential("", secret).digest() for secret in secrets]
    assert not [secret for secret in [*secrets, opened.csrf] if secret in rows]
    assert all(rows.count(digest) == 1 for digest in digests)
    await gate.sessions.close(opened.cookie)
    await gate.tokens.revoke("ci")
    rows = repr([database.rows(table) for table in ("records", "log", "record_items")])
    assert not [digest for digest in digests if digest in rows]


async def test_a_name_is_taken_while_its_token_is_valid(gate):
    await gate.make("ci")
    with raises_code("token_exists", match="ci already"):
        await gate.make("ci", WORK)
    (token,) = (await gate.tokens.list()).tokens
    assert token.scopes == [READ]
    await gate.tokens.revoke("ci")
    await gate.make("ci", WORK, expires=10)
    await gate.advance(10 * SECOND)
    newest = await gate.make("ci", ADMIN)
    assert (await gate.tokens.find_access(newest)).may(ADMIN)
    states = [(token.state, token.scopes) for token in (await gate.tokens.list(every=True)).tokens]
    assert states == [("active", [ADMIN]), ("expired", [WORK]), ("revoked", [READ])]


async def test_namespaces_have_their_own_tokens(gate, store, clock):
    other = Gate(store, clock, "other")
    await gate.make("ci")
    await other.make("ci", WORK)
    assert [token.scopes for token in (await other.tokens.list()).tokens] == [[WORK]]
    (mine,) = (await gate.tokens.list()).tokens
    for call in (other.tokens.get, other.tokens.revoke):
        with raises_code("token_not_found"):
            await call(mine.id)
    assert await gate.tokens.any_live()


async def test_a_token_of_an_unknown_name_or_id_is_not_found(gate):
    for name in ("nobody", UNKNOWN_ID, "", "a b"):
        with raises_code("token_not_found"):
            await gate.tokens.revoke(name)
    opened = await gate.sessions.open(await gate.make())
    with raises_code("token_not_found"):
        await gate.tokens.get(opened.access.session_id or "")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"scopes": []}, InvalidInput),
        ({"scopes": ["root"]}, InvalidInput),
        ({"name": "a b"}, InvalidInput),
        ({"expires": 0}, InvalidPolicy),
        ({"expires": -1}, InvalidPolicy),
        ({"task_lists": ["no good"]}, InvalidName),
        ({"task_lists": ["orders"], "scopes": ["admin"]}, InvalidInput),
        ({"actor": ""}, InvalidInput),
    ],
)
@pytest.mark.parametrize("database", ["memory"], indirect=True)
async def test_an_invalid_token_is_not_created(gate, options, error):
    with pytest.raises(error):
        await gate.tokens.create(**{"name": "ci", "scopes": ["read"]} | options)
    assert (await gate.tokens.list(every=True)).tokens == []


async def test_ended_tokens_are_pruned_after_a_month_and_valid_ones_stay(gate, store):
    ended = await gate.tokens.create("ended", [READ])
    await gate.tokens.revoke("ended")
    valid = await gate.make("valid")
    await gate.advance(KEEP_RECORDS_FOR)
    await Retention(store).prune()
    assert [token.name for token in (await gate.tokens.list(every=True)).tokens] == ["valid"]
    assert await store.log.list_transitions(ended.id) == []
    assert (await gate.tokens.find_access(valid)).actor == "valid"


async def test_behind_a_codec_tokens_work_and_without_it_they_can_still_be_revoked(gate, store, clock):
    behind = Gate(encoded_store(store, Zlib()), clock)
    secret = await behind.make("encoded", OPERATE)
    assert (await behind.tokens.find_access(secret)).may(OPERATE)
    assert await gate.refusal(secret) == "unreadable"
    assert await gate.tokens.any_live()
    plain = await gate.make("plain")
    assert (await behind.tokens.find_access(plain)).actor == "plain"
    await gate.tokens.revoke("encoded")
    await behind.advance(5 * SECOND)
    assert await behind.refusal(secret) == "revoked"


# --- sessions ---


async def test_a_session_has_the_scopes_of_its_token(gate, clock):
    made = await gate.tokens.create("ada", [OPERATE], task_lists=["orders"])
    opened = await gate.sessions.open(made.secret)
    assert opened.cookie.startswith("tds_")
    found = await gate.sessions.find(opened.cookie)
    assert found.access == opened.access
    assert (found.access.actor, found.access.scopes, found.access.task_lists) == (
        "ada",
        {OPERATE, WORK, ENQUEUE, READ},
        ("orders",),
    )
    assert (found.access.token_id, found.access.expires_at) == (made.id, clock.now() + 12 * HOUR)
    assert found.access.session_id is not None


async def test_a_session_is_opened_by_a_valid_token_alone(gate):
    secret = await gate.make()
    await gate.tokens.revoke("ci")
    for shown in (secret, "", "nonsense"):
        with pytest.raises(Unauthorized):
            await gate.sessions.open(shown)


async def test_a_csrf_token_belongs_to_its_session(gate):
    secret = await gate.make()
    one, other = await gate.sessions.open(secret), await gate.sessions.open(secret)
    found = await gate.sessions.find(one.cookie)
    assert found.csrf == one.csrf != other.csrf
    assert found.accepts(one.csrf)
    assert not any(found.accepts(wrong) for wrong in (other.csrf, "", one.csrf[:-1], one.cookie, "ü", "\ud800"))


async def test_a_session_ends_after_twelve_hours(gate):
    opened = await gate.sessions.open(await gate.make())
    await gate.advance(12 * HOUR - 1)
    await gate.sessions.find(opened.cookie)
    await gate.advance(1)
    assert await gate.session_refusal(opened.cookie) == "expired"


async def test_a_session_ends_with_its_token(gate, clock):
    opened = await gate.sessions.open(await gate.make("ada"))
    short = await gate.sessions.open(await gate.make("brief", expires=60))
    assert short.access.expires_at == clock.now() + 60 * SECOND
    await gate.sessions.find(opened.cookie)
    await gate.tokens.revoke("ada")
    assert await gate.session_refusal(opened.cookie) == "revoked"
    await gate.advance(60 * SECOND - 1)
    await gate.sessions.find(short.cookie)
    await gate.advance(1)
    assert await gate.session_refusal(short.cookie) == "expired"


@shared
async def test_a_session_ends_within_five_seconds_when_another_process_revokes_its_token(gate, database, clock):
    other = Gate(await database.open_store(), clock)
    opened = await gate.sessions.open(await gate.make())
    assert (await other.sessions.find(opened.cookie)).csrf == opened.csrf
    await gate.tokens.revoke("ci")
    await other.advance(5 * SECOND)
    assert await other.session_refusal(opened.cookie) == "revoked"


async def test_a_closed_session_is_rejected_immediately_and_closing_is_idempotent(gate, store):
    secret = await gate.make("ada")
    opened, stays = await gate.sessions.open(secret), await gate.sessions.open(secret)
    await gate.sessions.find(opened.cookie)
    await gate.sessions.close(opened.cookie)
    await gate.sessions.close(opened.cookie)
    assert await gate.session_refusal(opened.cookie) == "closed"
    assert (await gate.sessions.find(stays.cookie)).access == stays.access
    transitions = await store.log.list_transitions(opened.access.session_id or "")
    assert [(transition.transition, transition.actor) for transition in transitions] == [("open", "ada"), ("close", "ada")]


async def test_a_session_cannot_be_closed_without_its_cookie(gate, store, clock):
    """Neither a wrong cookie nor the gate of another namespace ends the session, which `find` would report."""
    opened = await gate.sessions.open(await gate.make())
    far = Gate(store, clock, "elsewhere")
    for shown in ("", "nonsense", other_secret(opened.cookie), Credential(UNKNOWN_ID, opened.cookie[-43:]).text("tds")):
        await gate.sessions.close(shown)
    await far.sessions.close(opened.cookie)
    await gate.sessions.find(opened.cookie)


async def test_every_invalid_session_is_rejected_with_the_same_message(gate, store, clock):
    secret = await gate.make()
    opened = await gate.sessions.open(secret)
    reasons = {
        other_secret(opened.cookie): "wrong",
        Credential(UNKNOWN_ID, opened.cookie[-43:]).text("tds"): "unknown",
        secret: "malformed",
        opened.csrf: "malformed",
        "": "missing",
    }
    assert {cookie: await gate.session_refusal(cookie) for cookie in reasons} == reasons
    assert await Gate(store, clock, "elsewhere").session_refusal(opened.cookie) == "unknown"


async def test_tokens_and_sessions_are_not_interchangeable(gate):
    secret = await gate.make()
    opened = await gate.sessions.open(secret)
    swapped = Credential(opened.access.session_id or "", opened.cookie[-43:]).text("tdl")
    assert await gate.refusal(swapped) == "unknown"
    assert await gate.session_refusal(Credential(opened.access.token_id or "", secret[-43:]).text("tds")) == "unknown"


async def test_unclosed_sessions_are_ended_by_later_ones_and_pruned(gate, store):
    secret = await gate.make()
    first = [await gate.sessions.open(secret) for _ in range(3)]
    await gate.advance(12 * HOUR - SECOND)
    await gate.sessions.open(secret)
    assert await store.records.count("default", "session") == {"open": 4}
    await gate.advance(2 * SECOND)
    last = await gate.sessions.open(secret)
    assert await store.records.count("default", "session") == {"expired": 3, "open": 2}
    assert await gate.session_refusal(first[0].cookie) == "expired"
    await gate.sessions.find(last.cookie)
    await gate.advance(KEEP_RECORDS_FOR)
    await Retention(store).prune()
    assert await store.records.count("default", "session") == {"open": 2}
    await gate.sessions.open(secret)
    assert await store.records.count("default", "session") == {"expired": 2, "open": 1}
