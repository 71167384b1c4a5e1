"""Processes that see each other as if they were on other machines, or in other containers."""

from __future__ import annotations

from treadle.engine import machine


def move_to(kernel: str) -> None:
    """Let this process be one of that kernel; processes of other kernels cannot see whether it has ended."""
    machine.kernel_identity = lambda host: kernel  # type: ignore[assignment]
