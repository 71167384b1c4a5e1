"""Targets that come over HTTP: webhooks of GitHub, callbacks of services, and any request at all."""

from __future__ import annotations

import hashlib
import hmac
import json
import re

from tests.fuzz.stage import SECRET, THEATRE, Said, Stage

from treadle.interfaces.http.problems import MEDIA_TYPE
from treadle.model.external import ExternalProductionFailure

JSON_TYPE = {"Content-Type": "application/json"}
FINAL = ("completed", "failed")


def check_answer(said: Said) -> None:
    """No response is a server error; a rejection has a code and a reason, without internals of the program."""
    assert 200 <= said.status < 500 or said.status in (501, 503), (said.status, said.body[:500])
    kind = said.headers.get("content-type", "")
    if said.status >= 400 and kind.startswith(MEDIA_TYPE):
        problem = said.json()
        assert problem["code"], problem
        assert problem["detail"], problem
        assert "Traceback" not in problem["detail"]
    elif kind.startswith("application/json"):
        json.loads(said.body)


def signed(body: bytes) -> str:
    """The signature that GitHub sends with a body."""
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def github(data: bytes) -> None:
    """A webhook of GitHub: a line `EVENT DELIVERY`, and the body.

    With the right signature no answer is a server error, and the same delivery again makes nothing more. Without it, with one
    of another body, or with the beginning of the right one it is refused and nothing is made.
    """
    first, _, body = data.partition(b"\n")
    event, _, delivery = first.decode("latin-1").partition(" ")
    if not _fits_header(event + delivery):
        return

    async def act(stage: Stage) -> None:
        headers = {**JSON_TYPE, "X-GitHub-Event": event, "X-GitHub-Delivery": delivery}

        async def send(signature: str | None) -> Said:
            more = {} if signature is None else {"X-Hub-Signature-256": signature}
            return await stage.ask("POST", "/v1/ingest/github", headers | more, body)

        before = await _count(stage)
        right = signed(body)
        for wrong in (None, "", right[:-1], right.removeprefix("sha256="), signed(body + b" "), "sha256=" + "0" * 64):
            refused = await send(wrong)
            assert refused.status in (403, 413), (wrong, refused)
        assert await _count(stage) == before, "something was made of a webhook that nobody signed"
        said = await send(right)
        check_answer(said)
        if said.status == 202:
            again = await send(right)
            assert again.status == 200, again
            assert again.json() == {**said.json(), "created": False}
            await stage.engine.cancel(said.json()["task_id"])

    THEATRE.play(act)


async def _count(stage: Stage) -> int:
    return len(await stage.engine.kernel.reads.list_tasks(limit=1000))


def callback(data: bytes) -> None:
    """The body of a callback: with the job's token no answer is a server error, with another none is anything but a refusal.

    What is taken has the job where it says: a result completes it, a failure fails it, all else lets it go on.
    """

    async def act(stage: Stage) -> None:
        path = await stage.job()
        route, _, query = path.partition("?")
        for wrong in (route, f"{route}?token=", f"{path[:-1]}", f"{route}?token={'A' * 43}"):
            refused = await stage.ask("POST", wrong, JSON_TYPE, data)
            assert refused.status in (403, 413), refused
        said = await stage.ask("POST", path, JSON_TYPE, data)
        check_answer(said)
        job_id = route.split("/")[3]
        task = await stage.engine.kernel.reads.get_task(job_id)
        if said.status == 200:
            assert said.json()["state"] == task.state
            given = json.loads(data)
            assert (task.state == "completed") is isinstance(given.get("result"), dict)
            assert (task.state == "failed") is isinstance(given.get("failure_detail"), str)
        else:
            assert task.state not in FINAL
        if task.state not in FINAL:
            token = query.removeprefix("token=")
            await stage.engine.kernel.external_jobs.resolve(token, ExternalProductionFailure("the end"))

    THEATRE.play(act)


def request(data: bytes) -> None:
    """A request as it stands on the wire, by somebody who may do everything; `{task}` and the like stand for what there is.

    No answer is a server error and none stays away; problems have a code and say what to do; JSON is JSON.
    """
    head, _, body = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    first, *lines = head.decode("latin-1").split("\n")
    method, _, path = first.partition(" ")
    path = path.removesuffix(" HTTP/1.1")
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    if not re.fullmatch("[A-Z]{1,10}", method) or not path.startswith("/") or "#" in path or len(path) > 8000:
        return  # no server passes this on
    if any(not _fits_header(name + value) or not re.fullmatch(r"[!-9;-~]+", name) for name, value in headers.items()):
        return
    if not path.isascii() or not path.isprintable() or " " in path or _runs_code(path):
        return

    async def act(stage: Stage) -> None:
        def filled(text: str) -> str:
            return re.sub(r"\{(\w+)\}", lambda match: stage.names.get(match[1], match[0]), text)

        said = await stage.ask(
            method,
            filled(path),
            {"Authorization": f"Bearer {stage.names['token']}", **{name: filled(value) for name, value in headers.items()}},
            filled(body.decode("latin-1")).encode("latin-1"),
        )
        check_answer(said)

    THEATRE.play(act)


def _fits_header(text: str) -> bool:
    return all(" " <= letter <= "~" or "\xa0" <= letter <= "\xff" for letter in text)


def _runs_code(path: str) -> bool:
    """Skip tests of handlers, which load modules from the working directory."""
    from urllib.parse import unquote

    return "handlers" in unquote(path)
