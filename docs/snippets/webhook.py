import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from treadle import ApprovalRequest, AwaitingApproval, Engine
from treadle.integrations.webhooks import verify
from treadle.settings import Settings

SECRET = "a long random text that both sides know"
received = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        good = verify(SECRET, self.headers.get("Treadle-Signature", ""), body, time.time())
        # the same one may come twice
        if good and self.headers["Idempotency-Key"] not in received:
            received.append(self.headers["Idempotency-Key"])
            print("to decide:", json.loads(body)["approval"]["title"])
        self.send_response(204 if good else 401)
        self.end_headers()


server = HTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()

# A worker has these from TREADLE_APPROVAL_WEBHOOK and TREADLE_WEBHOOK_SECRET.
settings = Settings(
    approval_webhook=f"http://127.0.0.1:{server.server_port}/approvals", webhook_secret=SECRET
)
engine = Engine("memory://", settings=settings)


@engine.handler("ship")
async def ship(payload, ctx):
    return (
        {"shipped": True}
        if ctx.approval_decision
        else AwaitingApproval(ApprovalRequest.of("Ship it?"))
    )


async def main():
    async with engine, engine.worker():
        await engine.enqueue("ship")
        while not received:
            await asyncio.sleep(0.01)


asyncio.run(main())
server.shutdown()
server.server_close()
