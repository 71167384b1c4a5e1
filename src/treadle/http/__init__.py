"""The contract over HTTP, under `/v1`; and beside it what a server alone has: health, status, metrics, live events."""
