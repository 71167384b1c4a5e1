"""The example of a durable function does what its README says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.commands import Treadle

TRIP = Path(__file__).parents[2] / "examples" / "trip"


def test_the_commands_in_the_readme_work(treadle: Treadle):
    (treadle.folder / "examples").symlink_to(TRIP.parent)
    worker, booked, canceled, asked, told = re.findall(r"^    treadle (.*)$", (TRIP / "README.md").read_text(), re.M)
    with treadle.started(*shlex.split(worker), PYTHONDONTWRITEBYTECODE="1"):
        said = treadle.json(*shlex.split(booked))
        assert said["result"] == {"status": "booked", "bookings": ["flight-turin", "hotel-turin", "car-turin"]}
        said = treadle.json(*shlex.split(canceled))
        assert said["result"] == {
            "status": "canceled",
            "reason": "no car left in Turin",
            "undone": ["hotel-turin canceled", "flight-turin canceled"],
        }
        run_id = treadle.json(*shlex.split(asked))["id"]
        assert treadle.json(*shlex.split(told.replace("RUN", run_id)))["accepted"]
        again = treadle.json(*shlex.split(asked), "--idempotency-key", "k")
        treadle.json("signal", again["id"], "answer", "--payload", '{"yes": false, "by": "bob"}')
        said = treadle.json(*shlex.split(asked), "--idempotency-key", "k", "--wait")
        assert said["created"] is False
        assert said["result"] == {"status": "declined", "by": "bob"}
