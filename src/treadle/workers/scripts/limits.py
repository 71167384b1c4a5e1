"""The limits of scripts, as an operator sets them."""

from __future__ import annotations

import json

import msgspec

from treadle.model.errors import InvalidPolicy
from treadle.model.scripts import SCRIPT_BUILTINS, SCRIPT_MODULES
from treadle.model.values import PAYLOAD_LIMIT

SWITCHES = frozenset(
    {
        "capabilities", "core_file", "cpu", "dies_with_parent", "file_size", "files", "memory", "network", "no_new_privileges",
        "not_dumpable", "open_files", "privileges", "processes", "system_calls",
    }
)  # fmt: skip
"""Limits that can be switched off."""


class ScriptLimits(msgspec.Struct, frozen=True):
    """Limits of one script.

    `wall_for` and `cpu_for` are seconds; CPU time is rounded up to whole seconds. `memory_bytes` is address space in addition
    to the interpreter's own. `output_bytes` limits the result as JSON text. `off` names limits to switch off on a machine that
    cannot support them; `ScriptRunner.describe_limits` reports them.
    """

    wall_for: float = 30.0
    cpu_for: float = 30.0
    memory_bytes: int = 256 * 1024 * 1024
    output_bytes: int = PAYLOAD_LIMIT
    off: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not (0 < self.wall_for < float("inf") and 0 < self.cpu_for < float("inf")):
            raise InvalidPolicy("wall_for and cpu_for must be more than zero seconds.")
        if self.memory_bytes <= 0 or self.output_bytes <= 0:
            raise InvalidPolicy("memory_bytes and output_bytes must be more than zero.")
        if unknown := sorted(self.off - SWITCHES):
            raise InvalidPolicy(f"There is no limit {', '.join(unknown)} to switch off. There are: {', '.join(sorted(SWITCHES))}.")

    def as_settings(self) -> str:
        """Return the settings of the host process as JSON."""
        limits = {"wall": self.wall_for, "cpu": self.cpu_for, "memory": self.memory_bytes, "off": sorted(self.off)}
        return json.dumps({**limits, "modules": SCRIPT_MODULES, "builtins": SCRIPT_BUILTINS})
