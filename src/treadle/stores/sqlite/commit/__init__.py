"""The one write of the SQLite store: units, applied in the caller's transaction."""
