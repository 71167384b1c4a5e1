"""Mixins that the engine itself implements: they need no declaration, and their arguments are not attributes."""

from __future__ import annotations

from collections.abc import Mapping

TIMEOUT_UNITS: Mapping[str, int] = {
    "days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "milliseconds": 1, "ms": 1,
}  # fmt: skip
"""The arguments of `Timeout`, each in milliseconds; they add up."""
LONGEST_TIMEOUT = 366 * 86_400_000

RETRY_RANGES: Mapping[str, tuple[float, float]] = {
    "maxAttempts": (1, 1_000_000), "delay": (0, LONGEST_TIMEOUT / 1000), "backoff": (1, 100),
    "maxDelay": (0, LONGEST_TIMEOUT / 1000), "jitter": (0, 1),
}  # fmt: skip
"""The arguments of `Retry` with their least and greatest values; delays are seconds."""

BUILTIN_MIXINS: Mapping[str, Mapping[str, object]] = {"Timeout": TIMEOUT_UNITS, "Retry": RETRY_RANGES}
"""Arguments by mixin."""
MIXIN_EXAMPLES = {"Timeout": "Timeout(minutes = 5)", "Retry": "Retry(maxAttempts = 3)"}
