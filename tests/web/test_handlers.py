"""Pages about handlers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.web.conftest import Visit
from tests.web.test_lists import main_of
from tests.web.test_tasks import HOSTILE

from treadle.engine.operations import Operations
from treadle.model.access import OPEN

CODE = """
def handle(payload):
    print("charging", payload["amount"])
    return {"charged": payload["amount"], "by": payload["_handler_metadata"]["gateway"]}
"""


async def test_a_handler_is_registered_edited_tried_and_removed(visit: Visit, tmp_path: Path):
    module = tmp_path / "billing.py"
    module.write_text(CODE)
    visit.engine.kernel.settings = replace(visit.engine.kernel.settings, handler_roots=(str(tmp_path),))
    page = await visit.do("/handlers", facet_name="billing.Pay", module_uri=f"file://{module}", metadata='{"gateway": "acme"}')
    assert "billing.Pay is registered." in page
    assert "billing.Pay" in main_of(await visit.page("/handlers"))
    await visit.do("/handlers/billing.Pay/edit", timeout="5", version="2.0.0", requirements="httpx\n")
    found = await Operations(visit.engine, OPEN).handlers.get("billing.Pay")
    assert (found.timeout_ms, found.version, found.requirements) == (5000, "2.0.0", ["httpx"])
    assert (found.entrypoint, found.metadata) == ("handle", {"gateway": "acme"})
    page = main_of(await visit.do("/handlers/billing.Pay/test", payload='{"amount": 12}'))
    assert "Test succeeded" in page
    assert "&#34;charged&#34;: 12" in page
    assert "charging 12" in page
    page = main_of(await visit.do("/handlers/billing.Pay/test", payload="{}"))
    assert "Test failed" in page
    assert "handler_error" in page
    assert "is removed" in await visit.do("/handlers/billing.Pay/remove")
    assert "No registered handlers." in await visit.page("/handlers")


async def test_a_missing_module_is_reported(visit: Visit, tmp_path: Path):
    visit.engine.kernel.settings = replace(visit.engine.kernel.settings, handler_roots=(str(tmp_path),))
    await visit.do("/handlers", facet_name="billing.Pay", module_uri="no.such.module")
    assert "not found" in main_of(await visit.page("/handlers"))
    assert "The module is not found on this server" in await visit.page("/handlers/billing.Pay")


async def test_handlers_of_live_workers_are_listed(visit: Visit):
    async with visit.engine.worker():
        assert "greet" in main_of(await visit.page("/handlers"))


async def test_invalid_handler_input_is_rejected_with_an_explanation(visit: Visit):
    assert "Enter module uri." in await visit.do("/handlers", facet_name="billing.Pay")
    page = await visit.do("/handlers", facet_name="billing.Pay", module_uri="handlers.billing", metadata=HOSTILE)
    assert "This is not JSON" in page
    assert HOSTILE not in page


async def test_an_operator_without_admin_scope_sees_no_forms(visit: Visit):
    await visit.do("/handlers", facet_name="billing.Pay", module_uri="handlers.billing")
    created = await visit.engine.kernel.tokens.create("eve", ["operate"])
    async with visit.anew() as visit:
        visit.browser.headers["Authorization"] = f"Bearer {created.secret}"
        for path in ("/handlers", "/handlers/billing.Pay", "/settings", "/settings/retention", "/settings/store"):
            assert 'method="post"' not in main_of(await visit.page(path)), path
        assert (await visit.browser.get("/handlers/new")).status_code == 403
