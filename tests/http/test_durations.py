"""Every duration of every call: no number, however large, gets anything but a problem with a code."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.conftest import Stage

from treadle.api.contract import PREFIX, Call
from treadle.api.facade import all_calls

NUMBERS = ["1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1", "NaN", "Infinity", '"' + "9" * 5000 + '"']
MORE: dict[str, Any] = {"task": "work", "every": 60, "path": "/tmp", "catch_up": "window", "catch_up_window": 60}
CALLS = [
    (call, each.name)
    for call in all_calls()
    for each in call.others
    if each.doc.unit == "seconds" or each.name.endswith("_for") or each.name in ("older_than", "newer_than", "expires")
]


@pytest.mark.parametrize(("call", "parameter"), CALLS, ids=[f"{call.group}.{call.name}.{name}" for call, name in CALLS])
async def test_a_duration_that_cannot_be_kept_is_a_problem_with_a_code(stage: Stage, call: Call, parameter: str) -> None:
    path = PREFIX + call.route.path
    for each in call.path:
        path = path.replace(f"{{{each.name}}}", str(each.doc.example))
    names = {each.name for each in call.others}
    body = {each.name: each.doc.example for each in call.others if each.required} | {k: v for k, v in MORE.items() if k in names}
    async with stage.client() as client:
        for number in NUMBERS:
            if call.in_query:
                answer = await client.request(call.route.method, path, params={parameter: number.strip('"')})
            else:
                fields = [f'"{name}":{_json(value)}' for name, value in body.items() if name != parameter]
                text = "{" + ",".join([*fields, f'"{parameter}":{number}']) + "}"
                answer = await client.request(call.route.method, path, content=text, headers={"Content-Type": "application/json"})
            assert 400 <= answer.status_code < 500, (number[:9], answer.text)
            assert answer.json()["code"] not in ("", "internal_error")
            assert len(answer.text) < 2000


def _json(value: Any) -> str:
    from treadle.model.values import encode

    return encode(value)
