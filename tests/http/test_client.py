"""The client: what it refuses to send, and what it makes of answers that are none."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.http.conftest import Stage

from treadle.client import Client
from treadle.client.client import UnexpectedAnswer
from treadle.model.errors import InvalidInput, InvalidPayload

SECRET = "tdl_ключ"


@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:99999", "http://a\0b", "127.0.0.1:8787", "ftp://a", ""])
def test_an_invalid_server_address_is_rejected_with_an_explanation(url: str):
    with pytest.raises(InvalidInput, match="address of a server"):
        Client(url)


@pytest.mark.parametrize("token", [SECRET, "tdl_a\r\nX-Other: b"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str):
    with pytest.raises(InvalidInput, match="token") as refused:
        Client("http://127.0.0.1", token)
    assert "tdl_" not in str(refused.value)


@pytest.mark.parametrize("payload", [{"n": float("nan")}, {"n": b"bytes"}, {"n": object()}, {"n": "\ud800"}, {"n": "\0"}])
async def test_arguments_that_cannot_be_encoded_are_rejected_before_sending(stage: Stage, payload: dict[str, Any]):
    async with Client("http://127.0.0.1", transport=httpx.ASGITransport(stage.app)) as client:
        with pytest.raises(InvalidPayload):
            await client.tasks.enqueue("greet", payload)
        with pytest.raises(InvalidInput):
            await client.tasks.enqueue("greet", delay=float("nan"))
        with pytest.raises(InvalidInput, match="idempotency key"):
            await client.tasks.enqueue("greet", idempotency_key="schlüssel")
        with pytest.raises(InvalidInput, match="too long for a URL"):
            await client.tasks.get("9" * 100_000)
        assert (await client.tasks.list()).tasks == []


async def test_a_record_is_accepted_in_place_of_its_id(stage: Stage):
    async with Client("http://127.0.0.1", transport=httpx.ASGITransport(stage.app)) as client:
        tasks: Any = client.tasks
        made = await tasks.enqueue("greet")
        assert (await tasks.get(made)).id == made.id


async def test_a_page_of_another_program_is_not_an_event_stream():
    transport = httpx.MockTransport(lambda request: httpx.Response(200, html="<p>Welcome"))
    async with Client("http://127.0.0.1", transport=transport) as client:
        with pytest.raises(UnexpectedAnswer, match="Treadle server"):
            await anext(client.events.follow())
