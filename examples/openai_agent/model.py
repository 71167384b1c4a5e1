"""A local model server with scripted responses, for running the agents without a key and without cost."""

from __future__ import annotations

import threading

from treadle.testing.llm import ModelServer, text, uses

SCRIPT = (
    uses(("find_order", {"order": 7}), ("check_stock", {"sku": "teapot"})),
    uses(("transfer_to_refunds", {})),
    uses(("refund", {"order": 7, "amount": 40})),
    text("Your teapot is out of stock, so I refunded $40."),
)

if __name__ == "__main__":
    with ModelServer(port=8124) as server:
        server.conversation(*SCRIPT)
        print(f"export OPENAI_API_KEY=scripted OPENAI_BASE_URL={server.url}/v1", flush=True)
        threading.Event().wait()
