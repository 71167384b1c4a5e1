"""What builds the package; no part of it."""
