"""The one write of the PostgreSQL store: units, applied in one transaction."""
