"""The specialist for the render farm: it submits, looks, finds after a crash, and cancels. Sync methods run in threads."""

import json
import urllib.error
import urllib.parse
import urllib.request

from treadle import Engine, ExternalJobLost, ExternalProductionFailure, ExternalProductionHandle, Specialist

engine = Engine()


class RenderFarm(Specialist):
    """Each method is one request; nothing is kept here, so any worker can go on with any job."""

    def __init__(self, url="http://127.0.0.1:8900", interval=1.0):
        self.url, self.interval = url, interval

    def start(self, payload, ctx):
        """Submit under the token: `find` asks for it, should this process die before the answer is stored."""
        wish = {
            name: payload[name] for name in ("scene", "frames", "seconds_per_frame", "fail_at") if payload.get(name) is not None
        }
        return self._handle(self._ask("POST", "/jobs", wish | {"token": ctx.dispatch_token}))

    def poll(self, external_job_id, ctx):
        """A look, and nothing else: it may be repeated at any time."""
        try:
            job = self._ask("GET", f"/jobs/{external_job_id}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise ExternalJobLost(f"The farm does not know {external_job_id} any more.") from error
            raise
        if job["state"] == "done":
            return ctx.append_produced({"url": self.url + job["url"], "frames": job["frames"]})
        if job["state"] == "failed":
            return ExternalProductionFailure(f"{external_job_id} failed at frame {job['frame']}", "render_failed")
        if job["state"] == "canceled":
            return ExternalProductionFailure(f"{external_job_id} was canceled at the farm", "canceled_at_farm")
        return self._handle(job)

    def find(self, token):
        """The job that was submitted under the token, or None if the farm has none."""
        try:
            return self._handle(self._ask("GET", f"/jobs?token={urllib.parse.quote(token)}"))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def cancel(self, external_job_id):
        """Tell the farm; a job that it does not know needs no cancel."""
        try:
            self._ask("DELETE", f"/jobs/{external_job_id}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def _handle(self, job):
        hint = f"frame {job['frame']} of {job['frames']}"
        return ExternalProductionHandle(job["id"], self.interval, hint, job["frame"] / job["frames"])

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


engine.specialist("film.Render", RenderFarm())


@engine.handler("film.Publish")
async def publish(payload, ctx):
    """An ordinary handler, for what comes after."""
    return {"line": f"{payload['title']}: {payload['url']}"}
