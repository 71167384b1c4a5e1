"""A trip of three bookings as a durable function: all of them, or none. If a booking fails, the earlier ones are canceled."""

from __future__ import annotations

from typing import Any

from treadle import Engine, FunctionContext, StepFailed

engine = Engine()


async def book(what: str, trip: dict[str, Any]) -> str:
    """A placeholder for a call of a booking service."""
    if what == trip.get("sold_out"):
        raise ValueError(f"no {what} left in {trip['city']}")
    return f"{what}-{trip['city'].lower()}"


async def cancel(booking: str) -> str:
    """A placeholder for the call that cancels a booking."""
    return f"{booking} canceled"


@engine.function("trip.Book")
async def book_trip(payload: dict[str, Any], ctx: FunctionContext) -> dict[str, Any]:
    """Book a flight, a hotel and a car, after a person's approval if the trip requires it."""
    if payload.get("ask"):
        answer = await ctx.wait_for("answer", timeout=7 * 86_400)
        if not answer["yes"]:
            return {"status": "declined", "by": answer["by"]}
    bookings: list[str] = []
    try:
        for what in ("flight", "hotel", "car"):
            booked = await ctx.step(book, what, payload, name=f"book_{what}", retry=2 if what == "flight" else None)
            bookings.append(booked)
    except StepFailed as error:
        undone = await ctx.gather(*(ctx.step(cancel, booking, name="cancel") for booking in reversed(bookings)))
        return {"status": "canceled", "reason": error.error, "undone": undone}
    return {"status": "booked", "bookings": bookings}
