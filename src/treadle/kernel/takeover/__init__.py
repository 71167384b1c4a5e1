"""Takeover of the work of dead servers, before their leases expire (D71)."""
