"""The specialist for the render farm: submits, polls, finds after a crash, and cancels jobs. Sync methods run in threads."""

import json
import urllib.error
import urllib.parse
import urllib.request

from treadle import Engine, ExternalJobLost, ExternalProductionFailure, ExternalProductionHandle, Specialist

engine = Engine()


class RenderFarm(Specialist):
    """Each method is one request; the class keeps no state, so any worker can continue any job.

    Where `TREADLE_PUBLIC_URL` is set, the farm is also told where to call back; polls are then for call-backs that were lost.
    """

    def __init__(self, url="http://127.0.0.1:8900", interval=1.0):
        self.url, self.interval = url, interval

    def start(self, payload, ctx):
        """Submit under the token: `find` looks it up if this process dies before the response is stored."""
        request = {
            name: payload[name] for name in ("scene", "frames", "seconds_per_frame", "fail_at") if payload.get(name) is not None
        }
        request |= {"token": ctx.dispatch_token, "callback": ctx.callback_url}
        return self._handle(self._ask("POST", "/jobs", request))

    def poll(self, external_job_id, ctx):
        """Read the state of the job; safe to repeat at any time."""
        job = self._ask("GET", f"/jobs/{external_job_id}")
        if job is None:
            raise ExternalJobLost(f"The farm does not know {external_job_id} any more.")
        if job["state"] == "done":
            return ctx.append_produced({"url": self.url + job["url"], "frames": job["frames"]})
        if job["state"] == "failed":
            return ExternalProductionFailure(f"{external_job_id} failed at frame {job['frame']}", "render_failed")
        if job["state"] == "canceled":
            return ExternalProductionFailure(f"{external_job_id} was canceled at the farm", "canceled_at_farm")
        return self._handle(job)

    def find(self, token):
        """Return the job submitted under the token, or None."""
        job = self._ask("GET", f"/jobs?token={urllib.parse.quote(token)}")
        return None if job is None else self._handle(job)

    def cancel(self, external_job_id):
        """Cancel the job at the farm; ignore an unknown job."""
        self._ask("DELETE", f"/jobs/{external_job_id}")

    def _handle(self, job):
        hint = f"frame {job['frame']} of {job['frames']}"
        return ExternalProductionHandle(job["id"], self.interval, hint, job["frame"] / job["frames"])

    def _ask(self, method, path, body=None):
        """Send a request; return the response, or None if the farm does not know the job."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise


engine.specialist("film.Render", RenderFarm())


@engine.handler("film.Publish")
async def publish(payload, ctx):
    """An ordinary handler for the next step."""
    return {"line": f"{payload['title']}: {payload['url']}"}
