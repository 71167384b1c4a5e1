import asyncio

from treadle import Engine, ExternalProductionFailure, ExternalProductionHandle, Specialist

engine = Engine("memory://")


class Printer:
    """A minimal 3D printing service with jobs that take time."""

    def __init__(self):
        self.jobs = {}

    def submit(self, model, token):
        self.jobs[f"print-{len(self.jobs) + 1}"] = {"layers": 0, "token": token}
        return f"print-{len(self.jobs)}"

    def look(self, job_id):
        job = self.jobs[job_id]
        job["layers"] += 1
        return job


printer = Printer()


@engine.specialist("shop.Print")
class Print(Specialist):
    async def start(self, payload, ctx):
        job_id = printer.submit(payload["model"], ctx.dispatch_token)
        return ExternalProductionHandle(job_id, polling_interval_seconds=0.05)

    async def poll(self, external_job_id, ctx):
        job = printer.look(external_job_id)
        if job["layers"] > 100:
            return ExternalProductionFailure("out of filament", "no_filament")
        if job["layers"] == 3:
            return ctx.append_produced({"part": external_job_id})
        return ExternalProductionHandle(
            external_job_id, 0.05, f"layer {job['layers']} of 3", job["layers"] / 3
        )

    async def find(self, token):
        found = [job_id for job_id, job in printer.jobs.items() if job["token"] == token]
        return ExternalProductionHandle(found[0], 0.05) if found else None


async def main():
    async with engine, engine.worker():
        task = await engine.enqueue("shop.Print", {"model": "bracket"})
        print(await engine.result(task))


asyncio.run(main())
