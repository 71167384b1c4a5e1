"""The default limits of a run of a workflow; settings change them."""

RUN_DEPTH = 100
"""Steps within steps. A run that nests deeper is stopped."""

RUN_ROWS = 1_000_000
"""Steps, blocks and items. A run that has more is stopped."""

ADVANCE_BYTES = 16 * 1024 * 1024
"""Bytes of computed values in one advance, after which it is committed and the next one begins."""
