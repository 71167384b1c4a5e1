"""The contract over HTTP, under `/v1`, and the routes of the server itself: health, status, metrics, live events, login."""
