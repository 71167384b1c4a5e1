"""An agent's session over every transport: write a faulty flow, fix it from the diagnostics, run it, decide, read the outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.mcp.transports import WAYS, Way, by, refused, told

DRAFT = """namespace shop {
    event facet Price(count: Long) => (total: Double)
    event facet Confirm(total: Double) => (by: String)

    workflow Buy(count: Long) => (total: Doubel, by: String) andThen {
        priced = Price(count = $.cont)
        yes = Confirm(total = priced.total)
        yield Buy(total = priced.total, by = yes.by)
    }
}
"""


def mended(source: str, finding: dict[str, object]) -> str:
    """The source with the word at that place replaced by what the hint suggests, as a model would do it."""
    lines = source.split("\n")
    number = int(str(finding["line"])) - 1
    assert lines[number] == finding["text"]
    suggestion = str(finding["hint"]).split("`")[1]
    before, after = lines[number][: int(str(finding["column"])) - 1], lines[number][int(str(finding["column"])) - 1 :]
    wrong = after[: next((at for at, letter in enumerate(after) if not (letter.isalnum() or letter in "_$.")), len(after))]
    stem = "$." if wrong.startswith("$.") else ""
    lines[number] = before + stem + suggestion.removeprefix("$.") + after[len(wrong) :]
    return "\n".join(lines)


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_writes_fixes_runs_decides_and_reads(way: Way, tmp_path: Path):
    async with by(way, tmp_path) as client:
        assert "afl_validate" in {tool.name for tool in (await client.list_tools()).tools}
        brief = (await client.get_prompt("afl_language")).messages[0].content
        assert "andThen" in brief.text  # type: ignore[union-attr]

        source, rounds = DRAFT, 0
        assert refused(await client.call_tool("afl_execute_workflow", {"source": source}))["code"] == "invalid_flow"
        while not (looked := told(await client.call_tool("afl_validate", {"source": source})))["valid"]:
            source, rounds = mended(source, looked["errors"][0]), rounds + 1
            assert rounds < 5, looked
        assert looked["workflows"] == ["shop.Buy"]
        assert looked["event_facets"] == ["shop.Price", "shop.Confirm"]

        begun = told(await client.call_tool("afl_execute_workflow", {"source": source, "inputs": {"count": 3}, "wait_for": 0}))
        run_id = begun["run_id"]
        assert (begun["success"], begun["status"]) in [(True, "RUNNING"), (True, "PAUSED")]
        while not (asked := told(await client.call_tool("approval_list", {"run_id": run_id}))["approvals"]):
            await client.call_tool("run_outputs", {"run_id": run_id, "wait_for": 0.05})
        assert asked[0]["title"] == "Buy for 30.0?"
        waiting = told(await client.call_tool("why", {"id": run_id}))
        assert waiting["code"] == "approval"
        paused = told(await client.call_tool("afl_resume_workflow", {"run_id": run_id, "wait_for": 0}))
        assert (paused["success"], paused["status"], paused["missing_handlers"]) == (True, "PAUSED", [])
        decided = told(
            await client.call_tool("approval_decide", {"approval_id": asked[0]["id"], "decision": "approve", "reason": "cheap"})
        )
        assert decided["state"] == "approved"

        ended = told(await client.call_tool("run_outputs", {"run_id": run_id, "wait_for": 50}))
        assert ended["state"] == "completed"
        assert ended["outputs"]["total"] == 30.0
        who = ended["outputs"]["by"]
        assert who == decided["ended_by"]
        assert who.startswith("mcp:") if way == "stdio" else who == "ada"
        steps = told(await client.call_tool("run_steps", {"run_id": run_id}))["steps"]
        assert [step["path"] for step in steps] == ["Buy", "Buy.priced", "Buy.yes"]

        published = told(await client.call_tool("flow_publish", {"name": "shop", "source": source}))
        assert (published["version"], published["actor"]) == (1, who)
        read = (await client.read_resource("afl://flows/shop/source")).contents[0]
        assert (read.text, read.mime_type) == (source, "text/plain")  # type: ignore[union-attr]
    if way == "stdio":
        assert "a handler that prints" in (tmp_path / "stderr").read_text()
