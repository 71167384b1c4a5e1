"""A small render farm: an HTTP service whose jobs take time, report progress, fail, and survive its restarts.

    python examples/render_farm/farm.py --port 8900 --state farm.json

POST /jobs {"scene": ..., "frames": n, "seconds_per_frame": s, "fail_at": frame or null, "token": ..., "callback": url or null}
GET /jobs/ID, GET /jobs?token=..., DELETE /jobs/ID, GET /stats. A token that is known already makes no second job only with
`"dedupe": true`. State is a file: stop it, start it again, and the jobs go on.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Farm:
    """The jobs, in memory and in a file. The progress of a job follows from the time since its submission."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.jobs: dict[str, dict] = json.loads(path.read_text()) if path and path.exists() else {}
        self.looks = 0
        for job in self.jobs.values():
            self._plan_call_back(job)

    def submit(self, request: dict) -> dict:
        with self._lock:
            token = request.get("token")
            known = next((job for job in self.jobs.values() if token and job["token"] == token), None)
            if known is not None and request.get("dedupe"):
                return self.show(known)
            job = {
                "id": f"render-{len(self.jobs) + 1}",
                "scene": request.get("scene", "untitled"),
                "frames": int(request.get("frames", 3)),
                "seconds_per_frame": float(request.get("seconds_per_frame", 0.5)),
                "fail_at": request.get("fail_at"),
                "token": token,
                "callback": request.get("callback"),
                "submitted_at": time.time(),  # noqa: TID251
                "canceled": False,
            }
            self.jobs[job["id"]] = job
            self._save()
            self._plan_call_back(job)
            return self.show(job)

    def find(self, token: str) -> dict | None:
        with self._lock:
            job = next((job for job in self.jobs.values() if job["token"] == token), None)
            return None if job is None else self.show(job)

    def look(self, job_id: str) -> dict | None:
        with self._lock:
            self.looks += 1
            job = self.jobs.get(job_id)
            return None if job is None else self.show(job)

    def cancel(self, job_id: str) -> bool:
        with self._lock:
            if job_id in self.jobs:
                self.jobs[job_id]["canceled"] = True
                self._save()
            return job_id in self.jobs

    def forget(self, job_id: str) -> None:
        """Forget all jobs, like a farm that lost its disk."""
        with self._lock:
            self.jobs.pop(job_id, None)
            self._save()

    def show(self, job: dict) -> dict:
        passed = time.time() - job["submitted_at"]  # noqa: TID251
        done = min(int(passed / job["seconds_per_frame"]), job["frames"])
        failed = job["fail_at"] is not None and done >= job["fail_at"]
        state = "canceled" if job["canceled"] else "failed" if failed else "done" if done == job["frames"] else "rendering"
        return {"id": job["id"], "state": state, "frame": done, "frames": job["frames"], "url": f"/out/{job['id']}.mp4"}

    def _plan_call_back(self, job: dict) -> None:
        """Call back when the job ends; a restarted farm calls back again, which is harmless."""
        if job.get("callback"):
            frames = job["frames"] if job["fail_at"] is None else job["fail_at"]
            left = job["submitted_at"] + frames * job["seconds_per_frame"] - time.time()  # noqa: TID251
            timer = threading.Timer(max(left, 0), self._call_back, [job])
            timer.daemon = True
            timer.start()

    def _call_back(self, job: dict) -> None:
        """Report the outcome of the job; repeat without a response, or if the receiver does not know the job yet."""
        shown = self.show(job)
        said = {"failure_detail": f"{job['id']} failed", "error_code": "render_failed"}
        if shown["state"] == "done":
            said = {"result": {"url": shown["url"], "frames": job["frames"]}}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(job["callback"], json.dumps(said).encode(), headers)
        for pause in (0.2, 1, 5, 30, 120):
            try:
                urllib.request.urlopen(request, timeout=10).close()
                return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in (409, 429) and error.code < 500:
                    return
            except OSError:
                pass
            time.sleep(pause)

    def _save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self.jobs))


def make_server(farm: Farm, port: int = 0) -> ThreadingHTTPServer:
    """Serve the farm over HTTP on the loopback interface; port 0 selects a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(farm.submit(json.loads(body or b"{}")))

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/stats":
                self._answer({"jobs": len(farm.jobs), "looks": farm.looks})
            elif parts.path == "/jobs":
                self._answer(farm.find(parse_qs(parts.query).get("token", [""])[0]))
            else:
                self._answer(farm.look(parts.path.rpartition("/")[2]))

        def do_DELETE(self) -> None:
            self._answer({"canceled": True} if farm.cancel(self.path.rpartition("/")[2]) else None)

        def _answer(self, said: dict | None) -> None:
            body = json.dumps(said if said is not None else {"error": "no such job"}).encode()
            self.send_response(404 if said is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description="A small render farm on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--state", type=Path, default=Path("farm.json"))
    options = parser.parse_args()
    server = make_server(Farm(options.state), options.port)
    print(f"rendering at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
